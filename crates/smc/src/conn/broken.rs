//! Connections that nobody can go on with, and those whose device was taken away.

use super::*;

/// A `sockaddr` of AF_UNSPEC: connected to that, a socket of TCP resets its connection.
pub(super) const UNSPECIFIED: [u8; 16] = [0; 16];

impl Conn {
    /// Whether it is upgraded, and not back on TCP in both directions.
    pub fn needs_device(&self) -> bool {
        let ph = self.phase();
        ph.is_committed() && !(ph.sends_go_back() && ph.receives_are_back())
    }

    /// Whether the device was taken away; then all its connections have ended.
    #[cold]
    pub fn has_no_device(&self) -> bool {
        let kind = self.kind();
        if !self.needs_device() || !table::is_removed(kind) {
            return false;
        }
        if !self.phase().has(p::BROKEN) {
            verdict::end_device(kind);
            if !self.phase().has(p::BROKEN) {
                // The process that we were forked from has upgraded it.
                self.break_now(true);
            }
        }
        true
    }

    /// Breaks it, wherever it is used, also at the peer if that is to be told.
    pub(crate) fn break_now(&self, tell: bool) {
        // Its number is the application's and noted nowhere below it.
        if let Some(fd) = crate::sys::another_descriptor_of(self.own().inode.load(Relaxed)) {
            self.broken_and_told(fd, tell);
            crate::sys::close(fd);
        }
    }

    /// The peer broke the protocol, or what it sent was damaged, or the device was removed: this
    /// connection ends with ECONNRESET, others don't notice. Where the device reaches the peer no
    /// more, all connections of the link group end with it.
    #[cold]
    pub(crate) fn broken(&self, fd: i32) {
        self.broken_and_told(fd, false);
    }

    fn broken_and_told(&self, fd: i32, tell: bool) {
        let damaged = self.phase().has(p::DAMAGED);
        let removed = table::is_removed(self.kind());
        let why = match (damaged, removed) {
            (true, _) => reason::DAMAGED,
            (_, true) => reason::REMOVED,
            _ => reason::VIOLATION,
        };
        if self.break_for(fd, why, tell)
            && let Some(t) = table::get().filter(|_| damaged || !removed)
        {
            if damaged { &t.stats.damaged } else { &t.stats.violations }.fetch_add(1, Relaxed);
        }
    }

    /// Ends it with ECONNRESET for a reason that need not be the peer's fault, of which the peer is
    /// told through the ring if that is wanted; false if it was broken before.
    #[cold]
    pub(crate) fn break_for(&self, fd: i32, why: Reason, tell: bool) -> bool {
        let first = !self.set(p::BROKEN).has(p::BROKEN);
        if first {
            // A peer that is told disconnects, which before the mark could pass for an end here.
            if tell {
                self.tell_gone(fd);
            }
            if self.cut_off() {
                verdict::end_group(self.link_group());
            }
            self.set_reason(why);
            self.tell(why);
            crate::sys::setsockopt(fd, libc::SOL_SOCKET, libc::SO_LINGER, &[1i32, 0]);
            // A peer is not to have a FIN, which would pass for the end of a whole stream: one that was
            // told and woken needs nothing more, and another one gets the kernel's reset.
            let told = self.ending.said() & GONE != 0 && self.sends_on_ring();
            if told {
                crate::sys::shutdown(fd, libc::SHUT_RD);
            } else if crate::sys::connect(fd, &UNSPECIFIED) < 0 {
                crate::sys::shutdown(fd, libc::SHUT_RDWR);
            }
        }
        first
    }
}
