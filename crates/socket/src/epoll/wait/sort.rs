//! The kernel's answer, sorted: what is the application's, what is a doorbell's, and in which order
//! it is told.
#![allow(unsafe_code)]

use core::ops::Range;

use libc::epoll_event;
use smc::conn::{Conn, Waits};

use super::{IN_ORDER, Wait};
use crate::epoll::set::{Entry, Held, Owner};
use crate::epoll::table::entry;

impl Wait {
    /// Takes hooked registrations' events out of the kernel's answer; how many events are left.
    ///
    /// # Safety
    /// `out` must hold `n` events, and have room for `room`.
    pub(super) unsafe fn sort_out(
        &mut self,
        out: *mut epoll_event,
        mut n: usize,
        room: usize,
    ) -> usize {
        // Not a handler that interrupted the holder: `wait` has seen to that.
        let Some(mut h) = self.held() else { return 0 };
        let (mut kept, mut i) = (0, 0);
        while i < n {
            // SAFETY: below n.
            let ev = unsafe { out.add(i).read() };
            i += 1;
            if let Some(page) = h.ears().told(self.epfd, ev.u64, ev.events) {
                (self.took, self.rung) = (true, self.slept);
                // SAFETY: forwarded.
                let more = unsafe { self.rung_in_order(&mut h, page, out, kept..i, n..room) };
                (kept, i, n) = (kept + more.0, i + more.1, n + more.1);
                continue;
            }
            let mine = match h.owner(ev.u64) {
                Owner::Application => Some(ev),
                // A doorbell on a connection that has been taken out may have stood for all others that the
                // wait covers, whose sleepers are to hear of it.
                Owner::Gone => {
                    self.took = true;
                    None
                }
                Owner::Entry(at) => match h.kernel_event(at, ev.events, self.slept) {
                    Told::Event(ev) => Some(ev),
                    // A doorbell on a connection that tells nothing may have stood for others, too.
                    Told::Off => {
                        self.took = true;
                        None
                    }
                    Told::Hot => {
                        self.took = true;
                        self.in_order(&mut h, at)
                    }
                },
            };
            if let Some(ev) = mine {
                // SAFETY: kept <= i.
                unsafe { out.add(kept).write(ev) };
                kept += 1;
            }
        }
        kept
    }

    /// The event of a registration whose doorbell woke us, where the kernel tells of it: what one
    /// sender does on two connections is to be seen in that order, also if one of them is on TCP.
    fn in_order(&mut self, h: &mut Held, index: u32) -> Option<epoll_event> {
        if self.slept.is_none()
            || self.tolds == IN_ORDER
            || self.told[..self.tolds].contains(&index)
        {
            return None;
        }
        let ev = h.report(index)?;
        self.told[self.tolds] = index;
        self.tolds += 1;
        Some(ev)
    }

    /// The events of those connections of one control page for which its bell rang. They go where
    /// the bell's own event stood among the kernel's: to the beginning of the part `free` of `out`;
    /// the events that follow are moved up into the room `behind` them. How many there are, and by
    /// how much those were moved.
    ///
    /// # Safety
    /// `out` must hold events up to the beginning of `behind`, and have room for all of it.
    unsafe fn rung_in_order(
        &mut self,
        h: &mut Held,
        page: *const Waits,
        out: *mut epoll_event,
        free: Range<usize>,
        behind: Range<usize>,
    ) -> (usize, usize) {
        let Some(slept) = self.slept else { return (0, 0) };
        let mut rang = [(u64::MAX, 0); IN_ORDER];
        let (mut known, mut at) = (0, 0);
        h.take_news();
        while known < IN_ORDER
            && let Some(spot) = h.hot().looked_at(at)
        {
            at += 1;
            let index = spot.index;
            if spot.is_calm() {
                continue;
            }
            let of_page = |c: &&Conn| core::ptr::eq(c.peer_waits(), page);
            let c = entry(index).and_then(Entry::current).filter(of_page);
            if let Some(when) = c.and_then(|c| c.rang_since(slept)) {
                rang[known] = (when, index);
                known += 1;
            }
        }
        let rang = &mut rang[..known];
        rang.sort_unstable();
        let mut events = [epoll_event { events: 0, u64: 0 }; IN_ORDER];
        let mut n = 0;
        h.rung = self.slept;
        for &(_, index) in rang.iter().take(free.len() + behind.len()) {
            if let Some(ev) = self.in_order(h, index) {
                events[n] = ev;
                n += 1;
            }
        }
        h.rung = None;
        let moved = n.saturating_sub(free.len());
        // SAFETY: within the room, by the bound of the loop; what follows is moved before its place
        // is written.
        unsafe {
            core::ptr::copy(out.add(free.end), out.add(free.end + moved), behind.start - free.end);
            core::ptr::copy_nonoverlapping(events.as_ptr(), out.add(free.start), n);
        }
        (n, moved)
    }
}

/// What an event from the kernel means for a registration of ours.
enum Told {
    /// Hooked: it is hot now.
    Hot,
    /// Oneshot and on TCP: for the application.
    Event(epoll_event),
    /// The same, but its event was given out already.
    Off,
}

impl Held {
    fn kernel_event(&mut self, index: u32, events: u32, slept: Option<u64>) -> Told {
        let Some((e, st)) = self.state(index) else { return Told::Off };
        if st.dormant {
            // Somebody waits for the connection elsewhere: its doorbells must not wake this set
            // again.
            self.bury(index);
            return Told::Off;
        }
        // Hooked by another process, over fork.
        if !st.hooked && e.current().is_some_and(Conn::needs_us) && !self.hook(index) {
            return Told::Off;
        }
        let Some((e, st)) = self.state(index) else { return Told::Off };
        if !st.hooked {
            let events = events & (st.events | (libc::EPOLLERR | libc::EPOLLHUP) as u32);
            if !st.enabled || events == 0 {
                return Told::Off;
            }
            st.enabled = !st.is(libc::EPOLLONESHOT);
            return Told::Event(epoll_event { events, u64: st.data });
        }
        let Some(c) = e.current() else { return Told::Off };
        c.kernel_end(events);
        if let Some(slept) = slept.filter(|_| events & libc::EPOLLIN as u32 != 0) {
            c.woken(slept);
        }
        st.urgent |= events & libc::EPOLLPRI as u32 != 0;
        // A direction that is still the kernel's has the kernel's edges.
        if c.reads_tcp() {
            st.seen_read = u64::MAX - 1;
        }
        if !c.sends_on_ring() {
            st.seen_space = c.space_epoch().wrapping_sub(1);
        }
        self.heat(index);
        Told::Hot
    }
}
