//! A set, its registrations, and what its lock guards.
#![allow(unsafe_code)]

use alloc::vec::Vec;
use core::cell::UnsafeCell;
use core::sync::atomic::{AtomicBool, AtomicI32, AtomicU32, AtomicU64, Ordering::*, fence};

use libc::epoll_event;
use shm::lock::{FastGuard, FastLock};
use smc::conn::sleepers::READS;
use smc::conn::{Calm, Conn, Waits};
use smc::sys;

use super::bells::Ears;
use super::sleepers::Sleepers;
use super::table::{entry, of_conn, set};
use crate::fds::{self, Kind};

/// What the kernel watches for a hooked registration.
pub const WATCH: u32 = (libc::EPOLLIN | libc::EPOLLOUT | libc::EPOLLRDHUP | libc::EPOLLPRI | libc::EPOLLET) as u32;
/// Most events of rings that one call gives out. A program that answers only when it has gone through all its events (Redis)
/// would otherwise let its peer idle meanwhile and then be idle itself: with a call in user space as cheap as this one,
/// small helpings keep both busy.
pub const SHARE: u32 = 8;
/// Upper half of the data that we register. Chosen so that no pointer or small number looks like it. Below it are the
/// registration's serial number (14 bits) and its index (18 bits).
const TAG: u64 = 0xb7e1_5163 << 32;
const TAG_MASK: u64 = 0xffff_ffff << 32;
const INDEX_BITS: u32 = 18;

/// One registration of a connection in a set. Who it is changes only under the tables' lock and, from and to membership,
/// under that of its set.
pub struct Entry {
    /// Index of its set + 1; 0: free.
    set: AtomicU32,
    conn: AtomicU32,
    /// The connection's, so that a slot of the connection table that was reused is not taken for it.
    generation: AtomicU32,
    fd: AtomicI32,
    /// Counts the uses of this slot: the kernel may still report one that is gone.
    serial: AtomicU32,
    pub next_of_conn: AtomicU32,
    pub next_of_set: AtomicU32,
    pub prev_of_set: AtomicU32,
    state: UnsafeCell<State>,
}

// SAFETY: the cell is reached through `Held` only, by the holder of the lock of the set that `set` names.
unsafe impl Sync for Entry {}

/// What the set's lock guards in a registration.
#[derive(Default)]
pub struct State {
    pub events: u32,
    pub data: u64,
    /// Its place in the hot list + 1; 0: cold.
    hot_at: u32,
    /// The kernel's registration is ours.
    pub hooked: bool,
    /// The application has removed it. While it is hooked the kernel has it still.
    pub dormant: bool,
    /// Cleared when a oneshot event was given out.
    pub enabled: bool,
    /// What the last edge-triggered report had seen.
    pub seen_read: u64,
    pub seen_space: u32,
    /// The kernel told of an urgent byte.
    pub urgent: bool,
}

impl State {
    pub fn is(&self, flag: i32) -> bool {
        self.events & flag as u32 != 0
    }

    /// The next look reports whatever holds then.
    pub fn look_anew(&mut self, c: &Conn) {
        // No stamp has this value, and the epoch only grows.
        self.seen_read = u64::MAX - 1;
        self.look_for_space_anew(c);
    }

    /// The same of space alone.
    pub fn look_for_space_anew(&mut self, c: &Conn) {
        self.seen_space = c.space_epoch().wrapping_sub(1);
    }
}

impl Entry {
    pub const fn new() -> Self {
        Self {
            set: AtomicU32::new(0),
            conn: AtomicU32::new(0),
            generation: AtomicU32::new(0),
            fd: AtomicI32::new(-1),
            serial: AtomicU32::new(0),
            next_of_conn: AtomicU32::new(0),
            next_of_set: AtomicU32::new(0),
            prev_of_set: AtomicU32::new(0),
            state: UnsafeCell::new(State {
                events: 0,
                data: 0,
                hot_at: 0,
                hooked: false,
                dormant: false,
                enabled: false,
                seen_read: 0,
                seen_space: 0,
                urgent: false,
            }),
        }
    }

    pub fn conn(&self) -> u32 {
        self.conn.load(Relaxed)
    }

    pub fn fd(&self) -> i32 {
        self.fd.load(Relaxed)
    }

    pub fn is_in(&self, set_index: u32) -> bool {
        self.set.load(Relaxed) == set_index + 1
    }

