//! The device's side of a split virtqueue: virtio 1.2 section 2.7.
#![allow(unsafe_code)]

use std::ptr::NonNull;
use std::sync::atomic::{AtomicU16, Ordering, fence};

use super::memory::Memory;
use crate::apps::peer::bell::Bell;
use crate::apps::peer::{Broken, MOST_PIECES};

const NEXT: u16 = 1;
const WRITE: u16 = 2;
/// In `avail.flags`: the driver looks by itself.
const NO_INTERRUPT: u16 = 1;
/// In `used.flags`: the device looks by itself, which we do.
const NO_NOTIFY: u16 = 1;
/// Bytes of an entry of the table of descriptors, and of the used ring.
const DESCRIPTOR: usize = 16;
const USED: usize = 8;
/// Most entries: virtio 1.2 section 2.7.
pub const LARGEST: u32 = 32768;

/// A piece of a packet's place in the guest.
#[derive(Debug, Clone, Copy)]
pub struct Piece {
    pub at: NonNull<u8>,
    pub length: usize,
}

/// Addresses of the three parts in the emulator.
#[derive(Debug, Clone, Copy)]
pub struct Addresses {
    pub descriptors: u64,
    pub available: u64,
    pub used: u64,
}

/// The parts, found in memory.
#[derive(Clone, Copy)]
struct Rings {
    descriptors: NonNull<u8>,
    available: NonNull<u8>,
    used: NonNull<u8>,
}

// SAFETY: pointers into mappings of this process, which are used only while the memory is there.
unsafe impl Send for Rings {}

#[derive(Default)]
pub struct Queue {
    size: u16,
    pub addresses: Option<Addresses>,
    pub call: Option<Bell>,
    /// Between the first kick and the end of the queue.
    pub started: bool,
    pub enabled: bool,
    rings: Option<Rings>,
    /// The next place of the available ring to be looked at.
    next: u16,
    /// As the driver last said.
    available: u16,
    /// The next place of the used ring.
    used: u16,
    /// Used since the driver was last told.
    untold: bool,
}

impl Queue {
    /// A power of two.
    pub fn set_size(&mut self, size: u16) -> Result<(), Broken> {
        if self.rings.is_some() {
            return Err(Broken::Protocol("a queue that changes its size while it runs"));
        }
        self.size = size;
        Ok(())
    }

    /// Finds the parts of a queue that has started, which must lie in memory whole. Before, they
    /// may be those of a former driver.
    pub fn place(&mut self, memory: &Memory) -> Result<(), Broken> {
        self.rings = None;
        let wanted = self.started && self.size > 0;
        let Some(addresses) = self.addresses.filter(|_| wanted) else { return Ok(()) };
        let size = usize::from(self.size);
        let part = |address: u64, length: usize, align: usize| {
            let aligned = |at: &NonNull<u8>| at.as_ptr().addr().is_multiple_of(align);
            memory
                .user(address, length)
                .filter(aligned)
                .ok_or(Broken::Protocol("a queue that is not in its memory"))
        };
        let rings = Rings {
            descriptors: part(addresses.descriptors, size * DESCRIPTOR, 16)?,
            available: part(addresses.available, 4 + size * 2, 2)?,
            used: part(addresses.used, 4 + size * USED, 4)?,
        };
        // What a former device of the queue has used is not used again.
        self.used = word(rings.used, 2).load(Ordering::Relaxed);
        word(rings.used, 0).store(NO_NOTIFY, Ordering::Relaxed);
        self.rings = Some(rings);
        Ok(())
    }

    /// Where to go on.
    pub fn set_base(&mut self, base: u16) {
        (self.next, self.available) = (base, base);
    }

    pub fn base(&self) -> u16 {
        self.next
    }

    /// Forgets where the queue is.
    pub fn stop(&mut self) {
        self.started = false;
        self.rings = None;
    }

    #[inline]
    pub fn is_running(&self) -> bool {
        self.started && self.enabled && self.rings.is_some()
    }

