//! The fronts of a link group's two arenas: letterboxes, and hashes of what is announced in them.
#![allow(unsafe_code)]

use core::cell::UnsafeCell;
use core::ops::Range;
use core::sync::atomic::Ordering::*;

use dibs::loopback::FRONT;
use shm::sync::AtomicU64;

use crate::conn::announce::Announced;

/// Handshakes of a link group at a time.
pub const LANES: usize = 64;
/// The longest message, in bytes. Of a Proposal that has more, for its many EIDs, the connection's
/// name has to be used.
pub const MOST: usize = 504;

#[repr(C, align(512))]
struct Letterbox {
    word: AtomicU64,
    bytes: UnsafeCell<[u8; MOST]>,
}

/// The front of an arena: all of it is written by the peer and read by the arena's owner.
#[repr(C)]
struct Area {
    /// Of the connection that is invited or offered in a letterbox, a hash; 0: none.
    announced: [AtomicU64; LANES],
    boxes: [Letterbox; LANES],
}
/// Between this area and the control page lie the bits of connections that have news.
const _: () = assert!(size_of::<Area>() + size_of::<Announced>() <= FRONT);

/// The front that we read and the one that we write.
pub struct Fronts {
    own: *const Area,
    theirs: *const Area,
}

impl Fronts {
    /// In front of these two control pages, of an own arena and of one of the peer.
    pub fn of(own: *mut u8, theirs: *mut u8) -> Self {
        let [own, theirs] =
            [own, theirs].map(|page| page.wrapping_sub(FRONT).cast::<Area>().cast_const());
        Self { own, theirs }
    }

    /// The word of the letterbox that the peer writes to.
    pub fn inbox(&self, at: usize) -> &AtomicU64 {
        // SAFETY: an area lies in an arena's mapping, which stays in place.
        unsafe { &(*self.own).boxes[at].word }
    }

    /// The word of the letterbox that we write to.
    pub fn outbox(&self, at: usize) -> &AtomicU64 {
        // SAFETY: an area lies in an arena's mapping, which stays in place.
        unsafe { &(*self.theirs).boxes[at].word }
    }

    /// Puts a hash into the peer's front; 0 takes it out.
    pub fn announce(&self, at: usize, hash: u64) {
        // SYNC: announced. Behind the letter that it announces: whoever finds the hash finds that.
        // SAFETY: an area lies in an arena's mapping, which stays in place.
        unsafe { &(&(*self.theirs).announced)[at] }.store(hash, Release);
    }

    /// Lanes in which the peer has announced what `is`.
    pub fn announced<F: Fn(u64) -> bool>(
        &self,
        within: Range<usize>,
        is: F,
    ) -> impl Iterator<Item = usize> + use<F> {
        let own = self.own;
        // SYNC: announced. In front of the look into the letterbox.
        // SAFETY: an area lies in an arena's mapping, which stays in place.
        within.filter(move |at| is(unsafe { &(&(*own).announced)[*at] }.load(Acquire)))
    }

    /// Writes a message into our letterbox, ahead of its word.
    pub fn write(&self, at: usize, bytes: &[u8]) {
        // SAFETY: an area lies in an arena's mapping, which stays in place.
        let place = unsafe { &(*self.theirs).boxes[at].bytes }.get().cast();
        // SAFETY: at most MOST bytes, in a box that nobody else writes and the peer reads after the
        // word.
        unsafe { core::ptr::copy_nonoverlapping(bytes.as_ptr(), place, bytes.len()) };
    }

    /// Copies from the peer's letterbox.
    pub fn read(&self, at: usize, out: &mut [u8]) {
        // SAFETY: an area lies in an arena's mapping, which stays in place.
        let place = unsafe { &(*self.own).boxes[at].bytes }.get().cast();
        // SAFETY: at most MOST bytes. What a peer changes meanwhile garbles its own message.
        unsafe { core::ptr::copy_nonoverlapping(place, out.as_mut_ptr(), out.len()) };
    }
}