    /// The index of its set.
    pub fn set_index(&self) -> Option<u32> {
        self.set.load(Relaxed).checked_sub(1)
    }

    /// The connection, unless its slot names another one by now.
    #[inline]
    pub fn current(&self) -> Option<&'static Conn> {
        let c = fds::conn(self.conn());
        (c.gen_.load(Relaxed) == self.generation.load(Relaxed)).then_some(c)
    }

    /// Whether the registered number still names the connection: only then may the kernel's registration be changed by it.
    fn is_named(&self) -> bool {
        fds::kind(self.fd()) == Kind::Conn(self.conn())
    }

    pub fn tag(&self, index: u32) -> u64 {
        TAG | u64::from(self.serial.load(Relaxed) << INDEX_BITS | index)
    }
}

/// One epoll descriptor's user-space half.
pub struct Set {
    lock: FastLock<false>,
    hot: UnsafeCell<Hot>,
    ears: UnsafeCell<Ears>,
    /// Wait word in the peers' control pages, 0: none. Changes under the lock.
    pub wait: AtomicU32,
    /// Inherited over fork: its wait word belongs to the parent.
    pub solo: AtomicBool,
    /// A descriptor that names it, and how many do. With none it is free.
    pub epfd: AtomicI32,
    pub refs: AtomicU32,
    /// Counts the uses of this slot: whoever waits must not go on with the next one.
    pub generation: AtomicU32,
    /// First registration, index + 1; under the tables' lock.
    pub first: AtomicU32,
    /// Hooked registrations, and how many of them are dormant.
    pub hooked: AtomicU32,
    pub dormant: AtomicU32,
    /// A tag of ours may come from the kernel.
    pub tagged: AtomicBool,
    /// Inside another set.
    pub nested: AtomicBool,
    /// Threads asleep in the kernel on it, or about to be.
    pub sleepers: Sleepers,
    /// How well spinning has paid; a guess that may get lost between threads.
    pub spin: AtomicU32,
    /// When the kernel was last asked, and whether it is to be asked first because the last answer was full without it.
    /// Two threads may both ask, or ask in turn: only fairness hangs on it.
    pub last_kernel: AtomicU64,
    /// Events of rings that one call gives out, in 1/16; how many the last call gave out, and when.
    pub share: AtomicU32,
    pub given: AtomicU32,
    pub given_at: AtomicU64,
    /// Calls that found something, less those that slept.
    pub busy: AtomicU32,
    /// When a wait leaves the processor to others next.
    pub next_yield: AtomicU64,
    /// How long it keeps the processor before that, by how long others had it when it last did; in nanoseconds.
    pub yield_every: AtomicU64,
    pub kernel_first: AtomicBool,
}

// SAFETY: the hot list and the bells are reached through `Held` only, by the holder of `lock`.
unsafe impl Sync for Set {}

/// Registrations that every wait looks at.
pub struct Hot {
    pub list: Vec<Spot>,
    /// Where the next look begins.
    pub next: usize,
    /// When looks last began to go into all of them, calm or not, and how many are left of that.
    pub all: u64,
    pub left: usize,
}

/// One of them.
#[derive(Clone, Copy)]
pub struct Spot {
    /// The registration's.
    pub index: u32,
    /// Sleeps in a row that found nothing, and since when.
    pub idle: u32,
    pub since: u64,
    /// The control page in which the set's wait word stands for it; null: it is armed by itself.
    pub page: *const Waits,
    /// What was there when the last look found nothing.
    pub calm: Option<Calm>,
    /// Whether it was to be told of space then.
    pub sends: bool,
}

impl Spot {
    /// Whether a look would find nothing, as the last one did.
    #[inline]
    pub fn is_calm(&self) -> bool {
        self.calm.as_ref().is_some_and(Calm::lasts)
    }
}

