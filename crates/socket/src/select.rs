//! select by poll, with select's meaning of the events.
#![allow(unsafe_code)]

use alloc::vec::Vec;

use libc::{fd_set, pollfd, sigset_t};
use smc::{hidden, sys};

use crate::{fail, fds, poll};

/// Who has answered a select.
pub enum Selected {
    /// This library: the count or -errno.
    Here(isize),
    /// The kernel is to be asked, about descriptors below this one.
    Kernel(i32),
}

// fd_set is an array of longs, as long as the application made it: sets beyond FD_SETSIZE exist.
unsafe fn has(set: *const fd_set, fd: usize) -> bool {
    // SAFETY: fd < n, for which the application's set has room.
    !set.is_null()
        && unsafe { set.cast::<u64>().wrapping_add(fd / 64).read() } >> (fd % 64) & 1 == 1
}

unsafe fn put(set: *mut fd_set, fd: usize, on: bool) {
    if !set.is_null() {
        // SAFETY: as in `has`.
        let word = unsafe { &mut *set.cast::<u64>().wrapping_add(fd / 64) };
        *word = *word & !(1 << (fd % 64)) | u64::from(on) << (fd % 64);
    }
}

const READ: i16 = libc::POLLIN | libc::POLLRDNORM;
const WRITE: i16 = libc::POLLOUT | libc::POLLWRNORM;

/// As many descriptors as the kernel would look at of `n`: it goes by the size of the descriptor
/// table, which without our hidden descriptors, high up, would end with the program's own. Programs
/// that pass getdtablesize() count on that: their sets are shorter.
fn within_table(n: i32) -> i32 {
    const SET: i32 = libc::FD_SETSIZE as i32;
    if n <= SET || hidden::all().next().is_none() {
        return n;
    }
    let mut end = n.min(sys::descriptor_table_size());
    while end > SET {
        let begin = (end - sys::LOOK).max(SET);
        if let Some(highest) = sys::open_among(begin..end).rfind(|&fd| !hidden::contains(fd)) {
            return n.min((highest + 64) / 64 * 64);
        }
        end = begin;
    }
    SET
}

/// select and pselect. Where it was answered here, the front says how much time is left.
///
/// # Safety
/// The sets must be the application's, and have room for `n` descriptors where they can be read.
pub unsafe fn select(
    n: i32,
    [r, w, e]: [*mut fd_set; 3],
    timeout: Option<u64>,
    mask: *const sigset_t,
) -> Selected {
    let n = within_table(n);
    let unreadable = |set: *mut fd_set| !set.is_null() && crate::faulty(set);
    if n <= 0 || !fds::readiness_differs() || unreadable(r) || unreadable(w) || unreadable(e) {
        return Selected::Kernel(n);
    }
    let mut l = Vec::new();
    for fd in 0..n as usize {
        // SAFETY: fd < n.
        let [ri, wi, ei] = [r, w, e].map(|set| unsafe { has(set, fd) });
        let events = if ri { READ } else { 0 }
            | if wi { WRITE } else { 0 }
            | if ei { libc::POLLPRI } else { 0 };
        if events != 0 {
            l.push(pollfd { fd: fd as i32, events, revents: 0 });
        }
    }
    if !poll::concerns(&l) {
        return Selected::Kernel(n);
    }
    // One that another thread closes meanwhile the kernel tells as ready for all that was asked.
    let open: Vec<i32> =
        l.iter().map(|p| p.fd).filter(|&fd| fds::kind(fd) != fds::Kind::Other).collect();
    // SAFETY: forwarded.
    let got = unsafe { poll::wait(&mut l, timeout, mask) };
    if got < 0 {
        return Selected::Here(got);
    }
    if l.iter().any(|p| p.revents & libc::POLLNVAL != 0 && !open.contains(&p.fd)) {
        return Selected::Here(fail(libc::EBADF));
    }
    let mut count = 0;
    for p in &l {
        let fd = p.fd as usize;
        let on = |bits: i16, asked: i16| p.revents & bits != 0 && p.events & asked != 0;
        let readable = on(READ | libc::POLLHUP | libc::POLLERR | libc::POLLNVAL, libc::POLLIN);
        let writable = on(WRITE | libc::POLLERR | libc::POLLNVAL, libc::POLLOUT);
        let urgent = on(libc::POLLPRI | libc::POLLNVAL, libc::POLLPRI);
        for (set, on) in [(r, readable), (w, writable), (e, urgent)] {
            // SAFETY: fd < n.
            unsafe { put(set, fd, on) };
        }
        count += isize::from(readable) + isize::from(writable) + isize::from(urgent);
    }
    Selected::Here(count)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tests::{recv, send, serial, upgraded};

    fn set_of(fds: &[i32]) -> fd_set {
        // SAFETY: all-zero is the empty set.
        let mut set: fd_set = unsafe { core::mem::zeroed() };
        for &fd in fds {
            // SAFETY: below FD_SETSIZE in tests.
            unsafe { put(&raw mut set, fd as usize, true) };
        }
        set
    }

    #[test]
    fn what_is_closed_under_a_select_is_told_as_ready() {
        let _turn = serial();
        let pair = upgraded();
        std::thread::scope(|scope| {
            let asks = scope.spawn(|| {
                let mut set = set_of(&[pair.1]);
                let sets = [&raw mut set, core::ptr::null_mut(), core::ptr::null_mut()];
                // SAFETY: live sets.
                match unsafe { select(1024, sets, Some(20_000_000_000), core::ptr::null()) } {
                    Selected::Here(n) => n,
                    Selected::Kernel(_) => panic!("it is upgraded"),
                }
            });
            while crate::tests::port(pair.1).conn.sleepers.inside().next().is_none() {
                std::thread::yield_now();
            }
            crate::tests::close(pair.1);
            send(pair.0, b"1", 0);
            assert_eq!(asks.join().unwrap(), 1);
        });
    }

    #[test]
    fn sets_are_answered_bit_by_bit() {
        let _turn = serial();
        let pair = upgraded();
        let ask = |r: &[i32], w: &[i32]| {
            let (mut rs, mut ws) = (set_of(r), set_of(w));
            // SAFETY: live sets.
            let got = unsafe {
                select(
                    1024,
                    [&raw mut rs, &raw mut ws, core::ptr::null_mut()],
                    Some(0),
                    core::ptr::null(),
                )
            };
            let Selected::Here(n) = got else { panic!("it is upgraded") };
            // SAFETY: live sets.
            let holds = |set: &fd_set, fd: i32| unsafe { has(set, fd as usize) };
            let on = |set, fds: &[i32]| fds.iter().copied().filter(|fd| holds(set, *fd)).collect();
            let (r, w): (Vec<i32>, Vec<i32>) = (on(&rs, r), on(&ws, w));
            (n, r, w)
        };
        assert_eq!(ask(&[pair.1], &[pair.0]), (1, vec![], vec![pair.0]));
        send(pair.0, b"1", 0);
        assert_eq!(ask(&[pair.1, pair.0], &[pair.0]), (2, vec![pair.1], vec![pair.0]));
        recv(pair.1, 1, 0).unwrap();
        let closed = sys::fcntl(pair.0, libc::F_DUPFD, 0) as i32;
        sys::close(closed);
        assert_eq!(ask(&[pair.1, closed], &[]).0, -(libc::EBADF as isize));
    }
}
