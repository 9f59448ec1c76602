//! A link: the bounded queue between an output and an input of two apps of one thread.
//!
//! A full link drops and counts; there is no back pressure but [`Link::room`]. Whole batches are
//! moved at once. A link that was emptied starts again at its first place, so that a link whose
//! reader keeps up stays within a few lines of the first-level cache.
//!
//! All methods take `&self`: an app holds its input and its output at once, and these may be one
//! link. None of them calls foreign code while the cursors are in motion.
#![allow(unsafe_code)]

use std::cell::Cell;
use std::mem::MaybeUninit;

use crate::batch::{Batch, free_all};
use crate::packet::Packet;
use crate::pool;

/// Packets that a link holds.
pub const CAPACITY: usize = 1024;
const MASK: u32 = CAPACITY as u32 - 1;
/// From here on the cursors of a link that is never emptied go back, so that they never run over:
/// packets would be counted wrong.
const FAR: u32 = 1 << 30;

/// What passed a link. `tx` is what was sent into it, `rx` what was taken out.
#[repr(C)]
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct LinkStats {
    /// Packets that were put in.
    pub txpackets: u64,
    /// Their bytes.
    pub txbytes: u64,
    /// Packets that found it full.
    pub txdrop: u64,
    /// Packets that were taken out.
    pub rxpackets: u64,
    /// Their bytes.
    pub rxbytes: u64,
}

/// A queue of packets within one thread. Scripts reach it by this layout:
///
/// ```c
/// struct link {
///     uint32_t read, write;    // the place is the low ten bits; both 0 whenever the link was emptied
///     uint64_t before;         // packets that were sent and received before the cursors last went back
///     uint64_t txbytes, txdrop;
///     struct packet *ring;     // 1024 places
/// };
/// ```
///
/// Packets are counted by the cursors, and bytes that were taken out are those that were sent
/// without those that wait: so nothing is counted twice where each packet passes by itself.
#[repr(C)]
pub struct Link {
    read: Cell<u32>,
    write: Cell<u32>,
    before: Cell<u64>,
    txbytes: Cell<u64>,
    txdrop: Cell<u64>,
    ring: Box<[Cell<MaybeUninit<Packet>>; CAPACITY]>,
}

impl Default for Link {
    fn default() -> Self {
        Self::new()
    }
}

impl Link {
    /// An empty link of [`CAPACITY`] places.
    pub fn new() -> Self {
        let ring = (0..CAPACITY).map(|_| Cell::new(MaybeUninit::uninit())).collect::<Box<[_]>>();
        let Ok(ring) = ring.try_into() else { unreachable!("collected from CAPACITY places") };
        Self {
            read: Cell::new(0),
            write: Cell::new(0),
            before: Cell::new(0),
            txbytes: Cell::new(0),
            txdrop: Cell::new(0),
            ring,
        }
    }

    /// Packets waiting.
    #[inline]
    pub fn length(&self) -> usize {
        self.write.get().wrapping_sub(self.read.get()) as usize
    }