    /// Takes the next buffer: its pieces, of which one in too many has none, and by which number it
    /// is given back. `write` says in which direction it must be.
    #[inline]
    pub fn take(
        &mut self,
        memory: &Memory,
        write: bool,
        pieces: &mut Vec<Piece>,
    ) -> Result<Option<u16>, Broken> {
        let Some(rings) = self.rings else { return Ok(None) };
        if self.next == self.available {
            // SYNC: available. The driver's descriptors and entries come before the index that
            // shows them; the other end of the pair is the driver's, in the guest.
            self.available = word(rings.available, 2).load(Ordering::Acquire);
            if self.available == self.next {
                return Ok(None);
            }
            if self.available.wrapping_sub(self.next) > self.size {
                return Err(Broken::Protocol("a queue with more entries than it has room for"));
            }
        }
        let place = usize::from(self.next % self.size);
        let head = word(rings.available, 4 + place * 2).load(Ordering::Relaxed);
        self.chain(rings, memory, head, write, pieces)?;
        self.next = self.next.wrapping_add(1);
        Ok(Some(head))
    }

    fn chain(
        &self,
        rings: Rings,
        memory: &Memory,
        head: u16,
        write: bool,
        out: &mut Vec<Piece>,
    ) -> Result<(), Broken> {
        out.clear();
        let mut index = head;
        // No chain is longer than the table, so that a circle ends.
        for _ in 0..self.size {
            if index >= self.size {
                return Err(Broken::Protocol("a descriptor outside of its table"));
            }
            // SAFETY: within the table, which `place` found; loaded once, as the guest may write
            // it.
            let [address, rest] = unsafe {
                rings
                    .descriptors
                    .add(usize::from(index) * DESCRIPTOR)
                    .cast::<[u64; 2]>()
                    .as_ptr()
                    .read_volatile()
            };
            let (length, flags, next) =
                (rest as u32 as usize, (rest >> 32) as u16, (rest >> 48) as u16);
            if (flags & WRITE != 0) != write || flags & !(NEXT | WRITE) != 0 {
                return Err(Broken::Protocol(
                    "a descriptor for the other direction, or of a kind that was not agreed on",
                ));
            }
            let at = memory
                .guest(address, length)
                .ok_or(Broken::Protocol("a descriptor of what is not its memory"))?;
            if out.len() == MOST_PIECES {
                // What it goes on with, a circle may be, is not even looked at.
                out.clear();
                return Ok(());
            }
            out.push(Piece { at, length });
            if flags & NEXT == 0 {
                return Ok(());
            }
            index = next;
        }
        Err(Broken::Protocol("descriptors in a circle"))
    }

    /// Gives a buffer back with so many bytes in it; [`Self::show`] lets the driver see it.
    #[inline]
    pub fn give(&mut self, head: u16, length: u32) {
        let Some(rings) = self.rings else { return };
        let place = 4 + usize::from(self.used % self.size) * USED;
        // SAFETY: within the used ring, which `place` found, aligned to 4.
        unsafe {
            rings.used.add(place).cast::<[u32; 2]>().as_ptr().write_volatile([head.into(), length])
        };
        self.used = self.used.wrapping_add(1);
        self.untold = true;
    }

    /// Shows the driver all that was given back, and wakes it if it sleeps.
    #[inline]
    pub fn show(&mut self) {
        let (Some(rings), true) = (self.rings, self.untold) else { return };
        self.untold = false;
        // SYNC: used. Entries, and what was written into buffers, come before the index that shows
        // them; the other end of the pair is the driver's, in the guest.
        word(rings.used, 2).store(self.used, Ordering::Release);
        // A driver that is about to sleep clears its flag and looks at the index once more: one of
        // us sees the other.
        fence(Ordering::SeqCst);
        if word(rings.available, 0).load(Ordering::Relaxed) & NO_INTERRUPT == 0
            && let Some(call) = &self.call
        {
            call.ring();
        }
    }
}

/// A word of a ring.
#[inline]
fn word<'a>(part: NonNull<u8>, at: usize) -> &'a AtomicU16 {
    // SAFETY: within a part that `place` found, aligned; mapped as long as its queue is placed, and
    // used as an atomic only.
    unsafe { AtomicU16::from_ptr(part.add(at).cast().as_ptr()) }
}

#[cfg(test)]
pub(super) mod tests;
