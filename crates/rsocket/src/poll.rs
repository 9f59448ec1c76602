//! rpoll and rselect: rsockets and other descriptors in one wait.
#![allow(unsafe_code)]

use crate::socket::{Phase, Socket, Wait, last_error};
use crate::{config, kernel, table};
use shm::Errno;
use std::time::{Duration, Instant};

/// As `poll`: the number of entries with events, after at most `timeout` (None: for ever).
pub fn poll(fds: &mut [libc::pollfd], timeout: Option<Duration>) -> Result<usize, Errno> {
    poll_under(None, fds, timeout)
}

/// [`poll`], as `ppoll` does it: under that mask of signals while it sleeps.
pub fn poll_under(
    mask: Option<&libc::sigset_t>,
    fds: &mut [libc::pollfd],
    timeout: Option<Duration>,
) -> Result<usize, Errno> {
    let start = Instant::now();
    let left = |limit: Duration| limit.saturating_sub(start.elapsed());
    let spin = config::defaults().polling;
    if mask.is_some() && check(fds)? == 0 {
        let_signals_in(mask)?;
    }
    loop {
        let count = check(fds)?;
        if count != 0 || timeout.is_some_and(|t| left(t).is_zero()) {
            return Ok(count);
        }
        if left(spin).is_zero() {
            break;
        }
        core::hint::spin_loop();
    }
    loop {
        if wait(fds, timeout.map(left), mask)? {
            let count = check(fds)?;
            if count != 0 {
                return Ok(count);
            }
        }
        if timeout.is_some_and(|t| left(t).is_zero()) {
            return check(fds);
        }
    }
}

/// One look at everything.
fn check(fds: &mut [libc::pollfd]) -> Result<usize, Errno> {
    let mut others = false;
    for entry in fds.iter_mut() {
        entry.revents = 0;
        match table::find(entry.fd) {
            Some(socket) => entry.revents = look(socket, entry.events),
            None => others |= entry.fd >= 0,
        }
    }
    if others {
        let mut kernel: Vec<libc::pollfd> =
            fds.iter().filter(|e| table::find(e.fd).is_none()).copied().collect();
        kernel_poll(&mut kernel, Some(Duration::ZERO), None)?;
        let others = fds.iter_mut().filter(|e| table::find(e.fd).is_none());
        others.zip(kernel).for_each(|(entry, seen)| entry.revents = seen.revents);
    }
    Ok(fds.iter().filter(|e| e.revents != 0).count())
}

/// What `poll` would say of one rsocket.
pub fn look(socket: &Socket, events: i16) -> i16 {
    if let Some(stream) = socket.streaming() {
        return stream.poll(events);
    }
    match socket.phase() {
        Phase::Listening | Phase::Datagram => {
            let mut one = [libc::pollfd { fd: socket.raw(), events, revents: 0 }];
            let _ = kernel_poll(&mut one, Some(Duration::ZERO), None);
            one[0].revents
        }
        Phase::Connecting | Phase::Requested | Phase::Accepting => {
            match socket.advance(Wait::Not) {
                Ok(()) => socket.streaming().map_or(0, |stream| stream.poll(events)),
                Err(Errno::AGAIN) => 0,
                Err(_) => failed(events),
            }
        }
        Phase::Failed => failed(events),
        Phase::Streaming if socket.is_elsewhere() => failed(events),
        Phase::Idle | Phase::Streaming => 0,
        Phase::Closed => libc::POLLNVAL,
    }
}

fn failed(events: i16) -> i16 {
    const READ: i16 = libc::POLLIN | libc::POLLRDNORM | libc::POLLRDHUP;
    const WRITE: i16 = libc::POLLOUT | libc::POLLWRNORM;
    events & (READ | WRITE) | libc::POLLERR
}

/// How long to sleep beside an rsocket that is no stream yet: another thread may connect it, or take
/// the last step to one, and with it what would have woken this thread.
pub const LOOK_AGAIN: Duration = Duration::from_millis(20);

/// Sleeps until something may have changed. False if that was only the time.
fn wait(
    fds: &[libc::pollfd],
    timeout: Option<Duration>,
    mask: Option<&libc::sigset_t>,
) -> Result<bool, Errno> {
    let mut kernel = Vec::with_capacity(fds.len() + 2);
    // Streams that expect us back, with their place in `kernel`.
    let mut entered = Vec::new();
    let mut ready = false;
    let mut limit = None;
    for entry in fds {
        let Some(socket) = table::find(entry.fd) else {
            kernel.push(*entry);
            continue;
        };
        if let Some(stream) = socket.streaming() {
            if stream.poll_enter(entry.events) != 0 {
                ready = true;
                break;
            }
            entered.push((stream, kernel.len()));
            kernel.push(libc::pollfd { fd: stream.event_fd(), events: libc::POLLIN, revents: 0 });
        } else if matches!(socket.phase(), Phase::Listening | Phase::Datagram) {
            kernel.push(*entry);
        } else {
            let opening = socket.wait_fds();
            kernel.extend(opening.map(|(fd, events)| libc::pollfd { fd, events, revents: 0 }));
            limit = Some(LOOK_AGAIN);
        }
    }
    let shorter = limit.filter(|limit| timeout.is_none_or(|timeout| timeout > *limit));
    let slept = if ready { Ok(1) } else { kernel_poll(&mut kernel, shorter.or(timeout), mask) };
    for (stream, at) in entered {
        stream.poll_leave(kernel[at].revents != 0);
    }
    slept.map(|n| n != 0 || shorter.is_some())
}

/// EINTR if a signal waits for this mask, which then is handled. The mask is in force within calls of
/// the kernel's only: set for a whole wait, it would let a signal in that is lost for the sleep.
pub fn let_signals_in(mask: Option<&libc::sigset_t>) -> Result<(), Errno> {
    kernel_poll(&mut [], Some(Duration::ZERO), mask).map(drop)
}

/// `ppoll` of the kernel's.
pub fn kernel_poll(
    fds: &mut [libc::pollfd],
    timeout: Option<Duration>,
    mask: Option<&libc::sigset_t>,
) -> Result<usize, Errno> {
    let timeout = timeout.map(|t| libc::timespec {
        tv_sec: t.as_secs().min(i64::MAX as u64) as i64,
        tv_nsec: t.subsec_nanos().into(),
    });
    let timeout = timeout.as_ref().map_or(core::ptr::null(), core::ptr::from_ref);
    let mask = mask.map_or(core::ptr::null(), core::ptr::from_ref);
    // SAFETY: a slice of entries, and a time and a mask or nulls.
    let n = unsafe { kernel::ppoll(fds.as_mut_ptr(), fds.len(), timeout, mask) };
    usize::try_from(n).map_err(|_| last_error())
}

/// As `select`, on sets that the caller has made of entries for [`poll`].
pub struct Selected {
    pub readable: bool,
    pub writable: bool,
    pub exceptional: bool,
}

impl Selected {
    /// What `select` reports for `revents`.
    pub fn of(revents: i16) -> Self {
        Self {
            readable: revents & (libc::POLLIN | libc::POLLHUP | libc::POLLERR) != 0,
            writable: revents & (libc::POLLOUT | libc::POLLERR) != 0,
            exceptional: revents & !(libc::POLLIN | libc::POLLOUT | libc::POLLHUP | libc::POLLERR)
                != 0,
        }
    }
}
