//! Bells: pipes and Unix sockets by which this process wakes waits of its peers that cover many
//! connections.
//!
//! A byte in a pipe wakes a sleeper for a third of what a byte on the TCP connection costs, and it
//! cannot be kept back by a congestion window or by a delayed acknowledgement. The end to write to
//! stays with the process that rings: if the peer had its description, as both would have that of
//! an eventfd, it could take O_NONBLOCK off, fill it and make a send wait for ever. The end to read
//! from is given to the process that waits (`group::bells`). That one only watches it for edges and
//! never reads, because a pipe that the peer empties meanwhile would keep it in the read. So a bell
//! is full one day: it is taken away then, and the wait asks for another one.
//!
//! Of a process of another user the bell is a Unix socket, which that process has made: it keeps
//! the end to read from to itself, and whoever has the other one can neither pass it descriptors
//! nor be kept in a send. That costs half as much again.
//!
//! What a bell cannot do a byte on the TCP connection does, as ever: for a wait that has none, for
//! peers by other devices or in other network namespaces, in the child of a fork.
#![allow(unsafe_code)]

use core::sync::atomic::{AtomicBool, AtomicI32, AtomicPtr, AtomicU32, AtomicU64, Ordering::*};

use super::announce::SLOTS;
use super::header::{WAITS, Waits};
use crate::{hidden, home, sys};

/// Own arenas that have bells, at most.
const MOST: usize = 1024;
/// What a pipe takes: a ring has one byte, and the kernel fills its pages with them.
const SIZE: usize = 16 << 10;
/// Looks at whether a thread is about to ring, before its bell is kept for good rather than taken
/// away from under it.
const PATIENCE: usize = 1000;

/// Sees to it, if it can, that this process and a wait have the bell of this number: gives it to a
/// wait that asks for it in the page, and takes the one that a wait listens to already.
pub type Share = fn(&Bells, page: &Waits, wait: u32, number: u32, listens: bool);

/// The bells of the waits in the control page of an arena of ours. Zeroed memory is one without
/// bells.
pub struct Bells {
    bells: [Bell; WAITS],
    /// Of each slot of the arena: who is to look at its connection when the peer announces
    /// something, by a number of whoever waits; 0: nobody.
    names: [AtomicU32; SLOTS],
    /// The link group and the arena.
    group: AtomicU32,
    arena: AtomicU64,
    /// The process that has them.
    process: AtomicU32,
    /// A `Share`.
    share: AtomicPtr<()>,
}

struct Bell {
    /// 0: there is none.
    number: AtomicU32,
    /// The number of one that the wait will not get.
    refused: AtomicU32,
    /// Threads that may be about to write.
    inside: AtomicU32,
    /// A thread closes its ends.
    closing: AtomicBool,
    /// Descriptors of the ends to write to and to read from, plus one. The latter only keeps a ring
    /// from being a SIGPIPE when the peer has closed its own; of a bell that the peer has made
    /// there is none.
    write: AtomicI32,
    read: AtomicI32,
}

static BELLS: AtomicPtr<Bells> = AtomicPtr::new(core::ptr::null_mut());
static TAKEN: [AtomicBool; MOST] = [const { AtomicBool::new(false) }; MOST];

/// Bells for the control page of an arena; None if there are too many.
pub(crate) fn take(group: u32, arena: u64, share: Share) -> Option<&'static Bells> {
    let mut base = BELLS.load(Acquire);
    if base.is_null() {
        // Address space only, touched as it is used.
        base = sys::reserve(MOST * size_of::<Bells>(), false).cast();
        if base.is_null() {
            return None;
        }
        if let Err(first) = BELLS.compare_exchange(core::ptr::null_mut(), base, AcqRel, Acquire) {
            base = first;
        }
    }
    let at = TAKEN.iter().position(|taken| !taken.swap(true, AcqRel))?;
    // SAFETY: below MOST, in memory that is never unmapped, where zeroes are valid.
    let bells = unsafe { &*base.add(at) };
    bells.group.store(group, Relaxed);
    bells.arena.store(arena, Relaxed);
    bells.process.store(sys::getpid(), Relaxed);
    bells.share.store(share as *mut (), Release);
    Some(bells)
}