    /// No packet waits.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.read.get() == self.write.get()
    }

    /// Places left.
    #[inline]
    pub fn room(&self) -> usize {
        CAPACITY - self.length()
    }

    /// The next packet would be dropped.
    #[inline]
    pub fn is_full(&self) -> bool {
        self.room() == 0
    }

    /// What went through it since it was made. Looks at each packet that waits.
    pub fn stats(&self) -> LinkStats {
        let (first, rest) = self.spans(self.read.get(), self.length());
        let txbytes = self.txbytes.get();
        LinkStats {
            txpackets: self.sent(),
            txbytes,
            txdrop: self.dropped(),
            rxpackets: self.received(),
            // A script may have changed the length of one that waits.
            rxbytes: txbytes.saturating_sub(self.bytes_waiting(first, rest)),
        }
    }

    /// Packets that were put in.
    #[inline]
    pub fn sent(&self) -> u64 {
        self.before.get() + u64::from(self.write.get())
    }

    /// Packets that were taken out.
    #[inline]
    pub fn received(&self) -> u64 {
        self.before.get() + u64::from(self.read.get())
    }

    /// Packets that found it full.
    #[inline]
    pub fn dropped(&self) -> u64 {
        self.txdrop.get()
    }

    /// Sends one packet. A batch costs less per packet: [`Self::transmit_batch`].
    #[inline]
    pub fn transmit(&self, packet: Packet) {
        if self.is_full() {
            return self.drop_more(1);
        }
        let bytes = packet.length() as u64;
        self.ring[(self.write.get() & MASK) as usize].set(MaybeUninit::new(packet));
        self.wrote(1, bytes);
    }

    /// Takes the packet that waits longest.
    #[inline]
    pub fn receive(&self) -> Option<Packet> {
        if self.is_empty() {
            return None;
        }
        let place = &self.ring[(self.read.get() & MASK) as usize];
        // SAFETY: between the cursors are packets; the cursor moves on below.
        let packet = unsafe { place.replace(MaybeUninit::uninit()).assume_init() };
        self.consumed(1);
        Some(packet)
    }

    /// Sends all packets of the batch, which is empty afterwards.
    #[inline]
    pub fn transmit_batch(&self, batch: &mut Batch) {
        let count = batch.len();
        // SAFETY: `count` packets, which the batch forgets in the next line.
        unsafe { self.put(batch.as_ptr(), count) };
        // SAFETY: an empty batch.
        unsafe { batch.set_length(0) };
    }

    /// Moves waiting packets to the end of the batch, as many as it takes.
    #[inline]
    pub fn receive_batch(&self, batch: &mut Batch) -> usize {
        let count = self.length().min(batch.room());
        let mut spare = batch.spare();
        // SAFETY: each packet is moved once, to free places of the batch, of which there are
        // `count`.
        self.drain(count, |packets, some| unsafe {
            spare.copy_from_nonoverlapping(packets, some);
            spare = spare.add(some);
        });
        let length = batch.len() + count;
        // SAFETY: written above.
        unsafe { batch.set_length(length) };
        count
    }

    /// Moves up to `most` waiting packets to another link, the fastest way through an app that
    /// looks at none of them.
    #[inline]
    pub fn forward(&self, to: &Link, most: usize) -> usize {
        let count = self.length().min(most);
        if std::ptr::eq(self, to) {
            return self.forward_to_itself(count);
        }
        // SAFETY: `drain` hands out packets that this link forgets, outside of the other link's
        // ring.
        self.drain(count, |packets, some| unsafe { to.put(packets, some) });
        count
    }

    /// Frees all waiting packets.
    #[inline]
    pub fn discard(&self) -> usize {
        let count = self.length();
        self.drain(count, |packets, some| {
            // SAFETY: `drain` hands out packets that this link forgets.
            unsafe { free_all(packets, some) };
        });
        count
    }

    /// Hands the first `count` of the waiting packets to `take`, in one or two pieces, and forgets
    /// them. `take` must move each packet out exactly once, must not touch this link and must not
    /// panic.
    #[inline(always)]
    pub(crate) fn drain(&self, count: usize, mut take: impl FnMut(*const Packet, usize)) {
        let (first, rest) = self.spans(self.read.get(), count);
        take(self.place(self.read.get()), first);
        if rest != 0 {
            take(self.place(0), rest);
        }
        self.consumed(count);
    }

    /// Shows the last `count` of the waiting packets, or all. `see` must not touch this link.
    #[cold]
    pub(crate) fn each_of_last(&self, count: usize, mut see: impl FnMut(&Packet)) {
        let count = count.min(self.length());
        for back in (1..=count as u32).rev() {
            let place = self.place(self.write.get().wrapping_sub(back));
            // SAFETY: a packet waits there, and stays while it is looked at.
            see(unsafe { &*place });
        }
    }

    #[cold]
    fn bytes_waiting(&self, first: usize, rest: usize) -> u64 {
        // SAFETY: that many packets wait; nothing moves while they are looked at.
        let first = unsafe { std::slice::from_raw_parts(self.place(self.read.get()), first) };
        // SAFETY: as above, from the start of the ring on.
        let rest = unsafe { std::slice::from_raw_parts(self.place(0), rest) };
        bytes_of(first) + bytes_of(rest)
    }

    #[cold]
    fn forward_to_itself(&self, count: usize) -> usize {
        for _ in 0..count {
            if let Some(packet) = self.receive() {
                self.transmit(packet);
            }
        }
        count
    }

    /// Sends `count` copies of a packet, fewer when the packets or the places run out. Drops
    /// nothing. Returns how many.
    #[inline]
    pub fn transmit_copies(&self, original: &Packet, count: usize) -> usize {
        let count = count.min(self.room());
        let done = pool::with(|pool| {
            let mut done = 0;
            while done < count {
                let ready = pool.ready((count - done).min(crate::arena::CHUNK));
                if ready == 0 {
                    break;
                }
                let write = self.write.get();
                let copy = |slot| {
                    let place = self.place(write.wrapping_add(done as u32)).cast_mut();
                    // SAFETY: a free place of the ring and a slot just taken.
                    unsafe { place.write(original.copy_to(slot)) };
                    done += 1;
                };
                // SAFETY: `ready` slots are.
                unsafe { pool.take_each(ready, copy) };
            }
            done
        });
        let done = done.unwrap_or(0);
        self.wrote(done, done as u64 * original.length() as u64);
        done
    }

    /// Sends a copy of each packet. Copies that find no place are counted as dropped and never
    /// made; the same holds when all packets are in use.
    pub fn transmit_copies_of(&self, originals: &[Packet]) -> usize {
        let count = originals.len().min(self.room());
        let mut bytes = 0;
        let done = pool::with(|pool| {
            let mut done = 0;
            for originals in originals[..count].chunks(crate::arena::CHUNK) {
                let ready = pool.ready(originals.len());
                let (write, mut originals) = (self.write.get(), originals[..ready].iter());
                let copy = |slot| {
                    let Some(original) = originals.next() else { return };
                    let place = self.place(write.wrapping_add(done as u32)).cast_mut();
                    // SAFETY: a free place of the ring and a slot just taken.
                    unsafe { place.write(original.copy_to(slot)) };
                    bytes += original.length() as u64;
                    done += 1;
                };
                // SAFETY: `ready` slots are, one for each original.
                unsafe { pool.take_each(ready, copy) };
            }
            done
        });
        let done = done.unwrap_or(0);
        self.wrote(done, bytes);
        self.drop_more(originals.len() - done);
        done
    }

    #[inline]
    fn drop_more(&self, packets: usize) {
        self.txdrop.set(self.txdrop.get() + packets as u64);
    }

    /// Takes `count` packets over; those without a place are freed and counted.
    ///
    /// # Safety
    /// `packets` is valid for reads of `count` packets outside of this ring, which the caller
    /// forgets.
    #[inline]
    pub(crate) unsafe fn put(&self, packets: *const Packet, count: usize) {
        let fitting = count.min(self.room());
        let (first, rest) = self.spans(self.write.get(), fitting);
        // SAFETY: the places from the write cursor on are free, and the ring is reached through
        // cells only.
        unsafe { self.place(self.write.get()).cast_mut().copy_from_nonoverlapping(packets, first) };
        // SAFETY: as above, from the start of the ring on.
        unsafe { self.place(0).cast_mut().copy_from_nonoverlapping(packets.add(first), rest) };
        let mut bytes = 0;
        for i in 0..fitting {
            // SAFETY: still readable; only the length is looked at.
            bytes += unsafe { &*packets.add(i) }.length() as u64;
        }
        self.wrote(fitting, bytes);
        if fitting < count {
            // SAFETY: the packets that found no place.
            unsafe { self.overflow(packets.add(fitting), count - fitting) };
        }
    }

    /// # Safety
    /// As [`free_all`].
    #[cold]
    unsafe fn overflow(&self, packets: *const Packet, count: usize) {
        // SAFETY: the caller's.
        unsafe { free_all(packets, count) };
        self.drop_more(count);
    }

    /// Moves the write cursor over packets that were put into free places.
    #[inline(always)]
    fn wrote(&self, packets: usize, bytes: u64) {
        self.write.set(self.write.get() + packets as u32);
        self.txbytes.set(self.txbytes.get() + bytes);
    }

    /// Moves the read cursor.
    #[inline(always)]
    fn consumed(&self, packets: usize) {
        let read = self.read.get() + packets as u32;
        if read == self.write.get() {
            self.before.set(self.before.get() + u64::from(read));
            self.read.set(0);
            self.write.set(0);
        } else if read < FAR {
            self.read.set(read);
        } else {
            self.go_back(read);
        }
    }

    /// Both cursors go back by a whole number of rings, which leaves each packet at its place.
    #[cold]
    fn go_back(&self, read: u32) {
        let rings = read & !MASK;
        self.before.set(self.before.get() + u64::from(rings));
        self.read.set(read - rings);
        self.write.set(self.write.get() - rings);
    }

    #[inline(always)]
    fn place(&self, cursor: u32) -> *const Packet {
        self.ring.as_ptr().wrapping_add((cursor & MASK) as usize).cast()
    }

    /// How many of `count` places lie from `cursor` to the end of the ring, and how many at its
    /// start.
    #[inline(always)]
    fn spans(&self, cursor: u32, count: usize) -> (usize, usize) {
        let first = count.min(CAPACITY - (cursor & MASK) as usize);
        (first, count - first)
    }
}

