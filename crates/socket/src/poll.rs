//! poll and select for upgraded connections, between the rings and the kernel's poll.
#![allow(unsafe_code)]

use alloc::vec::Vec;
use core::sync::atomic::Ordering::*;

use libc::{nfds_t, pollfd, sigset_t};
use smc::conn::sleepers::{READS, WRITES};
use smc::conn::wakeups::now_us;
use smc::conn::{Conn, ERR, HUP, IN, OUT, RDHUP, rest};
use smc::sys;

use crate::bell::Sleep;
use crate::fds::{self, Kind, drain};
use crate::settle::settle;
use crate::spin::Spin;
use crate::wait::Stay;
use crate::{epoll, kernel};

/// Longest sleep while a connection waits for space that its peer cannot announce.
const SILENT_NS: u64 = 2_000_000;

/// Descriptors among which a bell is a gain.
const FEW: usize = 64;

/// What a descriptor's readiness depends on.
enum Watched {
    Kernel,
    Conn(&'static Conn),
    Set(u32),
}

fn watched(fd: i32) -> Watched {
    if fd < 0 {
        return Watched::Kernel;
    }
    match fds::kind(fd) {
        Kind::Conn(i) => {
            let c = fds::conn(i);
            settle(fds::port_at(i, fd));
            let marked = c.is_exposed() && c.identity.user_rcvlowat.load(Relaxed) > 1;
            if c.needs_us() || marked { Watched::Conn(c) } else { Watched::Kernel }
        }
        Kind::Epoll(i) if epoll::hooked(i) => Watched::Set(i),
        _ => Watched::Kernel,
    }
}

/// poll and ppoll. `timeout` in nanoseconds, None for ever; `plain` is the application's own call.
///
/// # Safety
/// The application's obligations.
pub unsafe fn poll(
    fds: *mut pollfd,
    n: nfds_t,
    timeout: Option<u64>,
    mask: *const sigset_t,
    plain: impl Fn() -> isize,
) -> isize {
    if crate::faulty(fds) || n == 0 || n > 1 << 20 {
        return plain();
    }
    // SAFETY: the application vouches for n entries.
    let list = unsafe { core::slice::from_raw_parts_mut(fds, n as usize) };
    if !concerns(list) {
        return plain();
    }
    // SAFETY: the application vouches for the mask.
    unsafe { wait(list, timeout, mask) }
}

/// Whether any of the descriptors needs more than the kernel's poll.
pub fn concerns(list: &[pollfd]) -> bool {
    fds::readiness_differs()
        && list.iter().any(|p| p.fd >= 0 && !matches!(watched(p.fd), Watched::Kernel))
}

fn events_of(c: &Conn, p: &pollfd) -> i16 {
    (c.ready(p.fd) & (p.events as u16 as u32 | ERR | HUP) & 0xffff) as i16
}

/// Fills in what is ready in user space; how many entries are.
fn look(list: &mut [pollfd]) -> usize {
    let mut n = 0;
    let ticks = sys::ticks();
    for p in list.iter_mut() {
        p.revents = match watched(p.fd) {
            Watched::Kernel => 0,
            Watched::Conn(c) => {
                c.look_now_and_then(p.fd, ticks);
                events_of(c, p)
            }
            Watched::Set(i) => {
                if epoll::set_ready(i) {
                    p.events & (IN as i16)
                } else {
                    0
                }
            }
        };
        n += usize::from(p.revents != 0);
    }
    n
}

/// poll with nanoseconds (None: for ever).
///
/// # Safety
/// `mask` must be null or valid.
pub unsafe fn wait(list: &mut [pollfd], timeout: Option<u64>, mask: *const sigset_t) -> isize {
    let end = timeout.map(|t| kernel::get().now_ns().saturating_add(t));
    let mut asked: Vec<pollfd> = list.to_vec();
    let (mut spun, mut with_bell) = (false, list.len() <= FEW);
    rest::stir();
    loop {
        let drains = drain::look();
        let ready = look(list);
        if ready > 0 || timeout == Some(0) || (!mask.is_null() && !spun) {
            // SAFETY: forwarded.
            let r = unsafe { ask(list, &mut asked, Some(0), mask) };
            if r < 0 && ready == 0 {
                return r;
            }
            let n = merge(list, &asked);
            if n == 0 && timeout == Some(0) && !mask.is_null() {
                // An old doorbell has kept the kernel's look from ending for a signal that the mask
                // lets in. SAFETY: forwarded.
                return unsafe { ask(&[], &mut [], timeout, mask) };
            }
            if n > 0 || timeout == Some(0) {
                return n;
            }
        }
        if !spun
            && let Some(c) = first_remote(list)
            && let Some(spin) = Spin::try_now(&c.identity.spin)
        {
            spun = true;
            if spin.until(|| {
                list.iter().any(|p| matches!(watched(p.fd), Watched::Conn(c) if wanted(c, p)))
            }) {
                continue;
            }
        }
        spun = true;
        // Before arming, see `Seat::sleeps`.
        let asleep = Asleep::on(list);
        let mut bell = if with_bell { Sleep::begin() } else { None };
        let (silent, held, soonest) = arm(list, bell.as_mut());
        if look(list) > 0 {
            continue;
        }
        let mut left = end.map(|e| e.saturating_sub(kernel::get().now_ns()));
        let nap = if silent || held { Some(SILENT_NS) } else { rest::before_sleep().or(drains) };
        for nap in nap.into_iter().chain(soonest) {
            left = Some(left.unwrap_or(nap).min(nap));
        }
        let slept = now_us();
        asked.truncate(list.len());
        asked.extend(bell.as_ref().map(Sleep::asked));
        // SAFETY: forwarded.
        let r = unsafe { ask(list, &mut asked, left, mask) };
        drop(asleep);
        if r == -(libc::EINVAL as isize) && bell.is_some() {
            // One descriptor more than the program may have.
            with_bell = false;
            continue;
        }
        let rung = bell.as_mut().is_some_and(|bell| bell.told(asked.last()));
        drop(bell);
        if r < 0 {
            return r;
        }
        for (p, k) in list.iter().zip(&asked) {
            if let Watched::Conn(c) = watched(p.fd) {
                c.kernel_end(k.revents as u16 as u32);
                if rung || k.revents & libc::POLLIN != 0 {
                    c.woken(slept);
                }
                if k.revents & (libc::POLLIN | libc::POLLPRI) == libc::POLLIN && !c.has_news() {
                    c.check_stray(p.fd);
                }
            }
        }
        look(list);
        let n = merge(list, &asked);
        if n > 0 || end.is_some_and(|e| kernel::get().now_ns() >= e) {
            return n;
        }
    }
}

fn wanted(c: &Conn, p: &pollfd) -> bool {
    let want = p.events as u16 as u32;
    (want & (IN | RDHUP) != 0 && c.has_news() && events_of(c, p) != 0)
        || (want & OUT != 0 && c.ready(p.fd) & OUT != 0)
}

fn first_remote(list: &[pollfd]) -> Option<&'static Conn> {
    // Spinning over many descriptors is slower than sleeping on them.
    list.iter().take(8).find_map(|p| match watched(p.fd) {
        Watched::Conn(c) if c.peer_elsewhere() => Some(c),
        _ => None,
    })
}

