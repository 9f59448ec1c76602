//! A ring of memif: descriptors of buffers between two indices, `head` and `tail`, that count up
//! and wrap around as 16 bits.
//!
//! The client owns rings and buffers in both directions. On a ring to the server `head` counts what
//! the client has sent and `tail` what the server has taken; on a ring to the client `head` counts
//! the buffers that the client has laid out and `tail` those that the server has filled. So the
//! client writes `head` alone and the server `tail` alone, and each end keeps its own index here:
//! what the peer does to it in memory changes nothing.
#![allow(unsafe_code)]

use std::ptr::NonNull;
use std::sync::atomic::{AtomicU16, AtomicU32, Ordering, fence};

use super::message::COOKIE;
use super::region::Region;
use crate::apps::peer::Broken;
use crate::apps::peer::MOST_PIECES;
use crate::apps::peer::bell::Bell;

const FLAGS: usize = 4;
const HEAD: usize = 6;
const TAIL: usize = 64;
const DESCRIPTORS: usize = 128;
const DESCRIPTOR: usize = 16;
/// In the flags of a ring: its reader looks by itself.
const NO_INTERRUPT: u16 = 1;
/// In a descriptor: the packet goes on in the next one.
const NEXT: u16 = 1;

/// Bytes of a ring with so many entries.
pub const fn bytes(entries: usize) -> usize {
    DESCRIPTORS + entries * DESCRIPTOR
}

/// Where the buffers of the client's own ring are: one for each entry, behind each other.
#[derive(Debug, Clone, Copy)]
pub struct Buffers {
    pub offset: u32,
    pub size: u32,
}

/// A part of a packet in shared memory.
#[derive(Debug, Clone, Copy)]
pub struct Piece {
    pub at: NonNull<u8>,
    pub length: usize,
}

pub struct Ring {
    at: NonNull<u8>,
    /// A power of two, up to 16384: any difference of indices that is allowed is below it.
    entries: u16,
    reads: bool,
    /// For the client; a server goes by the descriptors.
    own: Option<Buffers>,
    /// The next entry that this end takes or fills.
    next: u16,
    /// Entries behind `next` that the peer has shown.
    ready: u16,
    /// What was done and is not shown to the peer yet.
    unshown: bool,
    bell: Bell,
}

// SAFETY: a pointer into a mapping of this process, which its session keeps as long as the ring.
unsafe impl Send for Ring {}

impl Ring {
    /// The ring at `offset` of a region, which it must lie in whole.
    pub fn place(
        region: &Region,
        offset: u32,
        log2: u8,
        reads: bool,
        own: Option<Buffers>,
        bell: Bell,
    ) -> Result<Ring, Broken> {
        let entries = 1_u16 << log2;
        let at = region
            .at(offset, bytes(entries.into()) as u32)
            .filter(|at| at.as_ptr().addr().is_multiple_of(8))
            .ok_or(Broken::Protocol("a ring that is not in its region"))?;
        Ok(Ring { at, entries, reads, own, next: 0, ready: 0, unshown: false, bell })
    }

    /// Lays the client's ring out, before the server sees it.
    pub fn lay_out(&mut self) {
        self.word(HEAD).store(0, Ordering::Relaxed);
        self.word(TAIL).store(0, Ordering::Relaxed);
        self.word(FLAGS).store(if self.reads { NO_INTERRUPT } else { 0 }, Ordering::Relaxed);
        for slot in 0..self.entries {
            self.write_descriptor(slot, 0, self.own.map_or(0, |own| own.size));
        }
        self.cookie().store(COOKIE, Ordering::Release);
    }

    /// Takes a ring up at the connection: it must be one, and starts at 0 as the other end's does.
    pub fn start(&mut self) -> Result<(), Broken> {
        if self.cookie().load(Ordering::Acquire) != COOKIE {
            return Err(Broken::Protocol("a ring without the cookie of one"));
        }
        (self.next, self.ready) = (0, 0);
        if self.reads {
            self.word(FLAGS).store(NO_INTERRUPT, Ordering::Relaxed);
            // A client lays its buffers out.
            self.unshown = self.own.is_some();
            self.show();
        }
        Ok(())
    }

