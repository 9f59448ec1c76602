//! What is ready in a set, and how a sleeper asks for doorbells.
#![allow(unsafe_code)]

use core::sync::atomic::Ordering::*;

use libc::epoll_event;
use smc::conn::{Calm, Conn, ERR, HUP, IN, OUT, RDHUP, Waits};
use smc::sys;

use super::bells::PAGES;
use super::set::{Entry, Held, Spot, State, held};
use super::table::{entry, set};
use crate::fds;

/// Empty looks in front of a sleep after which a registration goes cold, if so long has passed, too, in `sys::TICKS`: with hundreds
/// of connections and a sleep for each message those are soon over, and of a cold one every message is rung for over TCP.
const COLD_AFTER: u32 = 64;
const COLD_TICKS: u64 = 10;
/// So often, in `sys::TICKS`, a look goes into every registration, calm or not: for what a kernel tells only who asks.
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

/// Whether a look finds nothing as long as the connection is as calm as this: there is nothing to read, or an edge of it was told
/// already; nobody waits for space, or the same; nor for the kernel's urgent byte.
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
        let len = self.hot().list.len();
        if ticks.wrapping_sub(self.hot().all) > ALL_EVERY * sys::TICKS {
            (self.hot().all, self.hot().left) = (ticks, len);
        }
        let mut at = if self.hot().next < len { self.hot().next } else { 0 };
        let (mut n, mut seen) = (0, 0);
        while seen < len && n < max {
            let all = self.hot().left > 0;
            self.hot().left -= usize::from(all);
            let Some(spot) = self.hot().list.get(at) else { break };
            let (index, calm) = (spot.index, !all && spot.is_calm());
            at = if at + 1 < len { at + 1 } else { 0 };
            seen += 1;
            if calm || told.contains(&index) {
                continue;
            }
            if let Some(ev) = self.report(index) {
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
            && let Some(&Spot { index, .. }) = self.hot().list.get(at)
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
        let c = e.current().filter(|_| st.enabled)?;
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
        let mut at = 0;
        while let Some(spot) = self.hot().list.get(at) {
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

    /// Arms everything hot, so that the next publication on any of it wakes the set. True when some connection must be
    /// looked at from time to time because its peer cannot ring for space.
    pub fn arm(&mut self) -> bool {
        let mut pages = Pages { list: [None; PAGES], used: 0 };
        let (mut silent, mut at) = (false, 0);
        let (wait, epfd, ticks) = (self.set.wait.load(Relaxed), self.set.epfd.load(Relaxed), self.ticks());
        while let Some(spot) = self.hot().list.get_mut(at) {
            let (i, page) = (spot.index, spot.page);
            spot.idle = spot.idle.saturating_add(1);
            let recent = ticks.wrapping_sub(spot.since) <= COLD_TICKS * sys::TICKS;
            if let Some(calm) = &spot.calm
                && (spot.idle <= COLD_AFTER || recent)
                && calm.lasts()
                && (!spot.sends || calm.conn.has_space())
                && !page.is_null()
                && pages.hold(page, calm.conn)
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
            let is_muffled = c.is_muffled();
            if is_muffled {
                silent = true;
                waits_in_silence = true;
                self.uncover(i);
            }
            let may_stay = idle <= COLD_AFTER || waits_in_silence;
            let is_held = !is_muffled && (may_stay || recent) && !page.is_null() && pages.hold(page, c);
            if may_stay || is_held {
                if !is_held && !is_muffled {
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
        let wait = self.set.wait.load(Relaxed);
        let mut last: *const Waits = core::ptr::null();
        for spot in &self.hot().list {
            // That of a connection that has ended may be gone.
            let lives = || entry(spot.index).and_then(Entry::current).is_some();
            if !spot.page.is_null() && spot.page != last && lives() {
                last = spot.page;
                // SAFETY: the control page of a connection that lives.
                unsafe { (*spot.page).wake(wait) };
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
    /// Adds the page of a connection; false when there is no room for it.
    fn hold(&mut self, page: *const Waits, c: &'static Conn) -> bool {
        // SAFETY: the control page of a connection that lives, `c`.
        let page = unsafe { &*page };
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fds::{Kind, give_up, kind};
    use crate::tests::{Epoll, Pair, close, port, recv, send, serial, upgraded};
    use crate::{endpoint, option};
    use smc::reason;

    const ET: i32 = libc::EPOLLET;
    const IN_: i32 = libc::EPOLLIN;

    fn of(ep: &Epoll) -> Held {
        let Kind::Epoll(index) = kind(ep.0) else { panic!("no set") };
        held(index, set(index).unwrap()).unwrap()
    }

    /// What a look finds that does not ask the kernel.
    fn look(ep: &Epoll) -> Vec<u32> {
        let mut h = of(ep);
        // The time at which all are looked at is not now.
        (h.hot().all, h.hot().left) = (h.ticks(), 0);
        let mut out = [epoll_event { events: 0, u64: 0 }; 8];
        // SAFETY: room for as many.
        let n = unsafe { h.look(out.as_mut_ptr(), 8, &[]) };
        out[..n].iter().map(|ev| ev.events).collect()
    }

    /// How many registrations the next look passes over if nothing happens.
    fn calm(ep: &Epoll) -> usize {
        of(ep).hot().list.iter().filter(|spot| spot.is_calm()).count()
    }

    /// A set with one connection, which is calm: its two ends and the set.
    fn at_rest(events: i32) -> (Pair, Epoll) {
        let (pair, ep) = (upgraded(), Epoll::new());
        ep.add(pair.1, events);
        for _ in 0..3 {
            ep.now();
        }
        assert_eq!((look(&ep), calm(&ep)), (vec![], 1));
        (pair, ep)
    }

    fn shutdown(fd: i32, how: i32) {
        assert_eq!(endpoint::shutdown(fd, how, || sys::shutdown(fd, how)), 0);
    }

    /// Whatever its peer does is found by the next look, and so is what its own process does.
    #[test]
    fn a_calm_connection_is_looked_at_when_something_happens() {
        let _turn = serial();
        type Happens = fn(&Pair, &Epoll);
        let all: [(&str, i32, Happens, u32); 9] = [
            ("data", 0, |pair, _| _ = send(pair.0, b"1", 0), 1),
            ("the peer ends its stream", 0, |pair, _| shutdown(pair.0, libc::SHUT_WR), 1 | RDHUP),
            ("the peer ends both", 0, |pair, _| shutdown(pair.0, libc::SHUT_RDWR), 1 | RDHUP),
            ("receives are shut", 0, |pair, _| shutdown(pair.1, libc::SHUT_RD), 1 | RDHUP),
            ("all is shut", 0, |pair, _| shutdown(pair.1, libc::SHUT_RDWR), 1 | RDHUP | HUP),
            ("space is waited for", 0, |pair, ep| _ = ep.control(libc::EPOLL_CTL_MOD, pair.1, IN_ | 4), 4),
            (
                "space by its other name",
                libc::EPOLLWRNORM,
                |pair, ep| {
                    look(ep);
                    while port(pair.1).conn.has_space() {
                        send(pair.1, &[7; 4096], 0);
                    }
                    assert_eq!((look(ep), calm(ep)), (vec![], 0));
                    while recv(pair.0, 1 << 20, libc::MSG_DONTWAIT).is_ok() {}
                },
                0x100,
            ),
            (
                "what was read before is to be told again",
                ET,
                |pair, ep| {
                    send(pair.0, b"1", 0);
                    assert_eq!((look(ep).len(), look(ep).len(), calm(ep)), (1, 0, 1));
                    ep.control(libc::EPOLL_CTL_MOD, pair.1, IN_ | ET);
                },
                1,
            ),
            (
                "an edge of space",
                ET | libc::EPOLLOUT,
                |pair, ep| {
                    while send(pair.1, &[7; 1 << 16], libc::MSG_DONTWAIT) > 0 {}
                    assert_eq!((look(ep), calm(ep)), (vec![], 0), "it waits for space");
                    while recv(pair.0, 1 << 20, libc::MSG_DONTWAIT).is_ok() {}
                },
                4,
            ),
        ];
        for (what, events, happens, told) in all {
            let (pair, ep) = match events {
                libc::EPOLLWRNORM => (upgraded(), Epoll::new()),
                _ => at_rest(IN_ | libc::EPOLLRDHUP | events),
            };
            if events == libc::EPOLLWRNORM {
                ep.add(pair.1, IN_ | events);
                ep.now();
            }
            happens(&pair, &ep);
            let found = look(&ep);
            assert_eq!(found, [told], "{what}");
        }
    }

    #[test]
    fn who_waits_for_more_than_data_is_always_looked_at() {
        let _turn = serial();
        let (pair, ep) = (upgraded(), Epoll::new());
        ep.add(pair.1, IN_ | libc::EPOLLPRI);
        assert_eq!((ep.now(), ep.now(), calm(&ep)), (vec![], vec![], 0));
        ep.control(libc::EPOLL_CTL_MOD, pair.1, IN_);
        assert_eq!((look(&ep), look(&ep), calm(&ep)), (vec![], vec![], 1));
        let (level, name, mark) = (libc::SOL_SOCKET, libc::SO_RCVLOWAT, 100i32);
        let plain = || sys::setsockopt(pair.1, level, name, &mark);
        // SAFETY: a live int.
        assert_eq!(unsafe { option::set(pair.1, level, name, (&raw const mark).cast(), 4, plain) }, 0);
        send(pair.0, &[1; 99], 0);
        assert_eq!((look(&ep), calm(&ep)), (vec![], 0), "too few bytes for its mark");
        send(pair.0, b"1", 0);
        assert_eq!(look(&ep), [IN_ as u32]);
    }

    /// A send that leaves no room, and is not told so, costs nobody the edge of it.
    #[test]
    fn who_sleeps_is_told_of_room_that_was_taken_since() {
        let _turn = serial();
        let (pair, ep) = at_rest(IN_ | ET | libc::EPOLLOUT);
        let c = port(pair.1).conn;
        while c.has_space() {
            assert_eq!(send(pair.1, &[7; 4096], 0), 4096);
        }
        assert_eq!((look(&ep), calm(&ep)), (vec![], 1));
        let before = c.space_epoch();
        of(&ep).arm();
        assert_ne!(c.space_epoch(), before);
        while recv(pair.0, 1 << 20, libc::MSG_DONTWAIT).is_ok() {}
        assert_eq!(look(&ep), [4]);
    }

    #[test]
    fn looks_go_into_all_of_them_in_turn() {
        let _turn = serial();
        let ((pair, ep), others) = (at_rest(IN_), [(); 5].map(|()| upgraded()));
        others.iter().for_each(|other| ep.add(other.1, IN_));
        for _ in 0..9 {
            ep.now();
        }
        assert_eq!(calm(&ep), 6);
        // Always ready, and more is not asked for.
        send(pair.0, b"1", 0);
        let mut h = of(&ep);
        h.hot().all = 0;
        let mut event = epoll_event { events: 0, u64: 0 };
        for _ in 0..12 {
            // SAFETY: room for one.
            assert_eq!(unsafe { h.look(&raw mut event, 1, &[]) }, 1);
        }
        assert!(h.hot().all != 0 && h.hot().left == 0);
    }

    #[test]
    fn what_no_word_stands_for_goes_cold_soon() {
        let _turn = serial();
        let (_pair, ep) = at_rest(IN_);
        let spots = |h: &mut Held| h.hot().list.len();
        for _ in 0..=COLD_AFTER {
            of(&ep).arm();
        }
        assert_eq!(spots(&mut of(&ep)), 1, "its messages cost less while it is hot");
        let index = of(&ep).hot().list[0].index;
        of(&ep).uncover(index);
        of(&ep).arm();
        assert_eq!(spots(&mut of(&ep)), 0);
    }

    #[test]
    fn what_was_removed_is_slept_for_no_more() {
        let _turn = serial();
        let (pair, ep) = at_rest(IN_);
        for _ in 0..9 {
            assert_eq!(ep.control(libc::EPOLL_CTL_DEL, pair.1, 0), 0);
            ep.add(pair.1, IN_);
            ep.now();
        }
        assert_eq!((look(&ep), calm(&ep)), (vec![], 1));
        assert_eq!(ep.control(libc::EPOLL_CTL_DEL, pair.1, 0), 0);
        of(&ep).arm();
        assert!(of(&ep).hot().list.is_empty());
    }

    #[test]
    fn a_calm_connection_that_goes_back_to_tcp_is_the_kernels() {
        let _turn = serial();
        let (pair, ep) = at_rest(IN_);
        give_up(port(pair.0), reason::STDIO.code());
        assert_eq!(send(pair.0, b"1", 0), 1);
        // By Nagle's rule it may wait for the acknowledgement of a doorbell.
        assert_eq!(ep.wait(Some(10_000_000_000)), Ok(vec![(pair.1, IN_ as u32)]));
    }

    #[test]
    fn a_closed_connection_is_not_told_of() {
        let _turn = serial();
        let (pair, ep) = at_rest(IN_);
        send(pair.0, b"1", 0);
        close(pair.1);
        assert_eq!((look(&ep), ep.now()), (vec![], vec![]));
    }
}