/// Sum of the lengths.
#[inline]
pub fn bytes_of(packets: &[Packet]) -> u64 {
    packets.iter().map(|packet| packet.length() as u64).sum()
}

impl Drop for Link {
    fn drop(&mut self) {
        self.discard();
    }
}

const _: () = assert!(
    size_of::<Link>() == 40
        && std::mem::offset_of!(Link, write) == 4
        && std::mem::offset_of!(Link, before) == 8
        && std::mem::offset_of!(Link, txbytes) == 16
        && std::mem::offset_of!(Link, txdrop) == 24
        && std::mem::offset_of!(Link, ring) == 32
);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cursors_of_a_link_that_is_never_emptied_go_back() {
        let link = Link::new();
        let packet = || Packet::from_slice(&[0; 60]).unwrap();
        // As if so many had passed.
        link.read.set(FAR - CAPACITY as u32);
        link.write.set(FAR - CAPACITY as u32);
        link.before.set(7);
        link.txbytes.set(60 * link.sent());
        link.transmit(packet());
        for _ in 0..2 * CAPACITY {
            link.transmit(packet());
            assert_eq!(link.receive().map(|packet| packet.length()), Some(60));
            assert!(link.length() == 1 && link.read.get() <= FAR);
        }
        let sent = 7 + u64::from(FAR) + CAPACITY as u64 + 1;
        let stats = link.stats();
        assert_eq!((stats.txpackets, stats.rxpackets, stats.txdrop), (sent, sent - 1, 0));
        assert_eq!(stats.txbytes - stats.rxbytes, 60);
        assert!(link.read.get() < 2 * CAPACITY as u32);
    }
}