impl Set {
    pub const fn new() -> Self {
        Self {
            lock: FastLock::new(),
            hot: UnsafeCell::new(Hot { list: Vec::new(), next: 0, all: 0, left: 0 }),
            ears: UnsafeCell::new(Ears::new()),
            wait: AtomicU32::new(0),
            solo: AtomicBool::new(false),
            epfd: AtomicI32::new(-1),
            refs: AtomicU32::new(0),
            generation: AtomicU32::new(0),
            first: AtomicU32::new(0),
            hooked: AtomicU32::new(0),
            dormant: AtomicU32::new(0),
            tagged: AtomicBool::new(false),
            nested: AtomicBool::new(false),
            sleepers: Sleepers::new(),
            spin: AtomicU32::new(8),
            last_kernel: AtomicU64::new(0),
            share: AtomicU32::new(16 * SHARE),
            given: AtomicU32::new(0),
            given_at: AtomicU64::new(0),
            busy: AtomicU32::new(0),
            next_yield: AtomicU64::new(0),
            yield_every: AtomicU64::new(0),
            kernel_first: AtomicBool::new(false),
        }
    }

    /// Whether this is a signal handler that interrupted the holder of the lock.
    pub fn is_interrupted(&self) -> bool {
        self.lock.is_interrupted()
    }

    /// # Safety
    /// As for `FastLock::reset`.
    pub unsafe fn reset_lock(&self) {
        // SAFETY: forwarded.
        unsafe { self.lock.reset() };
    }

    /// epoll_ctl on the kernel's set.
    fn control(&self, op: i32, fd: i32, ev: epoll_event) -> isize {
        sys::epoll_ctl(self.epfd.load(Relaxed), op, fd, &ev)
    }
}

