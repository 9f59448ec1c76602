//! Who takes the next step of an upgrade, and what may not fall into the middle of one: a fork, and
//! the end of the connection.

use shm::sync::{AtomicU32, AtomicU64, Ordering::*, fence};

/// How far a handshake is, and which thread takes it further.
#[repr(C)]
#[derive(Debug, Default)]
pub struct Steps {
    /// A stage, as a number.
    stage: AtomicU32,
    /// The thread that is in the middle of a step; 0: none is.
    busy: AtomicU32,
}

impl Steps {
    /// Of a new connection.
    pub fn reset(&self) {
        self.stage.store(0, Relaxed);
        self.busy.store(0, Relaxed);
    }

    /// Keeps all other threads from taking a step until `release`; false when one is in the middle
    /// of one.
    pub fn hold(&self, thread: u32) -> bool {
        if self.busy.compare_exchange(0, thread, Acquire, Relaxed).is_err() {
            return false;
        }
        // SYNC: fork. In front of the look at how many processes have the connection; pairs with
        // `holder`.
        // SYNC: unbegun. In front of the look at the stage; pairs with `end_unbegun`.
        fence(SeqCst);
        true
    }

    /// Ends `hold`.
    pub fn release(&self) {
        self.busy.store(0, Release);
    }

    /// The thread that is in the middle of a step, perhaps without having seen what the caller has
    /// changed before; who begins one later has. 0: none is.
    pub fn holder(&self) -> u32 {
        // SYNC: fork. Behind the count of a child, in front of the look for a step; pairs with
        // `hold`.
        fence(SeqCst);
        self.busy.load(Acquire)
    }

    /// How far the handshake is.
    pub fn stage(&self) -> u32 {
        self.stage.load(Relaxed)
    }

    /// It is as far as that from now on; how far it was.
    pub fn reach(&self, stage: u32) -> u32 {
        self.stage.swap(stage, Relaxed)
    }

    /// Goes from one stage to another; false if it is not there any more.
    pub fn reach_from(&self, from: u32, stage: u32) -> bool {
        self.stage.compare_exchange(from, stage, Relaxed, Relaxed).is_ok()
    }

    /// Goes from stage `first` to `over`, and finds that no step was ever taken, nor is one, so that
    /// there is nothing to undo; false if it may be otherwise. A step leaves in `place`, which 0
    /// stands in before, what it has made.
    pub fn end_unbegun(&self, first: u32, over: u32, place: &AtomicU64) -> bool {
        // SYNC: unbegun. In front of the looks; pairs with `hold`. A step that begins behind them
        // finds no stage to go on from, and one that was taken between a look and this would leave
        // what it has made to nobody.
        self.stage.compare_exchange(first, over, SeqCst, Relaxed).is_ok()
            && self.busy.load(SeqCst) == 0
            && place.load(SeqCst) == 0
    }
}
