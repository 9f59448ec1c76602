//! Who processes completions, and who waits for them.
//!
//! Sends and receives of one socket each have their lock, and both need the completion queue: a
//! send waits for credits there, a receive for data. `lock` is held while completions are
//! processed, never during sleep. `seat` belongs to the one thread that sleeps on the event;
//! whoever finds it taken sleeps on `epoch`, which the thread in the seat moves on whenever it
//! wakes. So a blocked receive never stalls a send, and the reverse.
//!
//! Why no wakeup is lost: a thread sleeps only if the event was requested and the queue was looked
//! at afterwards, both under `lock`. From then on the next completion makes an event, whichever
//! thread processes that completion. An event is taken away only under `lock`, only by who has the
//! seat, and only if no poller counts on seeing it.
//!
//! Order of locks: `seat` before `lock`. Under `lock` the seat is only tried.

use shm::sync::{AtomicU32, Ordering};
use shm::{Errno, FastLock, futex};

/// The event of a completion queue.
pub trait Event {
    fn request(&self);
    fn wait(&self) -> Result<(), Errno>;
    fn take(&self);
}

#[derive(Default)]
pub struct Progress {
    lock: FastLock<true>,
    seat: FastLock<true>,
    /// The fields below change under `lock` only; `epoch` is slept on without it.
    requested: AtomicU32,
    sleepers: AtomicU32,
    pollers: AtomicU32,
    epoch: AtomicU32,
}

/// The calling thread was interrupted while it held one of the locks: it must not wait here.
const BUSY: Errno = Errno::AGAIN;

impl Progress {
    /// Runs `f` under the lock of the completion queue.
    #[inline]
    pub fn with<R>(&self, f: impl FnOnce() -> R) -> Result<R, Errno> {
        let _held = self.lock.lock().map_err(|_| BUSY)?;
        Ok(f())
    }

    /// Calls `ready`, which processes completions, until it says so. Without `block`: once, or
    /// EAGAIN.
    #[inline]
    pub fn run(
        &self,
        event: &impl Event,
        block: bool,
        mut ready: impl FnMut() -> bool,
    ) -> Result<(), Errno> {
        let mut held = self.lock.lock().map_err(|_| BUSY)?;
        loop {
            if ready() {
                return Ok(());
            }
            if !block {
                return Err(Errno::AGAIN);
            }
            if self.requested.load(Ordering::Relaxed) == 0 {
                event.request();
                self.requested.store(1, Ordering::Relaxed);
                continue;
            }
            let epoch = self.epoch.load(Ordering::Relaxed);
            if let Some(seat) = self.seat.try_lock() {
                drop(held);
                let slept = event.wait();
                held = self.lock.lock().map_err(|_| BUSY)?;
                if slept.is_ok() && self.pollers.load(Ordering::Relaxed) == 0 {
                    self.take(event);
                }
                drop(seat);
                self.rouse();
                slept?;
            } else {
                self.sleepers.fetch_add(1, Ordering::Relaxed);
                drop(held);
                let woke = futex::wait(&self.epoch, epoch, true, None);
                held = self.lock.lock().map_err(|_| BUSY)?;
                self.sleepers.fetch_sub(1, Ordering::Relaxed);
                if woke == futex::Woke::Interrupted {
                    return Err(Errno::INTR);
                }
            }
        }
    }

    /// Before a wait on many descriptors at once. True if `ready`; else the event was requested and
    /// will stay until [`Self::leave`], which must follow.
    pub fn enter(
        &self,
        event: &impl Event,
        mut ready: impl FnMut() -> bool,
    ) -> Result<bool, Errno> {
        let _held = self.lock.lock().map_err(|_| BUSY)?;
        if ready() {
            return Ok(true);
        }
        if self.requested.load(Ordering::Relaxed) == 0 {
            event.request();
            self.requested.store(1, Ordering::Relaxed);
            if ready() {
                return Ok(true);
            }
        }
        self.pollers.fetch_add(1, Ordering::Relaxed);
        Ok(false)
    }

    pub fn leave(&self, event: &impl Event, has_event: bool) {
        // Reentered cannot be: `enter` had the lock in this very call of the application.
        let Ok(_held) = self.lock.lock() else { return };
        if self.pollers.fetch_sub(1, Ordering::Relaxed) == 1
            && has_event
            && let Some(_seat) = self.seat.try_lock()
        {
            self.take(event);
        }
    }

    /// Wakes those who sleep on the epoch, to look again. Under the lock, or after a change made
    /// under it.
    pub fn rouse(&self) {
        self.epoch.fetch_add(1, Ordering::Release);
        if self.sleepers.load(Ordering::Relaxed) != 0 {
            futex::wake(&self.epoch, u32::MAX >> 1, true);
        }
    }

    fn take(&self, event: &impl Event) {
        event.take();
        self.requested.store(0, Ordering::Relaxed);
    }
}