/// Asks for doorbells; whether some peer cannot ring, and whether a stale doorbell had to be left
/// or a low-water mark is not reached: both to be looked at again soon. And when a peer must have
/// made room, at the latest.
fn arm(list: &[pollfd], mut bell: Option<&mut Sleep>) -> (bool, bool, Option<u64>) {
    let (mut silent, mut held, mut soonest) = (false, false, None::<u64>);
    let mut covered = Vec::new();
    let mut counted = Vec::new();
    if let Some(bell) = &mut bell {
        // As many as have a seat for data (`Asleep::on`).
        let conns = list.iter().filter(|p| p.events as u16 as u32 & IN != 0);
        let conns = conns.filter(|p| matches!(watched(p.fd), Watched::Conn(_)));
        covered.extend(conns.filter_map(|p| fds::existing(p.fd)));
        bell.only_on(&covered);
        covered.retain(|port| bell.covers(*port));
        // Before the bell is armed: a doorbell counted afterwards may answer this very arm, for data
        // that another thread has read since. Taken off as stale, it would leave us asleep with no
        // arm outstanding.
        counted.extend(covered.iter().map(|port| port.conn.doorbells_seen()));
        bell.arm();
    }
    for p in list {
        match watched(p.fd) {
            Watched::Conn(c) => {
                let want = p.events as u16 as u32;
                held |= c.is_unarmed();
                let place = covered.iter().position(|port| core::ptr::eq(port.conn, c));
                let seen = place.map_or_else(|| c.doorbells_seen(), |at| counted[at]);
                if place.is_none() {
                    held |= !c.arm_data();
                }
                if want & OUT != 0 && c.sends_on_ring() {
                    c.arm_space();
                    silent |= c.space_is_silent() && c.ready(p.fd) & OUT == 0;
                    soonest = soonest.into_iter().chain(c.patience(p.fd)).min();
                }
                if events_of(c, p) == 0 {
                    held |= want & IN != 0 && c.short_of_mark(p.fd);
                    held |= c.clear_stale(p.fd, seen, want & IN != 0, want & OUT != 0);
                }
            }
            // Of its connections, too, some may have a peer that cannot ring.
            Watched::Set(i) => soonest = soonest.into_iter().chain(epoll::arm_set(i)).min(),
            Watched::Kernel => {}
        }
    }
    (silent, held, soonest)
}