/// Those in use.
fn all() -> impl Iterator<Item = &'static Bell> {
    let base = BELLS.load(Acquire);
    let taken =
        TAKEN.iter().enumerate().filter(move |(_, taken)| !base.is_null() && taken.load(Relaxed));
    // SAFETY: as in `take`.
    taken.flat_map(move |(at, _)| unsafe { &(*base.add(at)).bells })
}

impl Bells {
    /// The link group and the arena whose control page it is, and their process.
    pub(crate) fn whose(&self) -> (u32, u64, u32) {
        (self.group.load(Relaxed), self.arena.load(Relaxed), self.process.load(Relaxed))
    }

    /// Notes who looks at the connection in a slot.
    pub fn name(&self, slot: u32, who: u32) {
        if let Some(name) = self.names.get(slot as usize) {
            name.store(who, Relaxed);
        }
    }

    /// Who does; 0: nobody.
    #[inline]
    pub fn who(&self, slot: u32) -> u32 {
        self.names.get(slot as usize).map_or(0, |name| name.load(Relaxed))
    }

    /// Rings for a wait that sleeps; false if it listens to no bell. One that it asks for it is
    /// given then, for the next time.
    pub(super) fn ring(&self, page: &Waits, wait: u32) -> bool {
        let bell = &self.bells[wait as usize];
        // SYNC: bell. Behind the sight of the sleep; pairs with `Waits::sleep`.
        let word = page.bell[wait as usize].load(Acquire);
        let (number, listens) = (word >> 1, word & 1 != 0);
        let has = || bell.number.load(SeqCst) == number;
        if (!listens || !has()) && number != 0 && number != bell.refused.load(Relaxed) {
            let share = self.share.load(Acquire);
            // SAFETY: what `take` has stored.
            let share: Option<Share> = unsafe { core::mem::transmute(share) };
            share.inspect(|share| share(self, page, wait, number, listens));
        }
        // A child that shares this memory has descriptors of its own.
        if !listens || !home::is(self.process.load(Relaxed)) {
            return false;
        }
        // SYNC: inside. Counted before the look at the number; pairs with `take_away`.
        bell.inside.fetch_add(1, SeqCst);
        // A peer may listen to the number 0, which says that there is none.
        let written = if number != 0 && has() { bell.write() } else { 0 };
        bell.inside.fetch_sub(1, SeqCst);
        if written < 0 {
            // Full, or not to be written to any more: the wait sees to another one.
            page.given[wait as usize].store(0, Release);
            bell.take_away_if(number);
        }
        written > 0
    }

    /// Makes a bell, for which there must be none with this number; the end that its wait is to be
    /// given.
    pub(crate) fn make(&self, wait: u32, number: u32) -> Option<i32> {
        let bell = &self.bells[wait as usize];
        bell.take_away();
        if !bell.is_free() || !hidden::room_for_bells() {
            return None;
        }
        let [read, write] = sys::pipe().ok()?.map(hidden::park);
        sys::fcntl(write, libc::F_SETPIPE_SZ, SIZE);
        bell.read.store(read + 1, Relaxed);
        bell.write.store(write + 1, Relaxed);
        // SYNC: inside. Behind the descriptors.
        bell.number.store(number, SeqCst);
        Some(read)
    }

    /// Takes a socket that the wait's process has made and listens to, and of which it is known
    /// that nobody can keep us in a write or a close of it. It must be parked.
    pub(crate) fn take_made(&self, wait: u32, number: u32, write: i32) -> bool {
        let bell = &self.bells[wait as usize];
        bell.take_away();
        if !bell.is_free() {
            return false;
        }
        bell.write.store(write + 1, Relaxed);
        // SYNC: inside. Behind the descriptor.
        bell.number.store(number, SeqCst);
        true
    }

    /// Whether the wait has been made this bell already.
    pub(crate) fn has(&self, wait: u32, number: u32) -> bool {
        self.bells[wait as usize].number.load(Relaxed) == number
    }