    /// How many entries can be taken, or filled.
    #[inline]
    pub fn ready(&mut self) -> Result<u16, Broken> {
        if self.ready == 0 {
            let theirs = self.word(if self.own.is_some() { TAIL } else { HEAD });
            // SYNC: memif. Descriptors and bytes come before the index that shows them; the other
            // end of the pair is the peer's, and is `show` where it is an engine as well.
            let shown = theirs.load(Ordering::Acquire);
            let ahead = if self.own.is_some() && !self.reads { self.entries } else { 0 };
            let ready = shown.wrapping_add(ahead).wrapping_sub(self.next);
            if ready > self.entries {
                return Err(Broken::Protocol("an index further than its ring is long"));
            }
            self.ready = ready;
        }
        Ok(self.ready)
    }

    /// Takes the pieces of the next packet out, which stay until [`Self::show`]; none of one that
    /// is in too many. How many descriptors it had, 0 if there is no packet.
    #[inline]
    pub fn take(&mut self, regions: &[Region], pieces: &mut Vec<Piece>) -> Result<usize, Broken> {
        pieces.clear();
        if self.ready()? == 0 {
            return Ok(0);
        }
        let (piece, flags) = self.piece(regions)?;
        if piece.length > 0 {
            pieces.push(piece);
        }
        self.step();
        if flags & NEXT == 0 { Ok(1) } else { self.take_rest(regions, pieces) }
    }

    /// The pieces of a packet behind its first one.
    #[inline(never)]
    fn take_rest(&mut self, regions: &[Region], pieces: &mut Vec<Piece>) -> Result<usize, Broken> {
        let mut count = 1;
        loop {
            // An end shows whole packets only; so a chain is never longer than the ring.
            if self.ready == 0 {
                return Err(Broken::Protocol("a packet that does not end"));
            }
            let (piece, flags) = self.piece(regions)?;
            count += 1;
            if piece.length > 0 && count <= MOST_PIECES {
                pieces.push(piece);
            }
            self.step();
            if flags & NEXT == 0 {
                if count > MOST_PIECES {
                    pieces.clear();
                }
                return Ok(count);
            }
        }
    }

    /// Puts a packet into free buffers. `Ok(None)`: they are too few now. `Ok(Some(false))`: it has
    /// no room even in all of them, or in too many.
    #[inline]
    pub fn put(&mut self, regions: &[Region], packet: &[u8]) -> Result<Option<bool>, Broken> {
        let (next, free) = (self.next, self.ready()?);
        let (mut rest, mut count) = (packet, 0);
        while self.ready > 0 && count < MOST_PIECES {
            count += 1;
            let (piece, _) = self.piece(regions)?;
            if piece.length == 0 {
                return Err(Broken::Protocol("a buffer without room"));
            }
            let (now, later) = rest.split_at(piece.length.min(rest.len()));
            // SAFETY: the piece has room for as many bytes, and is no memory of the packet's.
            unsafe { piece.at.as_ptr().copy_from_nonoverlapping(now.as_ptr(), now.len()) };
            let flags = if later.is_empty() { 0 } else { NEXT };
            self.write_descriptor(self.next & (self.entries - 1), flags, now.len() as u32);
            self.step();
            rest = later;
            if rest.is_empty() {
                return Ok(Some(true));
            }
        }
        // Begun anew with the next packet, behind another look at the peer's index: one that stays
        // at what was free now would wait for ever. The buffers were filled whole, so that the
        // lengths in their descriptors are still those of their room.
        (self.next, self.ready) = (next, 0);
        let never = free == self.entries || count == MOST_PIECES;
        Ok(never.then_some(false))
    }