/// What poll is about to sleep on.
struct Asleep {
    conns: Vec<Stay>,
    sets: Vec<u32>,
}

impl Asleep {
    fn on(list: &[pollfd]) -> Self {
        let mut asleep = Self { conns: Vec::new(), sets: Vec::new() };
        for p in list {
            match fds::kind(p.fd) {
                Kind::Conn(i) => {
                    let wants =
                        |events, kind| if p.events as u16 as u32 & events != 0 { kind } else { 0 };
                    let mut stay = Stay::new(fds::port_at(i, p.fd));
                    stay.sleeps_too(wants(IN, READS) | wants(OUT, WRITES));
                    asleep.conns.push(stay);
                }
                Kind::Epoll(i) => {
                    epoll::enter(i);
                    asleep.sets.push(i);
                }
                _ => {}
            }
        }
        asleep
    }
}

impl Drop for Asleep {
    fn drop(&mut self) {
        for &set in &self.sets {
            epoll::leave(set);
        }
    }
}

/// The kernel's poll, asked about upgraded connections only for doorbells and ends.
unsafe fn ask(
    list: &[pollfd],
    asked: &mut [pollfd],
    left: Option<u64>,
    mask: *const sigset_t,
) -> isize {
    for (p, k) in list.iter().zip(asked.iter_mut()) {
        *k = pollfd { fd: p.fd, events: p.events, revents: 0 };
        if let Watched::Conn(c) = watched(p.fd) {
            let ph = c.phase();
            k.events = p.events & (libc::POLLPRI | libc::POLLIN | libc::POLLRDHUP);
            if !c.receives_are_back() {
                k.events |= libc::POLLIN | libc::POLLRDHUP;
            }
            if c.short_of_mark(p.fd) {
                k.events &= !libc::POLLIN;
            }
            let want = p.events as u16 as u32;
            if want & IN == 0 && c.space_is_silent() {
                // The kernel would report payload that is left there, or the peer's end, for ever;
                // `arm` has seen to it that we look by ourselves.
                k.events &= !libc::POLLIN;
                if want & RDHUP == 0 {
                    k.events &= !libc::POLLRDHUP;
                }
            }
            if !ph.sends_on_ring() {
                k.events |= p.events & (OUT as i16);
            }
            if c.owes() {
                // The next look sends what there is room for then.
                k.events |= libc::POLLOUT;
            }
        }
    }
    let limit = left.map(kernel::duration);
    let limit = limit.as_ref().map_or(core::ptr::null(), core::ptr::from_ref);
    // SAFETY: `asked` is live; the rest is forwarded.
    unsafe { kernel::get().ppoll(asked.as_mut_ptr(), asked.len() as nfds_t, limit, mask) }
}

