//! Two byte rings in one shared mapping, one each way. Cursors count bytes and never wrap; each end
//! keeps its own cursor privately and publishes it once per piece. No protection against a bad
//! peer: both ends are this program.
#![allow(unsafe_code)]

use std::cell::Cell;
use std::io;
use std::os::fd::AsFd;
use std::ptr::{NonNull, null_mut};
use std::sync::atomic::{AtomicU64, Ordering};

use rustix::mm::{MapFlags, ProtFlags, mmap, munmap};

const PAGE: usize = 4096;
/// Far enough apart that neither hardware prefetching nor false sharing joins them.
const LINE_PAIR: usize = 128;

pub struct Rings {
    base: NonNull<u8>,
    length: usize,
    pub there: Ring,
    pub back: Ring,
}

/// One direction. A process uses one end of it: push or pop.
pub struct Ring {
    written: NonNull<AtomicU64>,
    read: NonNull<AtomicU64>,
    data: NonNull<u8>,
    capacity: usize,
    mine: Cell<u64>,
    theirs: Cell<u64>,
}

impl Rings {
    /// One page of cursors, then both rings.
    pub fn bytes(capacity: usize) -> u64 {
        (PAGE + 2 * capacity) as u64
    }

    pub fn map(memory: impl AsFd, capacity: usize) -> io::Result<Rings> {
        let length = Rings::bytes(capacity) as usize;
        let access = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: a fresh mapping at an address the kernel chooses touches no existing memory.
        let base = unsafe {
            mmap(null_mut(), length, access, MapFlags::SHARED | MapFlags::POPULATE, memory, 0)?
        };
        let base = NonNull::new(base.cast::<u8>()).ok_or(io::ErrorKind::OutOfMemory)?;
        // SAFETY: all offsets lie within the `length` bytes just mapped; cursor lines are aligned
        // within the first page.
        let ring = |cursors: usize, data: usize| unsafe {
            Ring {
                written: base.add(cursors).cast(),
                read: base.add(cursors + LINE_PAIR).cast(),
                data: base.add(data),
                capacity,
                mine: Cell::new(0),
                theirs: Cell::new(0),
            }
        };
        let (there, back) = (ring(0, PAGE), ring(2 * LINE_PAIR, PAGE + capacity));
        Ok(Rings { base, length, there, back })
    }

    fn stop_word(&self) -> &AtomicU64 {
        // SAFETY: the word lies in the first page of the live mapping, is aligned, and only ever
        // accessed atomically.
        unsafe { self.base.add(4 * LINE_PAIR).cast::<AtomicU64>().as_ref() }
    }

    pub fn finish(&self) {
        self.stop_word().store(1, Ordering::Release);
    }

    pub fn finished(&self) -> bool {
        self.stop_word().load(Ordering::Acquire) != 0
    }
}

impl Drop for Rings {
    fn drop(&mut self) {
        // SAFETY: exactly the mapping made in `map`; the rings that point into it go away with
        // `self`.
        let _ = unsafe { munmap(self.base.as_ptr().cast(), self.length) };
    }
}

impl Ring {
    /// Copies all of `bytes` in, making them visible in pieces; `false` if `stop` said so first.
    pub fn push(&self, bytes: &[u8], piece: usize, mut stop: impl FnMut() -> bool) -> bool {
        for part in bytes.chunks(piece.min(self.capacity / 2)) {
            let start = self.mine.get();
            let enough = start + part.len() as u64 - self.theirs.get() <= self.capacity as u64
                || spin(&mut stop, || {
                    // SYNC: pairs with the release in pop: the reader is done with the bytes below
                    // this cursor.
                    self.theirs.set(self.cursor(self.read).load(Ordering::Acquire));
                    start + part.len() as u64 - self.theirs.get() <= self.capacity as u64
                });
            if !enough {
                return false;
            }
            let offset = start as usize & (self.capacity - 1);
            let first = part.len().min(self.capacity - offset);
            // SAFETY: both pieces lie in the ring, and the reader does not touch free space.
            unsafe {
                self.data
                    .add(offset)
                    .copy_from_nonoverlapping(NonNull::from(&part[..first]).cast(), first);
                self.data.copy_from_nonoverlapping(
                    NonNull::from(&part[first..]).cast(),
                    part.len() - first,
                );
            }
            self.mine.set(start + part.len() as u64);
            // SYNC: publishes the bytes above; pairs with the acquire in pop.
            self.cursor(self.written).store(self.mine.get(), Ordering::Release);
        }
        true
    }

    /// Fills `buffer`; `false` if `stop` said so first.
    pub fn pop(&self, buffer: &mut [u8], mut stop: impl FnMut() -> bool) -> bool {
        let mut filled = 0;
        while filled < buffer.len() {
            let start = self.mine.get();
            let some = self.theirs.get() > start
                || spin(&mut stop, || {
                    // SYNC: pairs with the release in push: the bytes below this cursor are there.
                    self.theirs.set(self.cursor(self.written).load(Ordering::Acquire));
                    self.theirs.get() > start
                });
            if !some {
                return false;
            }
            let count = ((self.theirs.get() - start) as usize).min(buffer.len() - filled);
            let offset = start as usize & (self.capacity - 1);
            let first = count.min(self.capacity - offset);
            let target = &mut buffer[filled..filled + count];
            // SAFETY: both pieces lie in the ring below the writer's cursor, which the writer
            // leaves alone until we release.
            unsafe {
                self.data
                    .add(offset)
                    .copy_to_nonoverlapping(NonNull::from(&mut target[..first]).cast(), first);
                self.data.copy_to_nonoverlapping(
                    NonNull::from(&mut target[first..]).cast(),
                    count - first,
                );
            }
            filled += count;
            self.mine.set(start + count as u64);
            // SYNC: gives the space back; pairs with the acquire in push.
            self.cursor(self.read).store(self.mine.get(), Ordering::Release);
        }
        true
    }

    /// The writer's way to know that everything has been received.
    pub fn wait_until_empty(&self, mut stop: impl FnMut() -> bool) {
        spin(&mut stop, || self.cursor(self.read).load(Ordering::Acquire) == self.mine.get());
    }

    fn cursor(&self, at: NonNull<AtomicU64>) -> &AtomicU64 {
        // SAFETY: `Rings::map` made the pointer, aligned and inside the mapping that outlives this
        // ring's use.
        unsafe { at.as_ref() }
    }
}

/// Spins until `ready`. Looks at `stop` rarely, and then gives up the cpu once: both ends may share
/// a single one.
fn spin(stop: &mut impl FnMut() -> bool, mut ready: impl FnMut() -> bool) -> bool {
    loop {
        for _ in 0..20_000 {
            if ready() {
                return true;
            }
            std::hint::spin_loop();
        }
        if stop() {
            return ready();
        }
        std::thread::yield_now();
    }
}