/// The lock of a set is held: the only way to its hot list, to its bells and to the state of its registrations, one at a time.
pub struct Held {
    pub set: &'static Set,
    index: u32,
    /// The time, once somebody has asked for it.
    ticks: u64,
    /// Since when a sleep lasted that a bell has ended: it may have been for any of the connections.
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
        // SAFETY: it is a member, which it cannot cease to be while the lock is held; the lock guards the state of
        // members, and `&mut self` makes this the only reference.
        e.is_in(self.index).then(|| (e, unsafe { &mut *e.state.get() }))
    }

    /// Makes a free registration a member.
    pub fn admit(&mut self, index: u32, conn: u32, fd: i32, ev: epoll_event) {
        let Some(e) = entry(index) else { return };
        e.conn.store(conn, Relaxed);
        e.generation.store(fds::conn(conn).gen_.load(Relaxed), Relaxed);
        e.fd.store(fd, Relaxed);
        e.serial.store((e.serial.load(Relaxed) + 1) & (u32::MAX >> INDEX_BITS), Relaxed);
        e.set.store(self.index + 1, Relaxed);
        if let Some((_, st)) = self.state(index) {
            *st = State { events: ev.events, data: ev.u64, enabled: true, seen_read: u64::MAX, ..State::default() };
        }
    }

    /// Ends a membership.
    pub fn dismiss(&mut self, index: u32) {
        self.unhook(index);
        if let Some((e, _)) = self.state(index) {
            e.set.store(0, Relaxed);
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

    /// Removes a hooked registration for the application only. Programs that remove and add one with every request spare
    /// the kernel both; it costs a wake-up if a doorbell rings meanwhile, and then the kernel's registration goes, too.
    pub fn rest(&mut self, index: u32) {
        if let Some((_, st)) = self.state(index) {
            (st.dormant, st.enabled, st.urgent) = (true, false, false);
            self.set.dormant.fetch_add(1, Relaxed);
            if let Some(spot) = self.spot(index) {
                // The next sleep is not to stand for it any more.
                spot.calm = None;
            }
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
        // SYNC: sleepers. After the change; a sleeper counts itself before it looks, both under the lock.
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
        if st.hooked || st.dormant {
            return true;
        }
        s.tagged.store(true, Relaxed);
        if !e.is_named() || s.control(libc::EPOLL_CTL_MOD, e.fd(), hooked_event(index, e)) < 0 {
            return false;
        }
        // The change fires the kernel's edge (the socket is writable), so a sleeper wakes and looks.
        st.hooked = true;
        st.look_anew(fds::conn(e.conn()));
        let hooked = s.hooked.fetch_add(1, SeqCst) as usize + 1;
        // Here, so that a wait never allocates.
        let list = &mut self.hot().list;
        list.reserve(hooked.saturating_sub(list.len()));
        self.heat(index);
        true
    }

    /// Gives the kernel's registration back to the application. Where that is not possible, because its number was closed
    /// and another one lives, it stays hooked and is served from the kernel's readiness.
    pub fn revert(&mut self, index: u32) {
        let s = self.set;
        let Some((e, st)) = self.state(index) else { return };
        if st.dormant {
            return self.bury(index);
        }
        if !st.hooked || !e.is_named() {
            return;
        }
        let u64 = if st.is(libc::EPOLLONESHOT) { e.tag(index) } else { st.data };
        // Nothing enabled is not to be had: ERR and HUP always are. `Held::kernel_event` drops them.
        let events = if st.enabled { st.events } else { libc::EPOLLONESHOT as u32 };
        if s.control(libc::EPOLL_CTL_MOD, e.fd(), epoll_event { events, u64 }) >= 0 {
            self.unhook(index);
        }
    }

    /// Wakes a sleeper of the set: changing a registration of a writable socket fires its edge. `index` or, if its number
    /// is closed, any other one will do.
    pub fn kick(&mut self, index: u32) {
        let rest = (0..).map_while(|at| self.hot().list.get(at).map(|spot| spot.index));
        let rest: Option<u32> = core::iter::once(index).chain(rest).find(|&i| entry(i).is_some_and(Entry::is_named));
        if let Some((i, e)) = rest.and_then(|i| Some((i, entry(i)?))) {
            self.set.control(libc::EPOLL_CTL_MOD, e.fd(), hooked_event(i, e));
        }
    }

    /// Puts a hooked registration on the hot list. If it is there, the next look goes into it.
    pub fn heat(&mut self, index: u32) {
        let (wait, ticks) = (self.set.wait.load(Relaxed), self.ticks());
        if let Some(spot) = self.spot(index) {
            (spot.idle, spot.since, spot.calm) = (0, ticks, None);
            return;
        }
        let place = self.hot().list.len() as u32 + 1;
        let Some((e, st)) = self.state(index) else { return };
        st.hot_at = place;
        let may_cover = |c: &&Conn| wait != 0 && !c.peer_waits().is_null() && may_cover(e.conn(), c);
        let covered = e.current().filter(may_cover);
        covered.inspect(|c| c.cover(wait));
        let page = covered.map_or(core::ptr::null(), Conn::peer_waits);
        self.hot().list.push(Spot { index, idle: 0, since: ticks, page, calm: None, sends: false });
    }

    /// A registration's place on the hot list.
    #[inline]
    pub fn spot(&mut self, index: u32) -> Option<&mut Spot> {
        let (_, st) = self.state(index)?;
        let at = (st.hot_at as usize).checked_sub(1)?;
        self.hot().list.get_mut(at)
    }

    /// Lets the set's wait word stand no more for a registration on the hot list: it is armed by itself.
    pub fn uncover(&mut self, index: u32) {
        let wait = self.set.wait.load(Relaxed);
        let Some(spot) = self.spot(index) else { return };
        if !core::mem::replace(&mut spot.page, core::ptr::null()).is_null()
            && let Some(c) = entry(index).and_then(Entry::current)
        {
            c.uncover(wait);
        }
    }

    /// Takes a registration off the hot list.
    pub fn cool(&mut self, index: u32) {
        self.uncover(index);
        let Some((_, st)) = self.state(index) else { return };
        let place = core::mem::take(&mut st.hot_at);
        if place == 0 {
            return;
        }
        let at = place as usize - 1;
        let list = &mut self.hot().list;
        list.swap_remove(at);
        if let Some(&moved) = list.get(at)
            && let Some((_, m)) = self.state(moved.index)
        {
            m.hot_at = place;
        }
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

    /// In a fork child: the parent's threads and wait words are not ours. What is hooked becomes hot, armed singly.
    pub fn start_over(&mut self, members: impl Iterator<Item = u32>) {
        let hot = self.hot();
        hot.list.clear();
        hot.next = 0;
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

/// Only one wait can stand for a connection: with several registrations each arms it by itself, and so does a set beside a thread
/// that sleeps on the connection, perhaps by a bell of its own.
fn may_cover(conn: u32, c: &Conn) -> bool {
    // SYNC: alone. Behind the registration; pairs with `bell::Sleep::covers`. Either the thread sees the registration, or
    // we see the thread.
    fence(SeqCst);
    of_conn(conn).nth(1).is_none() && !fds::is_shared(conn) && c.is_committed() && !c.sleepers.others(READS)
}

/// Whether any registration of the set is hooked.
#[inline]
pub fn hooked(index: u32) -> bool {
    set(index).is_some_and(|s| s.hooked.load(SeqCst) > 0)
}
