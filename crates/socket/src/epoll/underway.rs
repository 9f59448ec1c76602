//! The one registration of a set that an epoll_ctl is about: it is noted, and the kernel has not
//! answered yet.

use shm::sync::{AtomicU32, Ordering::*, fence};

/// Its index and one, 0: none. Written by who has the set's turn (`table::turn`).
#[derive(Debug)]
pub struct Underway(AtomicU32);

impl Underway {
    #[cfg(not(loom))]
    pub const fn new() -> Self {
        Self(AtomicU32::new(0))
    }

    #[cfg(loom)]
    pub fn new() -> Self {
        Self(AtomicU32::new(0))
    }

    /// The kernel is about to be asked. The tables' lock is held, under which the registration was
    /// noted.
    pub fn begin(&self, index: u32) {
        self.0.store(index + 1, Relaxed);
    }

    /// It has answered. What the caller looks at next, others have changed before they look for the
    /// note, or it sees that.
    pub fn end(&self) {
        self.0.store(0, Relaxed);
        // SYNC: underway. Behind the note and in front of the look at whether the connection has
        // left TCP, or its number; pairs with `on_switched` and with `fds::before_close`.
        fence(SeqCst);
    }

    /// The registration, if there is one.
    pub fn index(&self) -> Option<u32> {
        self.0.load(Relaxed).checked_sub(1)
    }

    /// Whether nobody knows what the kernel has of it. The tables' lock is held.
    pub fn is(&self, index: u32) -> bool {
        self.index() == Some(index)
    }
}