    /// Shows the peer all that was done, and wakes it if it sleeps.
    #[inline]
    pub fn show(&mut self) {
        if !std::mem::take(&mut self.unshown) {
            return;
        }
        let ours = self.word(if self.own.is_some() { HEAD } else { TAIL });
        // Buffers that are free again are all but those that wait to be taken.
        let ahead = if self.own.is_some() && self.reads { self.entries } else { 0 };
        // SYNC: memif. See `ready`.
        ours.store(self.next.wrapping_add(ahead), Ordering::Release);
        if self.reads {
            return;
        }
        // A reader that is about to sleep clears its flag and looks at the index once more: one of
        // us sees the other.
        fence(Ordering::SeqCst);
        if self.word(FLAGS).load(Ordering::Relaxed) & NO_INTERRUPT == 0 {
            self.bell.ring();
        }
    }

    #[inline]
    fn step(&mut self) {
        // Its buffer is laid out again, shown by the next `show`.
        if let (true, Some(own)) = (self.reads, self.own) {
            self.write_descriptor(self.next & (self.entries - 1), 0, own.size);
        }
        (self.next, self.ready) = (self.next.wrapping_add(1), self.ready - 1);
        self.unshown = true;
    }

    /// The buffer of the next entry: of a reader what is in it, of a writer what fits.
    #[inline]
    fn piece(&self, regions: &[Region]) -> Result<(Piece, u16), Broken> {
        let slot = self.next & (self.entries - 1);
        // SAFETY: within the ring, which `place` found, aligned to 8; loaded once, as the peer may
        // write it.
        let [first, second] =
            unsafe { self.descriptor(slot).cast::<[u64; 2]>().as_ptr().read_volatile() };
        let (flags, region, length) = (first as u16, (first >> 16) as u16, (first >> 32) as u32);
        let (region, offset, length) = match self.own {
            // Where our buffers are we know better than what stands there.
            Some(own) => {
                if self.reads && length > own.size {
                    return Err(Broken::Protocol("more in a buffer than it has room for"));
                }
                let length = if self.reads { length } else { own.size };
                (0, own.offset + u32::from(slot) * own.size, length)
            }
            None => (region, second as u32, length),
        };
        let at = regions
            .get(usize::from(region))
            .and_then(|region| region.at(offset, length))
            .ok_or(Broken::Protocol("a descriptor of what is not in its memory"))?;
        Ok((Piece { at, length: length as usize }, flags))
    }

    /// What an end changes of a descriptor: a server nothing but flags and length.
    #[inline]
    fn write_descriptor(&self, slot: u16, flags: u16, length: u32) {
        let at = self.descriptor(slot);
        let Some(own) = self.own else {
            // SAFETY: within the ring, aligned; nobody's reference.
            unsafe { at.cast::<u16>().as_ptr().write_volatile(flags) };
            // SAFETY: as above, four bytes further.
            unsafe { at.add(4).cast::<u32>().as_ptr().write_volatile(length) };
            return;
        };
        let first = u64::from(flags) | u64::from(length) << 32;
        let second = u64::from(own.offset + u32::from(slot) * own.size);
        // SAFETY: as above, the whole descriptor.
        unsafe { at.cast::<[u64; 2]>().as_ptr().write_volatile([first, second]) };
    }

    #[inline]
    fn descriptor(&self, slot: u16) -> NonNull<u8> {
        // SAFETY: `slot` is below `entries`, so within the ring.
        unsafe { self.at.add(DESCRIPTORS + usize::from(slot) * DESCRIPTOR) }
    }

    #[inline]
    fn word(&self, at: usize) -> &AtomicU16 {
        // SAFETY: within the ring, which `place` found, aligned; mapped as long as the ring is
        // used, and used as an atomic only.
        unsafe { AtomicU16::from_ptr(self.at.add(at).cast().as_ptr()) }
    }

    fn cookie(&self) -> &AtomicU32 {
        // SAFETY: as for `word`.
        unsafe { AtomicU32::from_ptr(self.at.cast().as_ptr()) }
    }
}

#[cfg(test)]
mod tests;
