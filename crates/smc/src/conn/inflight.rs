//! Threads inside a kernel call of one direction, which that direction may not leave TCP around.

use shm::sync::{AtomicU32, Ordering::*};
use shm::words::AGAIN;

use super::phase::{Receives, Sends, Word};

/// See the module documentation.
#[repr(C)]
#[derive(Debug, Default)]
pub struct Inflight {
    count: AtomicU32,
    /// The first thread inside, while it is there; a cancelled one never leaves.
    first: AtomicU32,
}

impl Inflight {
    /// Counts this thread in; how many were inside before.
    #[inline(always)]
    pub fn enter(&self) -> u32 {
        let before = self.count.fetch_add(1, SeqCst);
        if before == 0 {
            self.first.store(shm::thread_id(), Relaxed);
        } else if self.first.load(Relaxed) == shm::thread_id() {
            // In a signal handler, or after a jump out of one.
            AGAIN.set(1);
        }
        before
    }

    /// Counts this thread out.
    #[inline(always)]
    pub fn leave(&self) {
        let again = AGAIN.get() != 0;
        if again {
            AGAIN.set(0);
        } else if self.first.load(Relaxed) == shm::thread_id() {
            self.first.store(0, Relaxed);
        }
        // One that was taken for gone is not counted any more.
        let _ = self.count.fetch_update(SeqCst, SeqCst, |n| n.checked_sub(1));
    }

    /// Threads inside.
    #[inline]
    pub fn count(&self) -> u32 {
        self.count.load(SeqCst)
    }

    /// The first of the threads inside; 0 if it has left, or nobody is.
    pub fn first(&self) -> u32 {
        if self.count() > 0 { self.first.load(Relaxed) } else { 0 }
    }

    /// Whether several threads may be inside: one, if it is not known which, may be cancelled
    /// without anybody noticing.
    pub fn may_be_several(&self) -> bool {
        match self.count() {
            0 => false,
            1 => self.first.load(Relaxed) == 0,
            _ => true,
        }
    }

    /// Whether nobody is inside, but for one that will never be counted out.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.count() == 0 || self.forget_lost(false)
    }

    /// Whether the only call that is counted will never be counted out, which it then is: its
    /// thread has been cancelled, or (with `here`) is this one, which a jump out of a signal
    /// handler has brought here.
    #[cold]
    pub fn forget_lost(&self, here: bool) -> bool {
        let thread = self.first.load(Relaxed);
        let gone = match thread {
            0 => false,
            t if t == shm::thread_id() => here,
            t => !shm::thread::is_alive(t),
        };
        gone && self.count() == 1
            && self.first.compare_exchange(thread, 0, SeqCst, SeqCst).is_ok()
            && self.count.compare_exchange(1, 0, SeqCst, SeqCst).is_ok()
    }

    /// For a connection that takes the slot.
    pub fn reset(&self) {
        self.count.store(0, Relaxed);
        self.first.store(0, Relaxed);
    }
}

/// Announces a kernel send; false when the ring must be used instead.
#[inline(always)]
pub fn enter_send(phase: &Word, calls: &Inflight) -> bool {
    // SYNC: inflight. Counted before the look; pairs with the look at the count in
    // `begin_send_switch`.
    calls.enter();
    if phase.now_in_order().kernel_sends() {
        return true;
    }
    calls.leave();
    false
}

/// Announces a kernel receive; false when receives are on the ring, or about to be, or (from a
/// little before the exposure on) when another thread is already inside one.
#[inline(always)]
pub fn enter_receive(phase: &Word, calls: &Inflight) -> bool {
    // SYNC: inflight. As for sends.
    let before = calls.enter();
    if phase.now_in_order().kernel_receives(before == 0) {
        return true;
    }
    calls.leave();
    false
}

/// Keeps threads out of kernel sends until `end_send_switch`; whether none is inside. The tx lock
/// is held.
pub fn begin_send_switch(phase: &Word, calls: &Inflight) -> bool {
    phase.turn_sends(|at| if at == Sends::Ready { Sends::Switching } else { at });
    // SYNC: inflight. A thread inside a kernel send would put its bytes behind the offset; one that
    // counts itself after this look sees `Switching`.
    calls.is_empty() && phase.now().sends() == Sends::Switching
}

/// Ends what `begin_send_switch` began, if sends have not left TCP.
pub fn end_send_switch(phase: &Word) {
    phase.turn_sends(|at| if at == Sends::Switching { Sends::Ready } else { at });
}

/// Keeps threads out of kernel receives until `end_receive_switch`; whether none is inside. The rx
/// lock is held.
pub fn begin_receive_switch(phase: &Word, calls: &Inflight) -> bool {
    phase.turn_receives(|at| if at == Receives::Ready { Receives::Switching } else { at });
    // SYNC: inflight. A thread inside a kernel receive cuts the stream itself.
    calls.is_empty() && phase.now().receives() == Receives::Switching
}

/// Ends what `begin_receive_switch` began, if receives have not left TCP.
pub fn end_receive_switch(phase: &Word) {
    phase.turn_receives(|at| if at == Receives::Switching { Receives::Ready } else { at });
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    /// A word in the state in which its sends may switch.
    fn ready() -> Word {
        let word = Word::default();
        word.turn_sends(Sends::committed);
        word.turn_receives(|_| Receives::Ready);
        word
    }

    #[test]
    fn a_switch_waits_for_the_thread_inside_and_keeps_others_out() {
        let (word, calls) = (ready(), Inflight::default());
        assert!(enter_send(&word, &calls));
        assert!(!begin_send_switch(&word, &calls));
        assert!(!enter_send(&word, &calls), "nobody comes in beside a switch");
        end_send_switch(&word);
        assert!(enter_send(&word, &calls));
        calls.leave();
        calls.leave();
        assert!(begin_send_switch(&word, &calls));
        word.turn_sends(|_| Sends::Ring);
        end_send_switch(&word);
        assert_eq!(
            (word.now().sends(), enter_send(&word, &calls), calls.count()),
            (Sends::Ring, false, 0)
        );
    }

    #[test]
    fn receives_enter_one_at_a_time_once_the_buffer_is_exposed() {
        let (word, calls) = (Word::default(), Inflight::default());
        assert!(enter_receive(&word, &calls) && enter_receive(&word, &calls));
        assert!(calls.may_be_several());
        calls.leave();
        calls.leave();
        word.turn_receives(|_| Receives::Ready);
        assert!(enter_receive(&word, &calls) && !enter_receive(&word, &calls));
        assert!(!begin_receive_switch(&word, &calls));
        end_receive_switch(&word);
        calls.leave();
        assert!(begin_receive_switch(&word, &calls) && !enter_receive(&word, &calls));
    }

    #[test]
    fn a_cancelled_thread_does_not_keep_a_direction_on_tcp() {
        let (word, calls) = (ready(), Inflight::default());
        std::thread::scope(|s| {
            assert!(s.spawn(|| enter_send(&word, &calls)).join().expect("it ends"))
        });
        assert_eq!(calls.count(), 1);
        // Joined is not gone yet.
        while shm::thread::is_alive(calls.first()) {
            std::thread::yield_now();
        }
        assert!(begin_send_switch(&word, &calls));
        assert_eq!((calls.count(), calls.first()), (0, 0));
        // It is counted out once, also if it comes after all.
        calls.leave();
        assert_eq!(calls.count(), 0);
    }
}
