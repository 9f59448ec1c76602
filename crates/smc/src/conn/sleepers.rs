//! Threads inside calls that wait on a connection, and what for.
//!
//! They are told apart by their ids: a thread that has left its wait by a jump or by cancellation
//! would count as asleep for good, and doorbells would be left to it that nobody takes.

use core::sync::atomic::{AtomicU32, AtomicU64, Ordering::*};

use shm::thread;

/// Asleep for data.
pub const READS: u32 = 1;
/// Asleep for space.
pub const WRITES: u32 = 2;

/// More threads than this at once are only counted.
const SEATS: usize = 6;

/// In a seat: the thread's id, then what it sleeps for, then where its stack ended, in 16 bytes.
const ID: u64 = (1 << 24) - 1;
const KINDS: u32 = 24;
const FRAME: u32 = 26;

/// See the module documentation. Zeroed memory is one without threads.
#[repr(C)]
#[derive(Debug)]
pub struct Sleepers {
    seats: [AtomicU64; SEATS],
    /// Those without a seat, for data and for space.
    standing: [AtomicU32; 2],
}

/// A thread's stay inside a call. It sleeps for nothing at first.
#[must_use]
pub struct Seat<'a> {
    all: &'a Sleepers,
    seat: Option<&'a AtomicU64>,
    /// Of the call that this one interrupted, as a signal handler.
    before: u64,
    kinds: u32,
}

impl Sleepers {
    /// Takes a seat for the calling thread.
    pub fn enter(&self) -> Seat<'_> {
        self.enter_as(thread::thread_id())
    }

    /// Takes a seat for thread `id`.
    pub fn enter_as(&self, id: u32) -> Seat<'_> {
        let mark = 0u32;
        let here = (&raw const mark as usize >> 4) as u64;
        let mine = u64::from(id) | here << FRAME;
        for seat in &self.seats {
            let word = seat.load(Relaxed);
            if word & ID == u64::from(id) {
                if word >> FRAME == mine >> FRAME {
                    // Once more in the same call, or left by a jump: `sleeps` tells.
                    let kinds = (word >> KINDS) as u32 & (READS | WRITES);
                    return Seat { all: self, seat: Some(seat), before: 0, kinds };
                }
                // Left by a jump, or interrupted by a signal handler, which lies deeper in the
                // stack.
                let depth =
                    ((word >> FRAME) as u32).wrapping_sub((mine >> FRAME) as u32).cast_signed();
                seat.store(mine, SeqCst);
                let before = if depth >= shm::lock::SIGNAL_FRAME { word } else { 0 };
                return Seat { all: self, seat: Some(seat), before, kinds: 0 };
            }
        }
        let seat = self.seats.iter().find(|s| s.compare_exchange(0, mine, SeqCst, Relaxed).is_ok());
        Seat { all: self, seat, before: 0, kinds: 0 }
    }

    /// Whether threads other than the caller sleep for any of `kinds`.
    pub fn others(&self, kinds: u32) -> bool {
        let standing = |i: usize| kinds & 1 << i != 0 && self.standing[i].load(SeqCst) > 0;
        standing(0) || standing(1) || self.sleepers(kinds, thread::is_alive).next().is_some()
    }

    /// Threads of this process, other than the caller, that are inside a call.
    pub fn inside(&self) -> impl Iterator<Item = u32> {
        self.sleepers(0, thread::is_alive_here)
    }

    /// Ids of other threads that sleep for any of `kinds` (0: or for nothing).
    fn sleepers(&self, kinds: u32, lives: fn(u32) -> bool) -> impl Iterator<Item = u32> {
        let me = thread::thread_id();
        self.seats.iter().filter_map(move |seat| {
            let word = seat.load(SeqCst);
            let id = (word & ID) as u32;
            if id == 0 || id == me || kinds != 0 && (word >> KINDS) as u32 & kinds == 0 {
                return None;
            }
            if !lives(id) {
                if !thread::is_alive(id) {
                    let _ = seat.compare_exchange(word, 0, Relaxed, Relaxed);
                }
                return None;
            }
            Some(id)
        })
    }

    /// Nobody, in a slot taken anew.
    pub(super) fn clear(&self) {
        self.seats.iter().for_each(|seat| seat.store(0, Relaxed));
        self.standing.iter().for_each(|count| count.store(0, Relaxed));
    }
}

impl Seat<'_> {
    /// Adds to what the thread sleeps for, see `sleeps`.
    pub fn sleeps_too(&mut self, kinds: u32) {
        self.sleeps(self.kinds | kinds);
    }

    /// Says what the thread sleeps for from now on: before it arms, as another thread that takes
    /// doorbells off the stream must know of it from the moment on from which one of them may be
    /// meant for it.
    pub fn sleeps(&mut self, kinds: u32) {
        match self.seat {
            Some(seat) => {
                let word = seat.load(Relaxed) & !(3 << KINDS) | u64::from(kinds) << KINDS;
                seat.store(word, SeqCst);
            }
            None => {
                for (i, count) in self.all.standing.iter().enumerate() {
                    let (before, now) = (self.kinds >> i & 1, kinds >> i & 1);
                    count.fetch_add(now.wrapping_sub(before), SeqCst);
                }
            }
        }
        self.kinds = kinds;
    }
}

impl Drop for Seat<'_> {
    fn drop(&mut self) {
        match self.seat {
            Some(seat) => seat.store(self.before, SeqCst),
            None => self.sleeps(0),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn none() -> Sleepers {
        Sleepers { seats: Default::default(), standing: Default::default() }
    }

    /// Lives as long as this machine runs.
    const INIT: u32 = 1;

    #[test]
    fn a_thread_does_not_count_for_itself() {
        let all = none();
        let mut seat = all.enter();
        seat.sleeps(READS);
        assert!(!all.others(READS | WRITES));
    }

    #[test]
    fn others_count_for_what_they_sleep_for() {
        let all = none();
        let mut seat = all.enter_as(INIT);
        assert!(!all.others(READS | WRITES));
        seat.sleeps(WRITES);
        assert!(all.others(WRITES) && all.others(READS | WRITES) && !all.others(READS));
        drop(seat);
        assert!(!all.others(READS | WRITES));
    }

    #[test]
    fn a_stay_that_was_left_by_a_jump_ends_with_the_next() {
        let all = none();
        let mut left = all.enter_as(INIT);
        left.sleeps(READS);
        core::mem::forget(left);
        assert!(all.others(READS));
        drop(all.enter_as(INIT));
        assert!(!all.others(READS));
    }

    #[test]
    fn the_dead_do_not_count() {
        let all = none();
        let dead = std::thread::spawn(thread::thread_id).join().expect("it ends");
        // Joined is not gone yet.
        while thread::is_alive(dead) {
            std::thread::yield_now();
        }
        let mut seat = all.enter_as(dead);
        seat.sleeps(READS);
        assert!(!all.others(READS));
        core::mem::forget(seat);
    }

    #[test]
    fn a_crowd_is_counted() {
        let all = none();
        let mut seats: Vec<_> =
            (0..SEATS as u32 + 3).map(|i| all.enter_as(0x70_0000 + i)).collect();
        for seat in &mut seats {
            seat.sleeps(READS);
            seat.sleeps(READS | WRITES);
        }
        assert!(all.others(READS) && all.others(WRITES));
        drop(seats);
        assert!(!all.others(READS) && !all.others(WRITES));
        assert!(all.seats.iter().all(|s| s.load(Relaxed) == 0));
    }
}
