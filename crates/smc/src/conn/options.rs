//! Socket options that a doorbell on the TCP stream could not live with: the application's are kept
//! here, the kernel has ours. Both may set one at the same moment. SYNC: options. The upgrade marks
//! its phase, then sets; the application keeps its value, sets, then looks at the phase. So whoever
//! sets last knows of the other.

use super::*;
use crate::inet::TcpInfo;
use crate::sys;

const NODELAY: u32 = 1;
const CORK: u32 = 2;
const BOTH: u32 = NODELAY | CORK;
/// How far above a value the bit is that says that the application set it.
const KNOWN: u32 = 2;

impl Conn {
    /// The application sets TCP_NODELAY (`bit` 1) or TCP_CORK (`bit` 2).
    pub fn keep_nodelay(&self, bit: u32, on: bool) {
        let set = |u| Some((u & !bit) | if on { bit } else { 0 } | bit << KNOWN);
        let _ = self.identity.user_nodelay.fetch_update(SeqCst, SeqCst, set);
    }

    /// Whether TCP_CORK holds small pieces back.
    pub(super) fn is_corked(&self) -> bool {
        self.identity.user_nodelay.load(Relaxed) & CORK != 0
    }

    /// What the kernel says of options that the application has not set on this descriptor.
    pub fn found_nodelay(&self, nodelay: bool, cork: bool) {
        let found = u32::from(nodelay) | u32::from(cork) << 1;
        let fill = |u: u32| {
            let known = u >> KNOWN & BOTH;
            Some((u & !BOTH) | (u & known) | (found & !known))
        };
        let _ = self.identity.user_nodelay.fetch_update(SeqCst, SeqCst, fill);
    }

    /// Leftovers that Nagle or a cork holds back go now, and doorbells are never held back.
    pub(super) fn prompt(&self, fd: i32) {
        // SYNC: options.
        if self.identity.user_nodelay.load(SeqCst) & CORK != 0 {
            sys::setsockopt(fd, libc::IPPROTO_TCP, libc::TCP_CORK, &0i32);
        }
        // Also where it is set already: what was said to have more behind it goes with that.
        sys::setsockopt(fd, libc::IPPROTO_TCP, libc::TCP_NODELAY, &1i32);
    }

    /// Takes `prompt` back.
    pub(super) fn restore_delays(&self, fd: i32) {
        let user = self.identity.user_nodelay.load(Relaxed);
        sys::setsockopt(fd, libc::IPPROTO_TCP, libc::TCP_NODELAY, &((user & NODELAY) as i32));
        sys::setsockopt(fd, libc::IPPROTO_TCP, libc::TCP_CORK, &((user >> 1 & 1) as i32));
    }

    /// The application has just set one of them in the kernel.
    pub fn keep_prompt(&self, fd: i32) {
        let ph = self.phase.now_in_order();
        if ph.switched() || ph.sends() == Sends::Switching {
            self.prompt(fd);
        }
    }

    /// From the exposure on a single byte may be a doorbell, and must wake.
    pub fn keep_waking(&self, fd: i32) {
        if self.phase.now_in_order().is_exposed() && self.identity.user_rcvlowat.load(SeqCst) > 1 {
            sys::setsockopt(fd, libc::SOL_SOCKET, libc::SO_RCVLOWAT, &1i32);
        }
    }

    /// Bytes from which on poll calls the connection readable. As the kernel's it is never more
    /// than half of the buffer.
    pub(super) fn mark(&self) -> usize {
        let half = self.rx_room() / 2;
        self.identity.user_rcvlowat.load(Relaxed).min(half.max(1)) as usize
    }

    /// Whether the kernel has bytes that are too few for the application's mark. The kernel's own
    /// mark is 1 by then, so that a doorbell wakes: a level-triggered wait for it would not sleep.
    pub fn short_of_mark(&self, fd: i32) -> bool {
        let ph = self.phase();
        if self.identity.user_rcvlowat.load(Relaxed) <= 1
            || !ph.is_exposed()
            || ph.receives_on_ring() && self.rx.tcp_left() == 0
        {
            return false;
        }
        let there = if ph.receives_on_ring() { self.unread(fd) } else { self.queued(fd) };
        // The peer may not be able to send what is missing. The kernel does not insist either then.
        (1..self.mark()).contains(&there)
            && TcpInfo::of(fd).is_some_and(|info| !info.nearly_shut(fd, there))
    }

    /// What the upgrade set on the socket becomes what the application had set.
    pub(super) fn restore_options(&self, fd: i32) {
        self.restore_delays(fd);
        let low = self.identity.user_rcvlowat.load(Relaxed).max(1);
        sys::setsockopt(fd, libc::SOL_SOCKET, libc::SO_RCVLOWAT, &(low as i32));
    }
}
