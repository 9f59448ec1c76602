//! What may be done to a set while its lock is held: memberships, hooks, the hot list.
#![allow(unsafe_code)]

use core::sync::atomic::Ordering::*;

use libc::epoll_event;
use shm::lock::FastGuard;

use super::{Entry, Hot, INDEX_BITS, Set, State, TAG, TAG_MASK, WATCH};
use crate::epoll::bells::Ears;
use crate::epoll::table::entry;
use crate::fds;

/// The lock of a set is held: the only way to its hot list, to its bells and to the state of its
/// registrations, one at a time.
pub struct Held {
    pub set: &'static Set,
    index: u32,
    /// The time, once somebody has asked for it.
    ticks: u64,
    /// Since when a sleep lasted that a bell has ended: it may have been for any of the
    /// connections.
    pub rung: Option<u64>,
    _guard: FastGuard<'static, false>,
}

/// Takes the lock of set `index`; None in a signal handler that interrupted its holder.
#[inline(always)]
pub fn held(index: u32, set: &'static Set) -> Option<Held> {
    let guard = set.lock.lock().ok()?;
    // For a signal handler that interrupts what follows: see `tables`.
    shm::words::SET.set(index + 1);
    Some(Held { set, index, ticks: 0, rung: None, _guard: guard })
}

/// Whose an event from the kernel is, by its data.
pub enum Owner {
    Application,
    /// A registration that is gone: nobody's.
    Gone,
    Entry(u32),
}

impl Held {
    /// The time of this look at the set, see `sys::ticks`.
    #[inline]
    pub fn ticks(&mut self) -> u64 {
        if self.ticks == 0 {
            self.ticks = smc::sys::ticks();
        }
        self.ticks
    }

    #[inline]
    pub fn hot(&mut self) -> &mut Hot {
        // SAFETY: the lock is held, and `&mut self` makes this the only reference.
        unsafe { &mut *self.set.hot.get() }
    }

    pub fn ears(&mut self) -> &mut Ears {
        // SAFETY: the lock is held, and `&mut self` makes this the only reference.
        unsafe { &mut *self.set.ears.get() }
    }

    /// A registration of this set.
    #[inline]
    pub fn state(&mut self, index: u32) -> Option<(&'static Entry, &mut State)> {
        let e = entry(index)?;
        // SAFETY: it is a member, which it cannot cease to be while the lock is held; the lock
        // guards the state of members, and `&mut self` makes this the only reference.
        e.is_in(self.index).then(|| (e, unsafe { &mut *e.state.get() }))
    }

    /// The kernel has taken a member anew that it had no more.
    pub fn readmit(&mut self, index: u32, ev: epoll_event) {
        self.unhook(index);
        if let Some((_, st)) = self.state(index) {
            *st = State::of(ev);
        }
    }

    /// Ends a membership.
    pub fn dismiss(&mut self, index: u32) {
        let any_sleeps = self.set.sleepers.any();
        let spot = if any_sleeps { self.spot(index) } else { None };
        let page = spot.map_or(core::ptr::null(), |spot| spot.page);
        let is_deaf = !page.is_null() && !self.ears().hears(page);
        self.unhook(index);
        if let Some((e, _)) = self.state(index) {
            e.set.store(0, Relaxed);
        }
        // Without a bell the peer rings a byte on one connection for all that the wait covers, and this
        // one may have been it: the kernel tells nobody of that any more.
        if is_deaf {
            self.pass_on();
        }
    }

    /// Asks for new doorbells in the stead of those who sleep on the set, and wakes one of them if there
    /// is something for it already.
    pub fn pass_on(&mut self) {
        let again = self.arm();
        // One of them must look by itself.
        let any =
            if again.is_some() { self.hot().list.first().map(|spot| spot.index) } else { None };
        if let Some(i) = self.first_due().or(any) {
            self.kick(i);
        }
    }

    fn unhook(&mut self, index: u32) {
        self.cool(index);
        let s = self.set;
        if let Some((_, st)) = self.state(index)
            && core::mem::take(&mut st.hooked)
        {
            s.hooked.fetch_sub(1, SeqCst);
            if st.dormant {
                s.dormant.fetch_sub(1, Relaxed);
            }
        }
    }

    /// Removes a hooked registration for the application only. Programs that remove and add one
    /// with every request spare the kernel both; it costs a wake-up if a doorbell rings meanwhile,
    /// and then the kernel's registration goes, too.
    pub fn rest(&mut self, index: u32) {
        if let Some((_, st)) = self.state(index) {
            (st.dormant, st.enabled, st.urgent) = (true, false, false);
            self.set.dormant.fetch_add(1, Relaxed);
            if let Some(spot) = self.spot(index) {
                // The next sleep is not to stand for it any more.
                spot.calm = None;
            }
            self.look_at(index);
        }
    }

    /// Adds it again; false when the kernel must do that.
    pub fn revive(&mut self, index: u32, ev: epoll_event) -> bool {
        let s = self.set;
        let Some((e, st)) = self.state(index) else { return false };
        if !st.dormant || !st.hooked {
            return false;
        }
        s.dormant.fetch_sub(1, Relaxed);
        (st.dormant, st.events, st.data, st.enabled) = (false, ev.events, ev.u64, true);
        st.look_anew(fds::conn(e.conn()));
        self.heat(index);
        // SYNC: sleepers. After the change; a sleeper counts itself before it looks, both under the
        // lock.
        if s.sleepers.any() {
            self.kick(index);
        }
        true
    }

