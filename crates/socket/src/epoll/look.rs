//! What is ready in a set, and how a sleeper asks for doorbells.
#![allow(unsafe_code)]

use core::sync::atomic::Ordering::*;

use libc::epoll_event;
use smc::conn::{Calm, Conn, ERR, HUP, IN, OUT, RDHUP};
use smc::sys;

use super::bells::PAGES;
use super::set::{Entry, Held, Spot, State, held};
use super::table::{entry, set};
use crate::fds;

/// Empty looks in front of a sleep after which a registration goes cold, if so long has passed,
/// too, in `sys::span`: with hundreds of connections and a sleep for each message those are soon
/// over, and of a cold one every message is rung for over TCP.
const COLD_AFTER: u32 = 64;
const COLD_TICKS: u64 = 10;
/// Longest sleep while a connection waits for space that its peer cannot announce.
pub(super) const SILENT_NS: u64 = 2_000_000;
/// So often, in `sys::span`, a look goes into every registration, calm or not: for what a kernel
/// tells only who asks.
const ALL_EVERY: u64 = 10;

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
    // The urgent byte of one on TCP is told once to who asked for edges, as of any other.
    let mut ready = c.ready(fd) & !(libc::EPOLLPRI as u32);
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

/// Whether a look finds nothing as long as the connection is as calm as this: there is nothing to
/// read, or an edge of it was told already; nobody waits for space, or the same; nor for the
/// kernel's urgent byte.
fn has_nothing(st: &State, calm: &Calm) -> bool {
    let edge = st.is(libc::EPOLLET);
    let reads = calm.is_empty() || edge && st.seen_read == calm.read_stamp();
    let sends = st.events & OUT == 0 || edge && st.seen_space == calm.space;
    reads && sends && !st.urgent && (edge || !st.is(libc::EPOLLPRI))
}

impl Held {
    /// Gives out what is ready on the hot list and not `told` already; how many events there are.
    ///
    /// # Safety
    /// `out` must be writable for `max` events.
    pub unsafe fn look(&mut self, out: *mut epoll_event, max: usize, told: &[u32]) -> usize {
        let ticks = self.ticks();
        if ticks.wrapping_sub(self.hot().all) > ALL_EVERY * sys::span() {
            self.hot().all = ticks;
            self.look_at_all();
        }
        self.take_news();
        let may_settle = self.may_settle();
        let (mut at, mut left) = (self.hot().next, self.hot().looked);
        at = if at < left { at } else { 0 };
        let (mut begin, mut n, mut calm) = (at, 0, 0);
        while left > 0 && n < max {
            at = if at < self.hot().looked { at } else { 0 };
            left -= 1;
            let Some(spot) = self.hot().list.get(at) else { break };
            let index = spot.index;
            if spot.is_calm() {
                calm += 1;
                if may_settle && self.settles(at) {
                    self.pass_over(at, &mut begin);
                    continue;
                }
            } else if !told.contains(&index)
                && let Some(ev) = self.report(index)
            {
                // SAFETY: n < max.
                unsafe { out.add(n).write(ev) };
                n += 1;
            }
            at += 1;
        }
        // Where this look ended the next begins, so that a small `max` starves nobody.
        self.hot().next = at;
        self.hot().wasted(calm, n);
        n
    }

