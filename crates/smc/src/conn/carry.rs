//! Application bytes across to a ring in the peer's own memory, and the cursor behind them, in one
//! copy.
#![allow(unsafe_code)]

use super::image::{CONS, CPU, Image, PROD};
use super::pieces::Source;
use super::send::SendError;
use super::*;
use crate::sys;
use dibs::ism::far::{Piece, piece};
use dibs::ism::integrity::Sum;
use shm::Errno;

/// Bytes in one copy.
const CHUNK: usize = 64 << 10;
/// Copies up to here take the consumer cursor along.
const SMALL: usize = 4 << 10;
/// Pieces of the application's memory in one copy.
const PIECES: usize = 8;
/// Those, and the words that go with them.
type Pack = [Piece; PIECES + 2];

impl Image<'_> {
    /// Copies up to `chunk` bytes to the producer cursor and publishes them; how many.
    pub(super) fn copy_out(
        self,
        tx: &mut Tx,
        chunk: usize,
        source: &mut impl Source,
    ) -> Result<usize, SendError> {
        let chunk = chunk.min(CHUNK);
        // The application's own memory is not registered.
        let staged = self.window.tail.load(Relaxed) != 0 || self.is_linked();
        let Some(mut ahead) = source.ahead().filter(|_| !staged) else {
            return self.copy_staged(tx, chunk, source);
        };
        const NONE: Piece = piece(0, 0);
        let mut here: Pack = [NONE; _];
        let (mut n, mut len) = (0, 0);
        while n < PIECES && len < chunk {
            let Some((at, k)) = ahead.next(chunk - len) else { break };
            here[n] = piece(at as u64, k);
            (n, len) = (n + 1, len + k);
        }
        if len == 0 {
            return Ok(0);
        }
        let sum = tx.sum;
        let moved = self.copy_across(tx, &mut here, n, (len, &sum), true)?;
        source.skip(moved);
        Ok(moved)
    }

    /// As `copy_out`, by way of a buffer on the stack. Not inlined: threads with the smallest of
    /// stacks have no room for it, and most sends need none.
    #[inline(never)]
    fn copy_staged(
        self,
        tx: &mut Tx,
        chunk: usize,
        source: &mut impl Source,
    ) -> Result<usize, SendError> {
        const NONE: Piece = piece(0, 0);
        let mut here: Pack = [NONE; _];
        let mut stage = [core::mem::MaybeUninit::<u8>::uninit(); 32 << 10];
        let mut len = 0;
        let mut sum = tx.sum;
        let summed = self.window.tail.load(Relaxed) != 0;
        let chunk = chunk.min(stage.len());
        let unsend = source.ahead().is_some();
        match source.ahead() {
            Some(mut ahead) => {
                while len < chunk {
                    let Some((at, k)) = ahead.next(chunk - len) else { break };
                    if sys::faulty(at) {
                        if len == 0 {
                            return Err(SendError::Source(libc::EFAULT));
                        }
                        break;
                    }
                    let to = stage[len..].as_mut_ptr().cast::<u8>();
                    if summed {
                        // SAFETY: the application vouches for its iovecs as it does towards the
                        // kernel.
                        let from = unsafe { core::slice::from_raw_parts(at, k) };
                        // SAFETY: the stage has room for `k` bytes from `len` on, which need no
                        // value before they are stored to.
                        sum.copy(from, unsafe { core::slice::from_raw_parts_mut(to, k) });
                    } else {
                        // SAFETY: as above.
                        unsafe { core::ptr::copy_nonoverlapping(at, to, k) };
                    }
                    len += k;
                }
            }
            None => {
                len = source.fill(stage.as_mut_ptr().cast(), chunk).map_err(SendError::Source)?;
                if summed {
                    // SAFETY: filled just now.
                    sum.take(unsafe { stage[..len].assume_init_ref() });
                }
            }
        }
        if len == 0 {
            return Ok(0);
        }
        here[0] = piece(stage.as_ptr() as u64, len);
        let moved = self.copy_across(tx, &mut here, 1, (len, &sum), unsend)?;
        source.skip(moved);
        Ok(moved)
    }

    /// The pieces `here[..n]`, of `len` bytes up to which the stream has this sum, and the cursor
    /// behind them; how many bytes count as sent. With `unsend` those that the peer will not read,
    /// because it has taken its ring back meanwhile, do not.
    fn copy_across(
        self,
        tx: &mut Tx,
        here: &mut Pack,
        mut n: usize,
        (len, sum): (usize, &Sum),
        unsend: bool,
    ) -> Result<usize, SendError> {
        let w = self.window;
        let (size, far) = (w.peer_size.load(Relaxed), w.far.load(Relaxed));
        let ring = far + u64::from(HEADER_LEN);
        let first = len.min((size - tx.prod.count().min(size)) as usize);
        let image = header(&w.peer);
        let mut ahead = tx.prod;
        ahead.advance(len as u32, size);
        // Small copies take along how far we have read, for which the lock is needed; it would be
        // held too long otherwise.
        let small = len <= SMALL;
        let words = if small { PROD.1 + CONS.1 } else { PROD.1 };
        let _guard = small.then(|| self.lock().lock());
        image.prod.store(ahead.wire(), SeqCst);
        let at = core::ptr::from_ref(image) as u64;
        let mut there = [piece(0, 0); 5];
        (there[0], there[1]) =
            (piece(ring + u64::from(tx.prod.count()), first), piece(ring, len - first));
        let (mut m, mut whole, mut word) = (2, len + words as usize, 0);
        let recorded = self.of.record(tx, sum, &mut word);
        if let Some(record) = recorded {
            (here[n], there[m]) = record;
            (n, m, whole) = (n + 1, m + 1, whole + 8);
        }
        here[n] = piece(at + u64::from(PROD.0), words as usize);
        there[m] = piece(far + u64::from(PROD.0), words as usize);
        let cpu = self.of.with_bounds(sys::cpu());
        // Whether spinning for us can pay. Seldom told, because we seldom move.
        let moved_to = cpu != tx.cpu;
        if moved_to {
            tx.cpu = cpu;
            image.cpu.store(cpu, Relaxed);
            here[n + 1] = piece(at + u64::from(CPU.0), CPU.1 as usize);
            there[m + 1] = piece(far + u64::from(CPU.0), CPU.1 as usize);
        }
        let more = usize::from(moved_to);
        let copied = match self.write(&here[..=n + more], &there[..=m + more]) {
            Ok(copied) => copied,
            Err(e) => {
                image.prod.store(tx.word, SeqCst);
                // The peer's memory was found to be there: it is the application's that is not.
                let refused = if e == Errno::FAULT { SendError::Source } else { SendError::Device };
                return Err(refused(e.raw_os_error()));
            }
        };
        let whole = copied >= whole;
        if recorded.is_some() {
            if !whole {
                // The process ends at this moment: our own pages are all there.
                image.prod.store(tx.word, SeqCst);
                return Err(SendError::Device(libc::EFAULT));
            }
            tx.sum = *sum;
            tx.records += 1;
        }
        let takeback = &self.of.my().takeback;
        let moved = if whole && unsend {
            takeback::kept(takeback, tx.prod.pos, len)
        } else {
            copied.min(len)
        };
        tx.prod.advance(moved as u32, size);
        if !whole {
            // A page of the application's is missing: what lies before it counts.
            image.prod.store(tx.prod.wire(), SeqCst);
            if copied == 0 || !self.copy_words(&[PROD]) {
                return Err(SendError::Source(libc::EFAULT));
            }
        }
        tx.word = tx.prod.wire();
        self.of.tx.word.store(tx.word, Relaxed);
        Ok(moved)
    }
}
