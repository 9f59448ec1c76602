//! What is ready in a set, and how a sleeper asks for doorbells.
#![allow(unsafe_code)]

use core::sync::atomic::Ordering::*;

use libc::epoll_event;
use smc::conn::{Conn, ERR, HUP, IN, OUT, RDHUP, Waits};
use smc::sys;

use super::bells::PAGES;
use super::set::{Entry, Held, State, held};
use super::table::{entry, set};
use crate::fds;

/// Empty looks in front of a sleep after which a registration goes cold.
const COLD_AFTER: u32 = 64;

/// A descriptor of the connection: the registered one may be closed while another one lives.
fn io_fd(e: &Entry) -> i32 {
    fds::local(e.conn()).fd.load(Relaxed) as i32
}

/// What a registration has to report, and what an edge-triggered report of it has seen.
struct Due {
    events: u32,
    read: u64,
    space: u32,
    urgent: bool,
}

/// The events to give out for a registration now, by its mode.
fn due(e: &Entry, st: &State, c: &Conn, ticks: u64) -> Due {
    let fd = io_fd(e);
    c.look_at_times(fd, ticks);
    let edge = st.is(libc::EPOLLET);
    // Before the readiness: what comes in between is then an edge of its own.
    let (read, space) = if edge { (c.read_stamp(), c.space_epoch()) } else { (0, 0) };
    let mut ready = c.ready(fd);
    // Level-triggered as long as the kernel has it, and told together with the rest.
    let urgent = (st.urgent || !edge && st.events & libc::EPOLLPRI as u32 != 0)
        && sys::poll_now(fd, libc::POLLPRI) & libc::POLLPRI != 0;
    if urgent {
        ready |= libc::EPOLLPRI as u32;
    }
    let events = ready & (st.events | ERR | HUP) & 0xffff;
    let fresh = !edge
        || events & libc::EPOLLPRI as u32 != 0
        || events & (IN | RDHUP | ERR | HUP) != 0 && read != st.seen_read
        || events & OUT != 0 && space != st.seen_space;
    Due { events: if fresh { events } else { 0 }, read, space, urgent }
}

impl Held {
    /// Gives out what is ready on the hot list and not `told` already; how many events there are.
    ///
    /// # Safety
    /// `out` must be writable for `max` events.
    pub unsafe fn look(&mut self, out: *mut epoll_event, max: usize, told: &[u32]) -> usize {
        let len = self.hot().list.len();
        let mut at = if self.hot().next < len { self.hot().next } else { 0 };
        let mut n = 0;
        for _ in 0..len {
            if n == max {
                break;
            }
            let Some(&i) = self.hot().list.get(at) else { break };
            at = if at + 1 < len { at + 1 } else { 0 };
            if told.contains(&i) {
                continue;
            }
            if let Some(ev) = self.report(i) {
                // SAFETY: n < max.
                unsafe { out.add(n).write(ev) };
                n += 1;
            }
        }
        // Where this look ended the next begins, so that a small `max` starves nobody.
        self.hot().next = at;
        n
    }

    /// Gives out what is ready on the hot list from place `from` on.
    ///
    /// # Safety
    /// As for `look`.
    pub unsafe fn look_behind(&mut self, from: usize, out: *mut epoll_event, max: usize) -> usize {
        let (mut at, mut n) = (from, 0);
        while n < max
            && let Some(&i) = self.hot().list.get(at)
        {
            at += 1;
            if let Some(ev) = self.report(i) {
                // SAFETY: n < max.
                unsafe { out.add(n).write(ev) };
                n += 1;
            }
        }
        n
    }

    /// Takes a registration's event, if it has one.
    pub fn report(&mut self, index: u32) -> Option<epoll_event> {
        let (ticks, rung) = (self.ticks(), self.rung);
        let (e, st) = self.state(index)?;
        let c = e.current().filter(|_| st.enabled)?;
        c.settle_rx(io_fd(e));
        c.keep_bells_flowing(io_fd(e));
        let due = due(e, st, c, ticks);
        st.urgent = due.urgent && !st.is(libc::EPOLLET);
        if due.events == 0 {
            return None;
        }
        if let Some(slept) = rung {
            c.woken(slept);
        }
        st.idle = 0;
        if due.events & (IN | RDHUP | ERR | HUP) != 0 {
            st.seen_read = due.read;
        }
        if due.events & OUT != 0 {
            st.seen_space = due.space;
        }
        st.enabled = !st.is(libc::EPOLLONESHOT);
        Some(epoll_event { events: due.events, u64: st.data })
    }

    /// A registration on the hot list of which `wanted` holds.
    fn find(&mut self, wanted: impl Fn(&Entry, &State, &Conn) -> bool) -> Option<u32> {
        let mut at = 0;
        while let Some(&i) = self.hot().list.get(at) {
            at += 1;
            if let Some((e, st)) = self.state(i)
                && let Some(c) = e.current()
                && st.enabled
                && wanted(e, st, c)
            {
                return Some(i);
            }
        }
        None
    }

