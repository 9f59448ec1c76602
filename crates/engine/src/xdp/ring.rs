//! One end of a ring shared with the kernel: fill and transmit rings are produced here, receive and
//! completion rings consumed.
//!
//! Invariant: an index of ours is never more than the ring's size ahead of the kernel's, and every
//! access to an entry goes through `mask`, so that no value that the kernel could leave there leads
//! outside of the mapping.
#![allow(unsafe_code)]

use std::io;
use std::marker::PhantomData;
use std::os::fd::BorrowedFd;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU32, Ordering};

use rustix::mm::{MapFlags, ProtFlags, mmap, munmap};
use rustix::net::xdp::XdpRingOffset;

/// `XDP_RING_NEED_WAKEUP`.
const NEED_WAKEUP: u32 = 1;

/// The kernel's rings, by their place in the socket's file.
#[derive(Clone, Copy, Debug)]
#[repr(u64)]
pub enum Kind {
    Receive = 0,
    Transmit = 0x8000_0000,
    Fill = 0x1_0000_0000,
    Completion = 0x1_8000_0000,
}

/// What a ring's entries can be.
///
/// # Safety
/// Any bit pattern is a valid value: the kernel writes them.
pub unsafe trait Entry: Copy + Default {}
// SAFETY: an integer.
unsafe impl Entry for u64 {}
// SAFETY: integers only.
unsafe impl Entry for super::socket::Descriptor {}

/// The mapping of one ring.
#[derive(Debug)]
struct Mapping<T> {
    base: NonNull<u8>,
    length: usize,
    offsets: XdpRingOffset,
    mask: u32,
    entries: PhantomData<T>,
}

// SAFETY: the mapping belongs to the process, and its owner reaches it through `&mut` only.
unsafe impl<T> Send for Mapping<T> {}

impl<T: Entry> Mapping<T> {
    fn new(socket: BorrowedFd, kind: Kind, offsets: XdpRingOffset, size: u32) -> io::Result<Self> {
        let length = offsets.desc as usize + size as usize * size_of::<T>();
        let (protection, flags) =
            (ProtFlags::READ | ProtFlags::WRITE, MapFlags::SHARED | MapFlags::POPULATE);
        // SAFETY: a new mapping at an address of the kernel's choice.
        let base =
            unsafe { mmap(std::ptr::null_mut(), length, protection, flags, socket, kind as u64)? };
        let base = NonNull::new(base.cast()).ok_or(io::ErrorKind::OutOfMemory)?;
        Ok(Mapping { base, length, offsets, mask: size - 1, entries: PhantomData })
    }

    fn word(&self, offset: u64) -> &AtomicU32 {
        // SAFETY: the kernel's own offset within the mapping, aligned, and only ever touched as an
        // atomic by both sides.
        unsafe { self.base.add(offset as usize).cast::<AtomicU32>().as_ref() }
    }

    fn producer(&self) -> &AtomicU32 {
        self.word(self.offsets.producer)
    }

    fn consumer(&self) -> &AtomicU32 {
        self.word(self.offsets.consumer)
    }

    /// None without flags (Linux before 5.4).
    fn needs_wakeup(&self) -> Option<bool> {
        let flags = self.offsets.flags?;
        Some(self.word(flags).load(Ordering::Relaxed) & NEED_WAKEUP != 0)
    }

    fn entry(&self, index: u32) -> NonNull<T> {
        // SAFETY: the masked index is below the ring's size, for which `length` has room.
        unsafe {
            self.base.add(self.offsets.desc as usize).cast::<T>().add((index & self.mask) as usize)
        }
    }
}

impl<T> Drop for Mapping<T> {
    fn drop(&mut self) {
        // SAFETY: our own mapping, to which no reference outlives `self`.
        let _ = unsafe { munmap(self.base.as_ptr().cast(), self.length) };
    }
}

/// The producing end: fill and transmit rings.
#[derive(Debug)]
pub struct Producer<T: Entry> {
    ring: Mapping<T>,
    /// Next entry to write; entries up to here are written, those up to `published` are told to the
    /// kernel.
    next: u32,
    published: u32,
    /// The kernel's position when last looked at.
    consumed: u32,
}

impl<T: Entry> Producer<T> {
    pub fn new(
        socket: BorrowedFd,
        kind: Kind,
        offsets: XdpRingOffset,
        size: u32,
    ) -> io::Result<Self> {
        let ring = Mapping::new(socket, kind, offsets, size)?;
        let next = ring.producer().load(Ordering::Relaxed);
        let consumed = ring.consumer().load(Ordering::Relaxed);
        Ok(Producer { ring, next, published: next, consumed })
    }

    pub fn size(&self) -> u32 {
        self.ring.mask + 1
    }

    /// Free entries, at least `wanted` if there are so many. Looks at the kernel's position only
    /// when it must: the line that it is on is written by another processor.
    #[inline]
    pub fn free(&mut self, wanted: u32) -> u32 {
        let known = self.size().saturating_sub(self.next.wrapping_sub(self.consumed));
        if known >= wanted {
            return known;
        }
        // SYNC: entry taken. The kernel has read an entry before it moves its position past it.
        self.consumed = self.ring.consumer().load(Ordering::Acquire);
        self.size().saturating_sub(self.next.wrapping_sub(self.consumed))
    }

    /// Entries that the kernel has not taken yet.
    #[inline]
    pub fn pending(&self) -> u32 {
        self.published.wrapping_sub(self.ring.consumer().load(Ordering::Acquire))
    }

