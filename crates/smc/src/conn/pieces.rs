//! Where the bytes of a send come from, and those of a receive go to: an application's buffers, or
//! a function.
#![allow(unsafe_code)]

use crate::sys;

/// Where a send takes its bytes from.
pub(super) trait Source {
    /// Puts up to `len` bytes at `to`; fewer end the send. An errno counts if nothing came before
    /// it.
    fn fill(&mut self, to: *mut u8, len: usize) -> Result<usize, i32>;

    /// The application's buffers behind what was taken, where the bytes come from such.
    fn ahead(&self) -> Option<Pieces<'_>> {
        None
    }

    /// Takes `n` of the bytes that were found `ahead`.
    fn skip(&mut self, _n: usize) {}
}

/// A function that fills the ring.
pub(super) struct Filled<F>(pub F);

impl<F: FnMut(*mut u8, usize) -> Result<usize, i32>> Source for Filled<F> {
    fn fill(&mut self, to: *mut u8, len: usize) -> Result<usize, i32> {
        self.0(to, len)
    }
}

impl Source for Pieces<'_> {
    #[inline(always)]
    fn fill(&mut self, to: *mut u8, len: usize) -> Result<usize, i32> {
        let mut n = 0;
        while n < len {
            let here = *self;
            let Some((from, k)) = self.next(len - n) else { break };
            if sys::faulty(from) {
                *self = here;
                return if n > 0 { Ok(n) } else { Err(libc::EFAULT) };
            }
            // SAFETY: the application vouches for its iovecs as it does towards the kernel; `to`
            // has `len` bytes.
            unsafe { shm::copy(from, to.wrapping_add(n), k) };
            n += k;
        }
        Ok(n)
    }

    fn ahead(&self) -> Option<Pieces<'_>> {
        Some(*self)
    }

    fn skip(&mut self, n: usize) {
        Pieces::skip(self, n);
    }
}

/// A position in an application's iovec array.
#[derive(Clone, Copy)]
pub struct Pieces<'a> {
    iov: &'a [libc::iovec],
    at: usize,
    pub(super) more: bool,
}

impl<'a> Pieces<'a> {
    /// All of `iov`.
    pub fn new(iov: &'a [libc::iovec]) -> Self {
        Self { iov, at: 0, more: false }
    }

    /// With `more`, these bytes are sent with MSG_MORE: the application is about to send what
    /// belongs to them.
    pub fn before_more(self, more: bool) -> Self {
        Self { more, ..self }
    }

    /// Bytes from here to the end.
    pub fn left(&self) -> usize {
        self.iov.iter().map(|v| v.iov_len).sum::<usize>() - self.at
    }

    /// Moves `n` bytes on.
    pub fn skip(&mut self, mut n: usize) {
        while n > 0 {
            let Some((_, k)) = self.next(n) else { return };
            n -= k;
        }
    }

    /// The rest as an iovec array in `out`; the number of elements used.
    pub fn rest(mut self, out: &mut [libc::iovec]) -> usize {
        let mut n = 0;
        while n < out.len()
            && let Some((p, len)) = self.next(usize::MAX)
        {
            out[n] = libc::iovec { iov_base: p.cast(), iov_len: len };
            n += 1;
        }
        n
    }

    /// Puts the next `n` bytes behind the `queue`, and what then is in front of it into their
    /// places.
    pub(super) fn exchange(mut self, queue: &mut [u8], n: usize) {
        let mut done = 0;
        while done < n && !queue.is_empty() {
            let front = done % queue.len();
            let Some((place, k)) = self.next((n - done).min(queue.len() - front)) else { break };
            for (i, byte) in queue[front..front + k].iter_mut().enumerate() {
                // SAFETY: the application's buffers, which the kernel has just filled.
                unsafe { core::ptr::swap(place.wrapping_add(i), byte) };
            }
            done += k;
        }
        if !queue.is_empty() {
            let front = done % queue.len();
            queue.rotate_left(front);
        }
    }

    /// Of the first `len` bytes, takes out `n` behind the first `at`; the rest moves up.
    pub(super) fn cut(self, at: usize, n: usize, len: usize) {
        let (mut to, mut from) = (self, self);
        to.skip(at);
        from.skip(at + n);
        let mut left = len.saturating_sub(at + n);
        while left > 0 {
            let Some((source, k)) = from.next(left) else { return };
            let mut done = 0;
            while done < k {
                let Some((place, part)) = to.next(k - done) else { return };
                // SAFETY: the application's buffers, which the kernel has just filled. What has not
                // been moved yet lies behind.
                unsafe { core::ptr::copy(source.wrapping_add(done), place, part) };
                done += part;
            }
            left -= k;
        }
    }

    /// The next contiguous part, at most `max` bytes.
    #[inline]
    pub fn next(&mut self, max: usize) -> Option<(*mut u8, usize)> {
        while let Some(v) = self.iov.first() {
            if self.at < v.iov_len {
                let n = (v.iov_len - self.at).min(max);
                let p = v.iov_base.cast::<u8>().wrapping_add(self.at);
                self.at += n;
                return Some((p, n));
            }
            self.iov = &self.iov[1..];
            self.at = 0;
        }
        None
    }
}
