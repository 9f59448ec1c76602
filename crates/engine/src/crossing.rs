//! The part of a link that crosses from one thread to another: a ring with one producer and one
//! consumer.
//!
//! Each side keeps its own cursor in private memory and publishes it once per batch; what it reads
//! of the other's is checked like a foreign process's ([`Cursor::follow`]), although both sides are
//! ours: one cursor, audited once. Packets cross as handles. Their slots come back through the
//! arena, [`CHUNK`](crate::arena::CHUNK) at a time.
#![allow(unsafe_code)]

use std::sync::OnceLock;

use shm::{CachePadded, Cursor};

use crate::batch::BATCH;
use crate::link::Link;
use crate::packet::Packet;
use crate::sync::{Arc, AtomicU64, Ordering, Place, read, write};

/// Packets that a crossing holds.
pub const CAPACITY: u32 = 1024;

struct Ring<T> {
    prod: CachePadded<AtomicU64>,
    cons: CachePadded<AtomicU64>,
    places: Box<[Place<T>]>,
    /// Where producer and consumer stopped.
    ends: [OnceLock<Cursor>; 2],
}

// SAFETY: values go from one thread to another; who may use a place follows from the cursors.
unsafe impl<T: Send> Send for Ring<T> {}
// SAFETY: as above.
unsafe impl<T: Send> Sync for Ring<T> {}

/// The end that puts in.
pub struct Sender<T = Packet> {
    ring: Arc<Ring<T>>,
    prod: Cursor,
    /// The consumer, when last looked at.
    freed: Cursor,
}

/// The end that takes out.
pub struct Receiver<T = Packet> {
    ring: Arc<Ring<T>>,
    cons: Cursor,
    /// The producer, when last looked at.
    seen: Cursor,
}

/// A new crossing of `size` places.
pub fn crossing<T>(size: u32) -> (Sender<T>, Receiver<T>) {
    let places = (0..size).map(|_| Place::new()).collect();
    let word = || CachePadded::new(AtomicU64::new(Cursor::ZERO.wire()));
    let ring = Arc::new(Ring {
        prod: word(),
        cons: word(),
        places,
        ends: [OnceLock::new(), OnceLock::new()],
    });
    let sender = Sender { ring: ring.clone(), prod: Cursor::ZERO, freed: Cursor::ZERO };
    (sender, Receiver { ring, cons: Cursor::ZERO, seen: Cursor::ZERO })
}

impl<T> Ring<T> {
    fn size(&self) -> u32 {
        self.places.len() as u32
    }

    /// The places from a cursor on, in up to two pieces.
    #[inline(always)]
    fn spans(&self, at: &Cursor, count: u32) -> [&[Place<T>]; 2] {
        let (before, behind) = self.places.split_at(at.count() as usize);
        let first = (count as usize).min(behind.len());
        [&behind[..first], &before[..count as usize - first]]
    }
}

impl<T> Sender<T> {
    /// Places that are free, once `wanted` or all.
    #[inline]
    pub fn room(&mut self, wanted: u32) -> u32 {
        let size = self.ring.size();
        let used = (self.prod.pos - self.freed.pos) as u32;
        if size - used >= wanted {
            return size - used;
        }
        // SYNC: crossing.cons. The consumer is done with the places.
        let word = self.ring.cons.load(Ordering::Acquire);
        // Ours is the only word there; a violation would mean damaged memory, and then nothing is
        // free.
        let freed = self.freed.follow(word, size, used).unwrap_or(0);
        size - used + freed
    }

    /// Puts `count` values in.
    ///
    /// # Safety
    /// [`Self::room`] found as many, and `from` is valid for reads of `count` values, which the
    /// caller forgets.
    #[inline]
    pub unsafe fn put(&mut self, from: *const T, count: u32) {
        let [first, rest] = self.ring.spans(&self.prod, count);
        // SAFETY: these places are free until the cursor below is published.
        unsafe { write(first, from) };
        // SAFETY: as above, after the end of the ring.
        unsafe { write(rest, from.wrapping_add(first.len())) };
        self.prod.advance(count, self.ring.size());
    }

    /// Lets the consumer see what was put in.
    #[inline]
    pub fn publish(&mut self) {
        // SYNC: crossing.prod. The values come first.
        self.ring.prod.store(self.prod.wire(), Ordering::Release);
    }
}

impl<T> Receiver<T> {
    /// Values that wait; looks for new ones if there are none.
    #[inline]
    pub fn waiting(&mut self) -> u32 {
        let held = (self.seen.pos - self.cons.pos) as u32;
        if held != 0 {
            return held;
        }
        let size = self.ring.size();
        // SYNC: crossing.prod.
        let word = self.ring.prod.load(Ordering::Acquire);
        self.seen.follow(word, size, size - held).unwrap_or(0)
    }

    /// Hands `count` of the waiting values to `take`, in up to two pieces, and forgets them.
    ///
    /// # Safety
    /// [`Self::waiting`] found as many; `take` moves each value out exactly once.
    #[inline]
    pub unsafe fn take(&mut self, count: u32, mut take: impl FnMut(*const T, usize)) {
        for span in self.ring.spans(&self.cons, count) {
            // SAFETY: values lie between the cursors, and the producer stays out until the cursor
            // below is published.
            unsafe { read(span, |values| take(values, span.len())) };
        }
        self.cons.advance(count, self.ring.size());
        // SYNC: crossing.cons. The places were read before.
        self.ring.cons.store(self.cons.wire(), Ordering::Release);
    }
}

impl Sender {
    /// Moves what waits on a link across, as much as there is room for.
    #[inline]
    pub(crate) fn send_from(&mut self, link: &Link) -> usize {
        if link.is_empty() {
            return 0;
        }
        let wanted = link.length();
        let count = wanted.min(self.room(wanted as u32) as usize);
        // SAFETY: there is room for `count` in all; the link forgets what it hands out.
        link.drain(count, |packets, some| unsafe { self.put(packets, some as u32) });
        self.publish();
        count
    }
}

impl Receiver {
    /// Whether all that was sent was taken out.
    pub(crate) fn is_empty(&self) -> bool {
        // SYNC: crossing.prod.
        self.ring.prod.load(Ordering::Acquire) == self.cons.wire()
    }

    /// Moves up to a batch of what came across to a link, and never more than fits.
    #[inline]
    pub(crate) fn receive_into(&mut self, link: &Link) -> usize {
        let count = (self.waiting() as usize).min(link.room()).min(BATCH);
        if count > 0 {
            // SAFETY: so many wait; the link takes each over.
            unsafe { self.take(count as u32, |packets, some| link.put(packets, some)) };
        }
        count
    }
}

impl<T> Drop for Sender<T> {
    fn drop(&mut self) {
        let _ = self.ring.ends[0].set(self.prod);
    }
}

impl<T> Drop for Receiver<T> {
    fn drop(&mut self) {
        let _ = self.ring.ends[1].set(self.cons);
    }
}

impl<T> Drop for Ring<T> {
    /// Drops what was sent and never received, once both ends have said where they stopped.
    fn drop(&mut self) {
        if let [Some(prod), Some(cons)] = self.ends.each_ref().map(|end| end.get()) {
            for span in self.spans(cons, (prod.pos - cons.pos) as u32) {
                // SAFETY: values lie between the cursors, and nobody else has the ring any more.
                unsafe {
                    read(span, |values| (0..span.len()).for_each(|i| drop(values.add(i).read())))
                };
            }
        }
    }
}