    /// A registration that the next look would report.
    pub fn first_due(&mut self) -> Option<u32> {
        let ticks = self.ticks();
        self.find(|e, st, c| due(e, st, c, ticks).events != 0)
    }

    /// A cheap look: has anything changed on the hot list?
    pub fn has_news(&mut self) -> bool {
        let news = |e: &Entry, st: &State, c: &Conn| {
            let edge = st.is(libc::EPOLLET);
            c.has_news() && st.events & IN != 0 && (!edge || c.read_stamp() != st.seen_read)
                || st.events & OUT != 0 && !edge && c.ready(io_fd(e)) & OUT != 0
        };
        self.find(news).is_some()
    }

    /// Whether spinning can bring anything: some hot peer runs on another processor.
    pub fn may_pay(&mut self) -> bool {
        self.hot().list.iter().take(8).any(|&i| entry(i).is_some_and(|e| fds::conn(e.conn()).peer_elsewhere()))
    }

    /// Arms everything hot, so that the next publication on any of it wakes the set. True when some connection must be
    /// looked at from time to time because its peer cannot ring for space.
    pub fn arm(&mut self) -> bool {
        let mut pages = Pages { list: [None; PAGES], used: 0 };
        let (mut silent, mut at) = (false, 0);
        let (wait, epfd) = (self.set.wait.load(Relaxed), self.set.epfd.load(Relaxed));
        while let Some(&i) = self.hot().list.get(at) {
            let Some((e, st)) = self.state(i) else { break };
            let Some(c) = e.current() else {
                // Closed in a signal handler; another one is at its place on the list now.
                self.cool(i);
                continue;
            };
            if st.dormant {
                self.cool(i);
                continue;
            }
            st.idle += 1;
            let mut waits_in_silence = false;
            if st.events & OUT != 0 && c.sends_on_ring() && c.ready(io_fd(e)) & OUT == 0 {
                c.arm_space();
                waits_in_silence = c.space_is_silent();
                silent |= waits_in_silence;
            }
            if st.events & IN != 0 && c.short_of_mark(io_fd(e)) {
                waits_in_silence = true;
                silent = true;
            }
            if c.is_unarmed() {
                waits_in_silence = true;
                silent = true;
            }
            if c.is_muffled() {
                silent = true;
                waits_in_silence = true;
                if core::mem::take(&mut st.covered) {
                    c.uncover(wait);
                }
            }
            if st.idle <= COLD_AFTER || waits_in_silence {
                if (!st.covered || !pages.hold(c)) && !c.is_muffled() {
                    c.arm_data();
                }
                at += 1;
                continue;
            }
            self.cool(i);
            c.arm_data();
            // What came in between would ring nobody: keep it hot.
            if c.has_news() {
                self.heat(i);
            }
        }
        for (page, c) in pages.list[..pages.used].iter().flatten() {
            self.ears().listen(epfd, wait, c, page);
            page.sleep(wait);
        }
        silent
    }

    /// Nobody sleeps on the set any more: peers need not ring.
    pub fn disarm(&mut self) {
        let (wait, mut at) = (self.set.wait.load(Relaxed), 0);
        let mut last: *const Waits = core::ptr::null();
        while let Some(&i) = self.hot().list.get(at) {
            at += 1;
            let Some((e, st)) = self.state(i) else { continue };
            let page = if st.covered { fds::conn(e.conn()).peer_waits() } else { core::ptr::null() };
            if !page.is_null() && page != last {
                last = page;
                // SAFETY: a control page, type-stable.
                unsafe { (*page).wake(wait) };
            }
        }
    }
}

/// Control pages of the connections that one sleep covers, each with one of them.
struct Pages {
    list: [Option<(&'static Waits, &'static Conn)>; PAGES],
    used: usize,
}

impl Pages {
    /// Adds the page of a connection; false when there is none or no room for it.
    fn hold(&mut self, c: &'static Conn) -> bool {
        // SAFETY: null, or a control page, type-stable.
        let Some(page) = (unsafe { c.peer_waits().as_ref() }) else { return false };
        if self.list[..self.used].iter().flatten().any(|(held, _)| core::ptr::eq(*held, page)) {
            return true;
        }
        if self.used == PAGES {
            return false;
        }
        self.list[self.used] = Some((page, c));
        self.used += 1;
        true
    }
}

/// Whether a wait on the set would return at once because of a hooked registration: for sets inside poll and epoll.
pub fn set_ready(index: u32) -> bool {
    set(index).and_then(|s| held(index, s)).is_some_and(|mut h| h.first_due().is_some())
}

/// Something else is about to sleep on the set.
pub fn enter(index: u32) {
    if let Some(s) = set(index) {
        s.sleepers.enter();
    }
}

/// It has done so.
pub fn leave(index: u32) {
    if let Some(s) = set(index) {
        s.sleepers.leave();
    }
}

/// Arms a set that something else is about to sleep on.
pub fn arm_set(index: u32) {
    if let Some(mut h) = set(index).and_then(|s| held(index, s)) {
        h.arm();
    }
}