    /// Gives out what is ready on the hot list from place `from` on, of what looks go into.
    ///
    /// # Safety
    /// As for `look`.
    pub unsafe fn look_behind(&mut self, from: usize, out: *mut epoll_event, max: usize) -> usize {
        let (mut at, mut n) = (from, 0);
        while n < max
            && let Some(&mut Spot { index, .. }) = self.hot().looked_at(at)
        {
            at += 1;
            if let Some(ev) = self.report(index) {
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
        let c = e.current()?;
        if !st.enabled {
            // Nothing is to be told, but the thread may sleep here, and nowhere else.
            if c.owes() {
                c.flush_takeback(io_fd(e));
            }
            return None;
        }
        c.settle_rx(io_fd(e));
        c.keep_bells_flowing(io_fd(e));
        let due = due(e, st, c, ticks);
        st.urgent = due.urgent && !st.is(libc::EPOLLET);
        if due.events == 0 {
            let calm = Calm::of(c).filter(|calm| has_nothing(st, calm));
            let sends = st.events & OUT != 0;
            let spot = self.spot(index)?;
            (spot.calm, spot.sends) = (calm, sends);
            return None;
        }
        if let Some(slept) = rung {
            c.woken(slept);
        }
        if due.events & (IN | RDHUP | ERR | HUP) != 0 {
            st.seen_read = due.read;
        }
        if due.events & OUT != 0 {
            st.seen_space = due.space;
        }
        st.enabled = !st.is(libc::EPOLLONESHOT);
        let event = epoll_event { events: due.events, u64: st.data };
        if let Some(spot) = self.spot(index) {
            (spot.idle, spot.since, spot.calm) = (0, ticks, None);
        }
        Some(event)
    }

    /// A registration on the hot list of which `wanted` holds.
    fn find(&mut self, wanted: impl Fn(&Entry, &State, &Conn) -> bool) -> Option<u32> {
        self.take_news();
        let mut at = 0;
        while let Some(spot) = self.hot().looked_at(at) {
            at += 1;
            let index = spot.index;
            if !spot.is_calm()
                && let Some((e, st)) = self.state(index)
                && let Some(c) = e.current()
                && st.enabled
                && wanted(e, st, c)
            {
                return Some(index);
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
        self.hot()
            .list
            .iter()
            .take(8)
            .any(|spot| entry(spot.index).is_some_and(|e| fds::conn(e.conn()).peer_elsewhere()))
    }

    /// Arms everything hot, so that the next publication on any of it wakes the set. Nanoseconds after
    /// which must be looked again, if so: because some connection's peer cannot ring for space, or
    /// may let no more time pass before it makes some.
    pub fn arm(&mut self) -> Option<u64> {
        let (mut silent, mut at, mut soonest) = (false, 0, u64::MAX);
        let (wait, epfd, ticks) =
            (self.set.wait.load(Relaxed), self.set.epfd.load(Relaxed), self.ticks());
        while let Some(spot) = self.hot().looked_at(at) {
            let (i, page) = (spot.index, spot.page);
            spot.idle = spot.idle.saturating_add(1);
            let recent = ticks.wrapping_sub(spot.since) <= COLD_TICKS * sys::span();
            if let Some(calm) = &spot.calm
                && (spot.idle <= COLD_AFTER || recent)
                && calm.lasts()
                && (!spot.sends || calm.conn.has_space() && !calm.conn.counts())
                && !page.is_null()
            {
                at += 1;
                continue;
            }
            let idle = spot.idle;
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
            // A connection may come back to TCP for good in a look. The kernel's registration would
            // stay ours, and each wait a look into it.
            if !c.needs_us() && self.revert(i) {
                continue;
            }
            let Some((e, st)) = self.state(i) else { break };
            let mut waits_in_silence = false;
            if st.events & OUT != 0 && c.sends_on_ring() {
                if c.ready(io_fd(e)) & OUT == 0 {
                    c.arm_space();
                    waits_in_silence = c.space_is_silent();
                    silent |= waits_in_silence;
                }
                if let Some(left) = c.patience(io_fd(e)) {
                    waits_in_silence = true;
                    soonest = soonest.min(left);
                }
            }
            if st.events & IN != 0 && c.short_of_mark(io_fd(e)) {
                waits_in_silence = true;
                silent = true;
            }
            if c.is_unarmed() {
                waits_in_silence = true;
                silent = true;
            }
            let is_muffled = c.is_muffled();
            if is_muffled {
                silent = true;
                waits_in_silence = true;
                self.uncover(i);
            }
            let may_stay = idle <= COLD_AFTER || waits_in_silence;
            let is_held = !is_muffled && (may_stay || recent) && !page.is_null();
            if may_stay || is_held {
                if !is_held && !is_muffled && !c.arm_data() {
                    silent = true;
                }
                at += 1;
                continue;
            }
            self.cool(i);
            let is_armed = c.arm_data();
            silent |= !is_armed;
            // What came in between would ring nobody, nor does a peer that cannot be told: keep it hot.
            if !is_armed || c.has_news() {
                self.heat(i);
            }
        }
        for at in 0..PAGES {
            if let Some((page, c)) = self.page(at) {
                self.ears().listen(epfd, wait, c, page);
                page.sleep(wait);
            }
        }
        let soonest = if silent { soonest.min(SILENT_NS) } else { soonest };
        (soonest < u64::MAX).then_some(soonest)
    }

    /// Nobody sleeps on the set any more: peers need not ring.
    pub fn disarm(&mut self) {
        let wait = self.set.wait.load(Relaxed);
        for at in 0..PAGES {
            if let Some((page, _)) = self.page(at) {
                page.wake(wait);
            }
        }
    }
}

/// Whether a wait on the set would return at once because of a hooked registration: for sets inside
/// poll and epoll.
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

/// Arms a set that something else is about to sleep on. Nanoseconds after which that must look again,
/// if so, as `Held::arm` says.
pub fn arm_set(index: u32) -> Option<u64> {
    set(index).and_then(|s| held(index, s)).map_or(Some(SILENT_NS), |mut h| h.arm())
}

#[cfg(test)]
mod tests;