    /// Writes the next entry; the caller has asked [`Self::free`].
    #[inline]
    pub fn push(&mut self, value: T) {
        debug_assert!(self.next.wrapping_sub(self.consumed) < self.size());
        let entry = self.ring.entry(self.next);
        // SAFETY: within the mapping, aligned as the kernel aligns it; the kernel does not read it
        // before `publish`.
        unsafe { entry.write(value) };
        self.next = self.next.wrapping_add(1);
    }

    /// Tells the kernel of all entries written.
    #[inline]
    pub fn publish(&mut self) {
        if self.published != self.next {
            // SYNC: entry written. The kernel's acquire of the producer position sees the entries
            // behind it.
            self.ring.producer().store(self.next, Ordering::Release);
            self.published = self.next;
        }
    }

    /// Whether the kernel will not look at the ring by itself; None if it does not tell.
    ///
    /// SYNC: wakeup. Nothing orders this look behind `publish`, nor the kernel's look at the ring
    /// behind what it says here: each may miss the other once. So whoever has entries pending looks
    /// again in every breath.
    #[inline]
    pub fn needs_wakeup(&self) -> Option<bool> {
        self.ring.needs_wakeup()
    }
}

/// The consuming end: receive and completion rings.
#[derive(Debug)]
pub struct Consumer<T: Entry> {
    ring: Mapping<T>,
    next: u32,
    /// The kernel's position when last looked at.
    produced: u32,
}

impl<T: Entry> Consumer<T> {
    pub fn new(
        socket: BorrowedFd,
        kind: Kind,
        offsets: XdpRingOffset,
        size: u32,
    ) -> io::Result<Self> {
        let ring = Mapping::new(socket, kind, offsets, size)?;
        let next = ring.consumer().load(Ordering::Relaxed);
        Ok(Consumer { ring, next, produced: next })
    }

    /// Entries that can be taken, looking at the kernel's position only if fewer than `wanted` are
    /// known of.
    #[inline]
    pub fn available(&mut self, wanted: u32) -> u32 {
        let known = self.produced.wrapping_sub(self.next);
        if known >= wanted {
            return known;
        }
        // SYNC: entry written. The kernel's release of its producer position comes after the
        // entries.
        self.produced = self.ring.producer().load(Ordering::Acquire);
        // A ring never holds more than its size.
        self.produced.wrapping_sub(self.next).min(self.ring.mask + 1)
    }

    /// The next entry; the caller has asked [`Self::available`].
    #[inline]
    pub fn pop(&mut self) -> T {
        let entry = self.ring.entry(self.next);
        self.next = self.next.wrapping_add(1);
        // SAFETY: within the mapping, any bits are valid; the kernel does not write it again before
        // `release`.
        unsafe { entry.read() }
    }

    /// The entry `ahead` of the next one, to warm caches with; it need not be available.
    #[inline]
    pub fn peek(&self, ahead: u32) -> T {
        // SAFETY: within the mapping, any bits are valid. An entry that the kernel writes at this
        // moment may be read torn, which a hint to the cache can stand.
        unsafe { self.ring.entry(self.next.wrapping_add(ahead)).read_volatile() }
    }

    /// Gives all taken entries back to the kernel.
    #[inline]
    pub fn release(&mut self) {
        // SYNC: entry taken. The kernel's acquire of the consumer position comes after our reads.
        self.ring.consumer().store(self.next, Ordering::Release);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Both ends over ordinary memory: a test plays the kernel.
    fn ends(size: u32, start: u32) -> (Producer<u64>, Consumer<u64>) {
        let length = 4096 + size as usize * 8;
        let file = rustix::fs::memfd_create(c"ring", rustix::fs::MemfdFlags::CLOEXEC).unwrap();
        rustix::fs::ftruncate(&file, length as u64).unwrap();
        let offsets = XdpRingOffset {
            producer: 0,
            consumer: 64,
            desc: 128,
            flags: Some(192 + u64::from(size) * 8),
        };
        use std::os::fd::AsFd;
        let first: Mapping<u64> = Mapping::new(file.as_fd(), Kind::Receive, offsets, size).unwrap();
        first.producer().store(start, Ordering::Relaxed);
        first.consumer().store(start, Ordering::Relaxed);
        let producer = Producer::new(file.as_fd(), Kind::Receive, offsets, size).unwrap();
        (producer, Consumer::new(file.as_fd(), Kind::Receive, offsets, size).unwrap())
    }

    #[test]
    fn entries_arrive_in_order_across_the_wrap() {
        for start in [0, 5, u32::MAX - 3] {
            let (mut producer, mut consumer) = ends(8, start);
            let (mut sent, mut seen) = (0u64, 0u64);
            for round in 0..100 {
                let room = producer.free(8);
                for _ in 0..room.min(round % 9) {
                    producer.push(sent);
                    sent += 1;
                }
                let before = consumer.available(8);
                producer.publish();
                let there = consumer.available(8);
                assert!(there >= before && there <= 8);
                assert_eq!(u64::from(there), sent - seen);
                assert_eq!(producer.pending(), there);
                for _ in 0..there.min(round % 5) {
                    assert_eq!(consumer.pop(), seen);
                    seen += 1;
                }
                consumer.release();
            }
            assert!(seen > 100);
        }
    }

    #[test]
    fn a_full_ring_has_no_room_until_released() {
        let (mut producer, mut consumer) = ends(4, u32::MAX - 1);
        assert_eq!(producer.free(4), 4);
        (0..4).for_each(|i| producer.push(i));
        producer.publish();
        assert_eq!(producer.free(1), 0);
        assert_eq!(consumer.available(1), 4);
        assert_eq!(consumer.pop(), 0);
        assert_eq!(producer.free(1), 0);
        consumer.release();
        assert_eq!(producer.free(1), 1);
    }
}
