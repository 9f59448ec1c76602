//! How long a call waits for a connection that is being made, and which signals end that.
#![allow(unsafe_code)]

use super::{Socket, last_error};
use crate::kernel;
use core::ptr::null;
use core::sync::atomic::Ordering;
use shm::Errno;
use std::time::{Duration, Instant};

/// Another thread that takes the last step in the meantime leaves nothing to wait for, or takes what
/// would have woken this one: it looks again before long.
const LOOK_AGAIN: Duration = Duration::from_millis(20);
/// The kernel's signals.
const SIGNALS: core::ops::RangeInclusive<i32> = 1..=64;

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Wait {
    Not,
    ForEver,
    Until(Instant),
}

impl Wait {
    pub fn of(block: bool) -> Self {
        if block { Self::ForEver } else { Self::Not }
    }

    /// For so long since `start`; None: for ever.
    pub fn within(start: Instant, limit: Option<Duration>) -> Self {
        limit.and_then(|limit| start.checked_add(limit)).map_or(Self::ForEver, Self::Until)
    }

    /// How long to sleep until the next look. EAGAIN: the time is over.
    fn sleep(self) -> Result<Duration, Errno> {
        match self {
            Self::Not => Err(Errno::AGAIN),
            Self::ForEver => Ok(LOOK_AGAIN),
            Self::Until(end) => match end.saturating_duration_since(Instant::now()) {
                Duration::ZERO => Err(Errno::AGAIN),
                left => Ok(left.min(LOOK_AGAIN)),
            },
        }
    }

    /// The thread's mask, and with it the signals that do not end the call. `ppoll` is interrupted by
    /// every handler; so those of SA_RESTART wait until it returns, and the call goes on behind them.
    /// As in the kernel, no call with a time limit does.
    fn mask(self) -> libc::sigset_t {
        // SAFETY: zero is an empty set.
        let mut mask: libc::sigset_t = unsafe { core::mem::zeroed() };
        // SAFETY: asks for the thread's own.
        unsafe { libc::pthread_sigmask(libc::SIG_BLOCK, null(), &raw mut mask) };
        if self == Self::ForEver {
            for signal in SIGNALS.filter(|signal| restarts(*signal)) {
                // SAFETY: a set, and a signal that there is.
                unsafe { libc::sigaddset(&raw mut mask, signal) };
            }
        }
        mask
    }
}

/// Whether the signal has a handler after which calls go on.
fn restarts(signal: i32) -> bool {
    // SAFETY: zero is an action.
    let mut action: libc::sigaction = unsafe { core::mem::zeroed() };
    // SAFETY: asks. libc has no answer for those that it keeps for itself.
    let asked = unsafe { libc::sigaction(signal, null(), &raw mut action) };
    asked == 0
        && ![libc::SIG_DFL, libc::SIG_IGN].contains(&action.sa_sigaction)
        && action.sa_flags & libc::SA_RESTART != 0
}

impl Socket {
    /// How long a call that blocks may wait, if not for ever.
    pub(super) fn limit(&self, block: bool, of_sends: bool) -> Option<Duration> {
        let limit = self.options.limits[usize::from(of_sends)].load(Ordering::Relaxed);
        (block && limit != 0).then(|| Duration::from_micros(limit))
    }

    /// How long a connect waits before it fails with EINPROGRESS.
    pub(super) fn wait_to_connect(&self, start: Instant) -> Wait {
        match !self.is_nonblocking() {
            true => Wait::within(start, self.limit(true, true)),
            false => Wait::Not,
        }
    }

    pub(super) fn wait_to_advance(&self, wait: Wait) -> Result<(), Errno> {
        let limit = wait.sleep()?;
        let entry = |(fd, events)| libc::pollfd { fd, events, revents: 0 };
        let mut fds: Vec<libc::pollfd> = self.wait_fds().map(entry).collect();
        if fds.is_empty() {
            return Ok(());
        }
        let limit = libc::timespec { tv_sec: 0, tv_nsec: limit.subsec_nanos().into() };
        let mask = wait.mask();
        // SAFETY: a slice of entries, a time, and a set.
        let n = unsafe {
            kernel::ppoll(fds.as_mut_ptr(), fds.len(), &raw const limit, &raw const mask)
        };
        if n < 0 { Err(last_error()) } else { Ok(()) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_wait_ends_with_its_time() {
        let now = Instant::now();
        assert_eq!(Wait::of(false).sleep(), Err(Errno::AGAIN));
        assert_eq!(Wait::within(now, Some(Duration::ZERO)).sleep(), Err(Errno::AGAIN));
        let hour = Wait::within(now, Some(Duration::from_secs(3600)));
        assert_eq!(hour.sleep(), Ok(LOOK_AGAIN));
        assert_eq!(Wait::within(now, Some(Duration::MAX)), Wait::ForEver, "beyond the clock");
    }
}