/// Puts the kernel's answers for plain descriptors beside ours; how many entries are ready.
fn merge(list: &mut [pollfd], asked: &[pollfd]) -> isize {
    let mut n = 0;
    for (p, k) in list.iter_mut().zip(asked) {
        match watched(p.fd) {
            // The urgent byte is always the kernel's.
            Watched::Conn(_) => p.revents |= k.revents & p.events & libc::POLLPRI,
            Watched::Set(i) => {
                // The kernel's view may rest on a doorbell whose data is gone: the application's
                // look at the set, which finds nothing, clears that.
                p.revents = if epoll::set_ready(i) { p.events & (IN as i16) } else { k.revents };
            }
            // It has come back to TCP since: it was asked about for our own ends, too.
            Watched::Kernel if k.events != p.events => {
                p.revents = sys::poll_now(p.fd, p.events);
            }
            Watched::Kernel => p.revents = k.revents,
        }
        n += isize::from(p.revents != 0);
    }
    n
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::endpoint;
    use crate::tests::{Answer::*, Epoll, SCRIPTED, recv, send, serial, upgraded};

    fn ask(fd: i32, events: i16, timeout: Option<u64>) -> (isize, i16) {
        let mut list = [pollfd { fd: -1, events, revents: 1 }, pollfd { fd, events, revents: 0 }];
        // SAFETY: a live list.
        let r = unsafe {
            super::poll(list.as_mut_ptr(), 2, timeout, core::ptr::null(), || {
                panic!("it is upgraded")
            })
        };
        (r, list[1].revents)
    }

    #[test]
    fn a_ring_is_readable_and_writable_by_what_is_in_it() {
        let _turn = serial();
        let pair = upgraded();
        assert_eq!(ask(pair.1, libc::POLLIN, Some(0)), (0, 0));
        assert_eq!(ask(pair.1, libc::POLLIN | libc::POLLOUT, Some(0)), (1, libc::POLLOUT));
        send(pair.0, b"1", 0);
        assert_eq!(ask(pair.1, libc::POLLIN, None), (1, libc::POLLIN));
        while send(pair.0, &[7; 4096], libc::MSG_DONTWAIT) > 0 {}
        assert_eq!(ask(pair.0, libc::POLLOUT, Some(0)), (0, 0));
        while recv(pair.1, 4096, libc::MSG_DONTWAIT).is_ok() {}
        assert_eq!(ask(pair.0, libc::POLLOUT, None), (1, libc::POLLOUT));
    }

    /// A peer that has shut its stream rings no more for room.
    #[test]
    fn a_set_whose_peers_cannot_ring_is_looked_at_again() {
        let _turn = serial();
        let (pair, ep) = (upgraded(), Epoll::new());
        ep.add(pair.0, libc::POLLOUT.into());
        let shut = || sys::shutdown(pair.1, libc::SHUT_WR);
        assert_eq!(endpoint::shutdown(pair.1, libc::SHUT_WR, shut), 0);
        while send(pair.0, &[7; 4096], libc::MSG_DONTWAIT) > 0 {}
        assert_eq!(ep.now(), []);
        let list = [pollfd { fd: ep.0, events: libc::POLLIN, revents: 0 }];
        assert!(arm(&list, None).2.is_some_and(|ns| ns <= SILENT_NS));
    }

    #[test]
    fn a_signal_and_a_limit_end_it() {
        let _turn = serial();
        let pair = upgraded();
        // The first entry of the list has no descriptor.
        SCRIPTED.script(-1, &[Is(-(libc::EINTR as isize))]);
        assert_eq!(ask(pair.1, libc::POLLIN, None).0, -(libc::EINTR as isize));
        SCRIPTED.script(-1, &[Passes(2_000_000_000)]);
        assert_eq!(ask(pair.1, libc::POLLIN, Some(1_000_000_000)), (0, 0));
        SCRIPTED.script(-1, &[]);
    }
}