    /// The wait will not get this bell.
    pub(crate) fn refuse(&self, wait: u32, number: u32) {
        self.bells[wait as usize].refused.store(number, Relaxed);
        self.bells[wait as usize].take_away_if(number);
    }

    /// Its arena is gone, and all connections with it.
    pub(crate) fn give_back(&'static self) {
        for bell in &self.bells {
            bell.take_away();
            bell.refused.store(0, Relaxed);
        }
        // Ends that a thread may still be writing to stay its own, and so does their place.
        if self.bells.iter().any(|bell| bell.write.load(Acquire) != 0) {
            return;
        }
        // SAFETY: it lies in that array.
        let at = unsafe { core::ptr::from_ref(self).offset_from(BELLS.load(Relaxed)) };
        TAKEN[at as usize].store(false, Release);
    }
}

impl Bell {
    /// One byte, of a thread that is counted as inside.
    fn write(&self) -> isize {
        // SYNC: inside. Behind the count: `moved_fd` waits for this thread, or it sees the new number.
        let write = self.write.load(SeqCst) - 1;
        if self.read.load(SeqCst) != 0 {
            return sys::write(write, &[0]);
        }
        let byte = 0u8;
        // SAFETY: a live byte.
        unsafe { sys::send(write, &raw const byte, 1, libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL) }
    }

    /// Nobody is about to write any more who saw the bell before it was changed, after so many
    /// looks.
    fn is_left_alone(&self, looks: usize) -> bool {
        let is_left = |_| {
            // SYNC: inside. Behind the change.
            let left = self.inside.load(SeqCst) == 0;
            if !left {
                sys::yield_now();
            }
            left
        };
        (0..looks).any(is_left)
    }

    /// The one with this number, and no other that has been made meanwhile.
    fn take_away_if(&self, number: u32) {
        // SYNC: inside. In front of the look at who is inside: who counts itself later finds no
        // bell.
        self.close_ends(|| {
            self.number.compare_exchange(number, 0, SeqCst, Relaxed).map_or(0, |_| PATIENCE)
        });
    }

    fn take_away(&self) {
        // SYNC: inside. In front of the look at who is inside: who counts itself later finds no
        // bell. Where there is none already, somebody was inside when it was taken away.
        self.close_ends(|| match self.number.swap(0, SeqCst) {
            0 => usize::from(self.write.load(Acquire) != 0),
            _ => PATIENCE,
        });
    }

    /// Closes the ends of a bell that `take` takes away, which says how often to look at who is
    /// inside; 0: there is none. One thread at a time: by the time that another one has waited, the
    /// ends may be those of the next bell.
    fn close_ends(&self, take: impl FnOnce() -> usize) {
        if self.closing.swap(true, Acquire) {
            return;
        }
        if self.is_left_alone(take()) {
            for end in [&self.read, &self.write] {
                hidden::close(end.swap(0, AcqRel) - 1);
            }
        }
        self.closing.store(false, Release);
    }

    /// Whether there is place for another one.
    fn is_free(&self) -> bool {
        !self.closing.load(Acquire) && self.write.load(Acquire) == 0
    }
}

/// A descriptor has moved to another number.
pub(crate) fn moved_fd(from: i32, to: i32) {
    for bell in all() {
        let moves =
            |end: &AtomicI32| end.compare_exchange(from + 1, to + 1, SeqCst, Relaxed).is_ok();
        moves(&bell.read);
        // SYNC: inside. Not one byte may go to what the application puts under the old number.
        if moves(&bell.write) {
            bell.is_left_alone(PATIENCE);
        }
    }
}

/// In a fork child, whose descriptors of bells are closed: it wakes its parent's peers over TCP.
pub(crate) fn after_fork_child() {
    for bell in all() {
        bell.number.store(0, Relaxed);
        bell.inside.store(0, Relaxed);
        bell.closing.store(false, Relaxed);
        bell.read.store(0, Relaxed);
        bell.write.store(0, Relaxed);
        bell.refused.store(0, Relaxed);
    }
}