    /// Whether the application has removed it.
    pub fn is_dormant(&mut self, index: u32) -> bool {
        self.state(index).is_some_and(|(_, st)| st.dormant)
    }

    /// Takes a dormant registration out of the kernel's set.
    pub fn bury(&mut self, index: u32) {
        let s = self.set;
        let Some((e, st)) = self.state(index) else { return };
        if !st.dormant || !st.hooked {
            return;
        }
        fds::local(e.conn()).removals.store(0, Relaxed);
        if e.is_named() {
            s.control(libc::EPOLL_CTL_DEL, e.fd(), epoll_event { events: 0, u64: 0 });
        }
        self.unhook(index);
    }

    /// Changes the kernel's registration to ours; false when that is not possible.
    pub fn hook(&mut self, index: u32) -> bool {
        let s = self.set;
        let Some((e, st)) = self.state(index) else { return true };
        // One that is back on TCP by now nobody would unhook again. The tables' lock is held, which
        // `on_reverted` takes behind that.
        if st.hooked || st.dormant || !fds::conn(e.conn()).needs_us() {
            return true;
        }
        s.tagged.store(true, Relaxed);
        if !e.is_named() || s.control(libc::EPOLL_CTL_MOD, e.fd(), hooked_event(index, e)) < 0 {
            return false;
        }
        // The change fires the kernel's edge (the socket is writable), so a sleeper wakes and
        // looks.
        st.hooked = true;
        st.look_anew(fds::conn(e.conn()));
        let hooked = s.hooked.fetch_add(1, SeqCst) as usize + 1;
        // Here, so that a wait never allocates.
        let list = &mut self.hot().list;
        list.reserve(hooked.saturating_sub(list.len()));
        self.heat(index);
        true
    }

    /// Gives the kernel's registration back to the application. Where that is not possible, because
    /// its number was closed and another one lives, it stays hooked and is served from the kernel's
    /// readiness. Whether it is off the hot list.
    pub fn revert(&mut self, index: u32) -> bool {
        let s = self.set;
        let Some((e, st)) = self.state(index) else { return false };
        if st.dormant {
            self.bury(index);
            return true;
        }
        if !st.hooked || !e.is_named() {
            return false;
        }
        let u64 = if st.is(libc::EPOLLONESHOT) { e.tag(index) } else { st.data };
        // Nothing enabled is not to be had: ERR and HUP always are. `Held::kernel_event` drops
        // them.
        let events = if st.enabled { st.events } else { libc::EPOLLONESHOT as u32 };
        let is_theirs = s.control(libc::EPOLL_CTL_MOD, e.fd(), epoll_event { events, u64 }) >= 0;
        if is_theirs {
            self.unhook(index);
        }
        is_theirs
    }

    /// Gives a registration that has our tag in the kernel, and is not hooked, the application's data
    /// back: who takes the set over in an exec knows nothing of tags. False when that is not possible.
    pub fn untag(&mut self, index: u32) -> bool {
        let s = self.set;
        let Some((e, st)) = self.state(index) else { return true };
        if st.hooked || st.is(libc::EPOLLONESHOT) {
            return true;
        }
        let theirs = epoll_event { events: st.events, u64: st.data };
        e.is_named() && s.control(libc::EPOLL_CTL_MOD, e.fd(), theirs) >= 0
    }

    /// Wakes a sleeper of the set: changing a registration of a writable socket fires its edge.
    /// `index` or, if its number is closed, any other one will do.
    pub fn kick(&mut self, index: u32) {
        let s = self.set;
        let rest = (0..).map_while(|at| self.hot().list.get(at).map(|spot| spot.index));
        // One that another thread is removing the kernel may not have any more.
        let fires = |e: &Entry, i| {
            e.is_named() && s.control(libc::EPOLL_CTL_MOD, e.fd(), hooked_event(i, e)) == 0
        };
        let _ =
            core::iter::once(index).chain(rest).find(|&i| entry(i).is_some_and(|e| fires(e, i)));
    }

    /// Whose an event is that the kernel reported for this set.
    pub fn owner(&self, data: u64) -> Owner {
        let low = data as u32;
        let index = low & ((1 << INDEX_BITS) - 1);
        if data & TAG_MASK != TAG {
            return Owner::Application;
        }
        match entry(index) {
            // Of another process that shares the set over fork.
            None => Owner::Gone,
            Some(e) if e.is_in(self.index) && e.tag(index) == data => Owner::Entry(index),
            Some(_) => Owner::Gone,
        }
    }

    /// In a fork child: the parent's threads and wait words are not ours. What is hooked becomes
    /// hot, armed singly.
    pub fn start_over(&mut self, members: impl Iterator<Item = u32>) {
        self.hot().clear();
        self.set.solo.store(true, Relaxed);
        self.set.wait.store(0, Relaxed);
        self.set.sleepers.forget();
        self.ears().forget();
        for i in members {
            let Some((_, st)) = self.state(i) else { continue };
            st.hot_at = 0;
            if st.hooked {
                self.heat(i);
            }
        }
    }
}

fn hooked_event(index: u32, e: &Entry) -> epoll_event {
    epoll_event { events: WATCH, u64: e.tag(index) }
}
