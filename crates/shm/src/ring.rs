//! Bytes in and out of a ring that another process may be writing to.
//!
//! The ring is only memory and a size. Who may touch which part of it follows from the cursors that
//! both sides keep; see [`crate::Cursor`].
#![allow(unsafe_code)]

use crate::cursor::Cursor;

/// A byte ring in shared memory. Raw pointers only: the peer writes here whenever it likes, so
/// neither `&[u8]` nor `&mut [u8]` to it would be true.
#[derive(Clone, Copy, Debug)]
pub struct Ring {
    base: *mut u8,
    size: u32,
}

// SAFETY: a pointer and a number; every access goes through `unsafe fn`s that state who may race.
unsafe impl Send for Ring {}
// SAFETY: as above.
unsafe impl Sync for Ring {}

impl Ring {
    /// # Safety
    /// `base` is valid for reads and writes of `size` bytes for as long as a copy of the ring is
    /// used, and `size` is at least 1.
    #[inline]
    pub unsafe fn new(base: *mut u8, size: u32) -> Self {
        Self { base, size }
    }

    /// Bytes that it holds.
    #[inline]
    pub fn size(&self) -> u32 {
        self.size
    }

    /// The memory of `len` bytes from `at` on, for calls such as `readv` that fill a ring directly.
    /// The second span is where it wraps, often of length zero. Never more than the ring itself.
    #[inline]
    pub fn spans(&self, at: &Cursor, len: u32) -> [(*mut u8, u32); 2] {
        // A cursor of another ring must not lead outside of this one.
        let start = if at.count() < self.size { at.count() } else { 0 };
        let len = len.min(self.size);
        let first = len.min(self.size - start);
        [(self.base.wrapping_add(start as usize), first), (self.base, len - first)]
    }

    /// Copies `len` bytes in at `at`; at most two copies.
    ///
    /// # Safety
    /// `src` is valid for reads of `len` bytes, `len <= size`, and does not overlap the ring.
    #[inline]
    pub unsafe fn write(&self, at: &Cursor, src: *const u8, len: u32) {
        let [(a, n), (b, m)] = self.spans(at, len);
        // SAFETY: a span lies in the ring (`new`) and `src` covers it; the peer may race on the
        // destination, which costs it its own bytes and nothing else.
        unsafe { crate::copy(src, a, n as usize) };
        if m != 0 {
            // SAFETY: as above, for the part after the wrap.
            unsafe { crate::copy(src.wrapping_add(n as usize), b, m as usize) };
        }
    }

    /// Copies `len` bytes out from `at`; at most two copies. The bytes are whatever the peer wrote.
    ///
    /// # Safety
    /// `dst` is valid for writes of `len` bytes, `len <= size`, and does not overlap the ring.
    #[inline]
    pub unsafe fn read(&self, at: &Cursor, dst: *mut u8, len: u32) {
        let [(a, n), (b, m)] = self.spans(at, len);
        // SAFETY: a span lies in the ring (`new`) and `dst` covers it; bytes have no invalid value,
        // so that a racing peer changes only what it sent.
        unsafe { crate::copy(a, dst, n as usize) };
        if m != 0 {
            // SAFETY: as above, for the part after the wrap.
            unsafe { crate::copy(b, dst.wrapping_add(n as usize), m as usize) };
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::VecDeque;

    /// The two sides of a stream over one ring, each with its own cursors, told to the other as
    /// words.
    struct Pair {
        memory: Vec<u8>,
        size: u32,
        prod: Cursor,
        freed: Cursor,
        cons: Cursor,
        seen: Cursor,
    }

    impl Pair {
        fn new(size: u32, laps: u32) -> Self {
            let mut c = Cursor::ZERO;
            for _ in 0..laps {
                c.advance(size, size);
            }
            let memory = vec![0xEE; size as usize + 32];
            Self { memory, size, prod: c, freed: c, cons: c, seen: c }
        }

        fn ring(&mut self) -> Ring {
            // SAFETY: 16 guard bytes stand on either side of the ring within the vector.
            unsafe { Ring::new(self.memory.as_mut_ptr().wrapping_add(16), self.size) }
        }

        fn send(&mut self, bytes: &[u8]) -> u32 {
            let used = (self.prod.pos - self.freed.pos) as u32;
            self.freed.follow(self.cons.wire(), self.size, used).unwrap();
            let free = self.size - (self.prod.pos - self.freed.pos) as u32;
            let n = free.min(bytes.len() as u32);
            let prod = self.prod;
            // SAFETY: `n` bytes of `bytes`, and not more than are free.
            unsafe { self.ring().write(&prod, bytes.as_ptr(), n) };
            self.prod.advance(n, self.size);
            n
        }

        fn recv(&mut self, max: u32) -> Vec<u8> {
            let held = (self.seen.pos - self.cons.pos) as u32;
            self.seen.follow(self.prod.wire(), self.size, self.size - held).unwrap();
            let n = max.min((self.seen.pos - self.cons.pos) as u32);
            let mut out = vec![0; n as usize];
            let cons = self.cons;
            // SAFETY: `out` has `n` bytes.
            unsafe { self.ring().read(&cons, out.as_mut_ptr(), n) };
            self.cons.advance(n, self.size);
            out
        }
    }

    proptest! {
        #[test]
        fn behaves_like_a_bounded_queue(
            size in prop_oneof![1u32..8, 1u32..300, Just(65504u32)],
            laps in prop_oneof![Just(0u32), 65_530u32..65_540],
            steps in prop::collection::vec((any::<bool>(), 0u32..400), 1..200),
        ) {
            let mut pair = Pair::new(size, laps);
            let mut oracle = VecDeque::new();
            let mut next = 0u8;
            for (sending, n) in steps {
                if sending {
                    let bytes: Vec<u8> = (0..n).map(|i| next.wrapping_add(i as u8)).collect();
                    let sent = pair.send(&bytes);
                    prop_assert_eq!(sent as usize, (n as usize).min(size as usize - oracle.len()));
                    oracle.extend(&bytes[..sent as usize]);
                    next = next.wrapping_add(sent as u8);
                } else {
                    let got = pair.recv(n);
                    let want: Vec<u8> = oracle.drain(..(n as usize).min(oracle.len())).collect();
                    prop_assert_eq!(got, want);
                }
                prop_assert!(pair.memory[..16].iter().all(|b| *b == 0xEE));
                prop_assert!(pair.memory[16 + size as usize..].iter().all(|b| *b == 0xEE));
            }
        }

        #[test]
        fn spans_stay_inside(size in 1u32.., other in 1u32.., steps: u32, len: u32) {
            let base = core::ptr::without_provenance_mut::<u8>(1 << 40);
            // SAFETY: the memory is never touched, only its addresses are looked at.
            let ring = unsafe { Ring::new(base, size) };
            let mut at = Cursor::ZERO;
            at.advance(steps % other, other);
            let [(a, n), (b, m)] = ring.spans(&at, len);
            prop_assert_eq!(n + m, len.min(size));
            prop_assert!(a.addr() >= base.addr());
            prop_assert!(a.addr() + n as usize <= base.addr() + size as usize);
            prop_assert!(b.addr() == base.addr() && m <= size);
        }
    }
}
