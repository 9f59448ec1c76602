//! The bell of a thread: what wakes one that sleeps in poll, in select or in a receive that blocks.
//!
//! A thread that sleeps often gets what an epoll set has: a wait number, which stands for the
//! connections that it sleeps on, and a set of the kernel's in which its peers' bells are watched
//! (`epoll/bells.rs`). Where it cannot have one, or a connection has others that wait for it too,
//! doorbells come over TCP.
#![allow(unsafe_code)]

use core::cell::UnsafeCell;
use core::sync::atomic::{AtomicI32, AtomicU32, AtomicUsize, Ordering::*, fence};

use libc::{epoll_event, pollfd};
use shm::lock::{FastGuard, FastLock};
use smc::conn::sleepers::READS;
use smc::conn::{Conn, Waits};
use smc::{hidden, home, sys, table as connections};

use crate::epoll::bells::{Ears, PAGES};
use crate::fds::inside::{HIGH, OWNERS, Owner, owners, places};
use crate::fds::{self, Port};
use crate::kernel;

/// Places at which a thread that is gone is looked for.
const LOOKS: usize = 8;
/// Sleeps after which a thread gets its bell.
const OFTEN: u32 = 8;
/// Wait numbers of the family that are left to epoll sets.
const LEFT_TO_SETS: u32 = 64;
/// Connections that one sleep covers; further ones are armed singly.
const COVERED: usize = 16;

/// Events that one sleep takes.
const ROOM: usize = 4;
const NOTHING: epoll_event = epoll_event { events: 0, u64: 0 };

/// What a thread has beside its place among those that have sets (`fds::inside::Owner`).
struct Place {
    /// Held by the thread while it sleeps: a signal handler that interrupts the sleep, and sleeps
    /// itself, has no bell.
    lock: FastLock<false>,
    state: UnsafeCell<State>,
}

// SAFETY: the state is reached by the holder of the lock only.
unsafe impl Sync for Place {}

struct State {
    /// So far.
    sleeps: u32,
    /// Its wait number, 0: it has no bell yet.
    wait: u32,
    /// There are too many waits or descriptors.
    refused: bool,
    /// Whether a receive that a signal interrupts is restarted, by how often handlers had changed
    /// when that was asked.
    restarts: bool,
    handlers: u32,
    ears: Ears,
    /// The connection of the last sleep of a receive, by index, generation and descriptor.
    receives: (u32, u32, i32),
    /// Whether the kernel watches it beside the bells: from the second such sleep in turn on.
    watched: bool,
    /// Connections that it has watched. An event of an earlier one, which another process still
    /// has, is none of this one.
    serial: u32,
    /// How often limits of receives had been set when that one was found to have none, plus one.
    limitless: u32,
    /// Connections that its wait number stands for, by index and generation.
    covered: [(u32, u32); COVERED],
    covers: usize,
}

/// Where a thread that is gone is looked for next.
static NEXT: AtomicUsize = AtomicUsize::new(0);
/// How often this process has set the time limit of receives of some connection.
pub static LIMITS: AtomicU32 = AtomicU32::new(0);

static PLACES: [Place; OWNERS] = [const { Place::new() }; OWNERS];

impl Place {
    const fn new() -> Self {
        let state = State {
            sleeps: 0,
            wait: 0,
            refused: false,
            restarts: false,
            handlers: 0,
            ears: Ears::new(),
            receives: (0, 0, -1),
            watched: false,
            serial: 0,
            limitless: 0,
            covered: [(0, 0); COVERED],
            covers: 0,
        };
        Self { lock: FastLock::new(), state: UnsafeCell::new(state) }
    }
}

/// The calling thread's, and whether it has it since now.
fn place() -> Option<(usize, bool)> {
    let me = shm::thread_id();
    match owners().iter().position(|owner| owner.thread.load(Relaxed) == me) {
        Some(own) => Some((own, false)),
        None => take(me).map(|at| (at, true)),
    }
}

/// The place of a thread that is gone, with its bells, or a new one. Threads that come and go find
/// each other's places.
#[cold]
fn take(me: u32) -> Option<usize> {
    let is_mine =
        |owner: &Owner, before| owner.thread.compare_exchange(before, me, AcqRel, Relaxed).is_ok();
    let used = owners();
    for _ in 0..LOOKS.min(used.len()) {
        let at = NEXT.fetch_add(1, Relaxed) % used.len();
        let before = used[at].thread.load(Relaxed);
        if before != 0 && !shm::thread::is_alive_here(before) && is_mine(&used[at], before) {
            return Some(at);
        }
    }
    let at = places().iter().position(|owner| is_mine(owner, 0))?;
    HIGH.fetch_max(at + 1, Relaxed);
    Some(at)
}

impl State {
    /// Makes the bell of a thread that sleeps often.
    #[cold]
    fn make(&mut self, set: &AtomicI32) {
        self.sleeps += 1;
        if self.sleeps < OFTEN || self.refused || !hidden::room_for_bells() {
            return;
        }
        self.refused = true;
        let Some(table) = connections::get() else { return };
        let wait = table.take_wait();
        if wait == 0 || wait as usize + LEFT_TO_SETS as usize >= smc::conn::WAITS {
            table.free_wait(wait);
            return;
        }
        let epfd = sys::epoll_create();
        if epfd < 0 {
            table.free_wait(wait);
            return;
        }
        set.store(hidden::park(epfd), Relaxed);
        self.handlers = kernel::handlers().wrapping_sub(1);
        (self.wait, self.refused) = (wait, false);
    }

    /// Its set is gone: the program has another file at that number, or there was no number to move
    /// it to.
    #[cold]
    fn lose(&mut self, set: &AtomicI32) {
        hidden::forget(set.swap(-1, Relaxed));
        self.ears.close(-1, self.wait);
        self.stand_for_no_others(&[]);
        (self.receives, self.watched) = ((0, 0, -1), false);
        if let Some(table) = connections::get() {
            table.free_wait(self.wait);
        }
        (self.wait, self.refused) = (0, true);
    }

    /// Lets the wait number stand for a connection from now on.
    fn stand_for(&mut self, port: Port) -> bool {
        let name = (port.index, port.conn.identity.gen_.load(Relaxed));
        if !self.covered[..self.covers].contains(&name) {
            let Some(free) = self.covered.get_mut(self.covers) else { return false };
            *free = name;
            self.covers += 1;
        }
        if !port.conn.is_covered_by(self.wait) {
            port.conn.cover(self.wait, 0);
        }
        true
    }

    /// Sees to it that the kernel tells of a connection beside the bells, if the thread has slept
    /// on it before.
    fn watch(&mut self, set: i32, port: Port) -> bool {
        let name = (port.index, port.conn.identity.gen_.load(Relaxed), port.fd);
        let again = self.receives == name;
        if !again {
            self.unwatch(set);
            (self.receives, self.limitless) = (name, 0);
        }
        if again && !self.watched {
            self.serial = self.serial.wrapping_add(1);
            let events = (libc::EPOLLIN | libc::EPOLLRDHUP | libc::EPOLLET) as u32;
            // Bells have other data.
            let event = epoll_event { events, u64: self.serial.into() };
            self.watched = sys::epoll_ctl(set, libc::EPOLL_CTL_ADD, port.fd, &event) == 0;
        }
        self.watched
    }

    /// The kernel does not watch it any more. What it told of it once and nobody has noted it tells
    /// the next sleep again.
    fn unwatch(&mut self, set: i32) {
        if core::mem::take(&mut self.watched) {
            // If that number is another file's by now, the kernel knows, and took the old one off
            // at its close.
            sys::epoll_ctl(
                set,
                libc::EPOLL_CTL_DEL,
                self.receives.2,
                &epoll_event { events: 0, u64: 0 },
            );
        }
        self.receives = (0, 0, -1);
    }

    /// Stands no longer for connections that are not among these.
    fn stand_for_no_others(&mut self, ports: &[Port]) {
        let mut at = 0;
        while at < self.covers {
            let (index, generation) = self.covered[at];
            if ports.iter().any(|port| {
                (port.index, port.conn.identity.gen_.load(Relaxed)) == (index, generation)
            }) {
                at += 1;
                continue;
            }
            let c = fds::conn(index);
            if c.identity.gen_.load(Relaxed) == generation {
                c.uncover(self.wait);
            }
            self.covers -= 1;
            self.covered[at] = self.covered[self.covers];
        }
    }
}

/// What has ended a sleep.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Woken {
    /// The kernel tells this of the socket, once.
    Kernel(u32),
    /// A bell rang.
    Bell,
    /// The time is up.
    Time,
}

/// A sleep of the calling thread, from before it arms until it is awake.
pub struct Sleep {
    place: &'static Place,
    owner: &'static Owner,
    _guard: FastGuard<'static, false>,
    pages: [Option<(&'static Waits, &'static Conn)>; PAGES],
    used: usize,
}

impl Sleep {
    /// None if the thread has no bell.
    pub fn begin() -> Option<Self> {
        // A child that shares this memory has descriptors of its own.
        if !home::is_owner() {
            return None;
        }
        let (at, is_new) = place()?;
        let (place, owner) = (&PLACES[at], &places()[at]);
        let (guard, was_left) = place.lock.lock_recovering().ok()?;
        let mut sleep = Self { place, owner, _guard: guard, pages: [None; PAGES], used: 0 };
        let (epfd, handlers) = (owner.set.load(Relaxed), kernel::handlers());
        let state = sleep.state();
        if is_new || was_left {
            // What the kernel told then may have been noted by nobody.
            state.unwatch(epfd);
            owner.on.store(0, Relaxed);
        }
        if is_new {
            state.refused = false;
        }
        if state.wait == 0 {
            state.make(&owner.set);
        } else if epfd < 0 {
            state.lose(&owner.set);
        }
        if state.wait != 0 && state.handlers != handlers {
            (state.restarts, state.handlers) = (kernel::get().restarts(), handlers);
        }
        (state.wait != 0).then_some(sleep)
    }

    fn state(&mut self) -> &mut State {
        // SAFETY: the lock is held, and `&mut self` makes this the only reference.
        unsafe { &mut *self.place.state.get() }
    }

    /// Whether a receive that blocks may sleep here: a signal must not end it that would not end
    /// one in the kernel.
    pub fn restarts(&self) -> bool {
        // SAFETY: the lock is held, and nothing changes it meanwhile.
        unsafe { (*self.place.state.get()).restarts }
    }

    /// The sleep is on these connections, and no others.
    pub fn only_on(&mut self, ports: &[Port]) {
        self.state().stand_for_no_others(ports);
    }

    /// Lets the sleep stand for data on a connection, of which its caller has a seat; false if that
    /// must be armed by itself.
    pub fn covers(&mut self, port: Port) -> bool {
        let c = port.conn;
        // SYNC: alone. Behind the seat; pairs with `may_cover` of epoll.
        fence(SeqCst);
        // A header names one wait only. If others wait too, the connection is left uncovered: a TCP
        // byte wakes every waiter.
        if fds::local(port.index).regs.load(Acquire) != 0
            || fds::is_shared(port.index)
            || !c.is_committed()
            || c.is_muffled()
            || c.sleepers.others(READS)
        {
            return false;
        }
        // SAFETY: null, or a control page, type-stable.
        let Some(page) = (unsafe { c.peer_waits().as_ref() }) else { return false };
        let known =
            self.pages[..self.used].iter().flatten().any(|(held, _)| core::ptr::eq(*held, page));
        if !known && self.used == PAGES || !self.state().stand_for(port) {
            return false;
        }
        if !known {
            self.pages[self.used] = Some((page, c));
            self.used += 1;
        }
        true
    }

    /// From here on whoever publishes on a connection that the sleep covers rings. The caller looks
    /// once more before it sleeps.
    pub fn arm(&mut self) {
        let (pages, epfd) = (self.pages, self.owner.set.load(Relaxed));
        let state = self.state();
        for (page, c) in pages.iter().flatten() {
            state.ears.listen(epfd, state.wait, c, page);
            page.sleep(state.wait);
        }
    }

    /// What is to be polled beside the connections.
    pub fn asked(&self) -> pollfd {
        pollfd { fd: self.owner.set.load(Relaxed), events: libc::POLLIN, revents: 0 }
    }

    /// What has come of that: whether a bell rang.
    pub fn told(&mut self, asked: Option<&pollfd>) -> bool {
        let told = asked.map_or(0, |asked| asked.revents);
        if told == 0 {
            return false;
        }
        let (mut out, epfd) = ([NOTHING; ROOM], self.owner.set.load(Relaxed));
        // SAFETY: room for as many events.
        let n =
            unsafe { sys::epoll_pwait(epfd, out.as_mut_ptr(), ROOM as i32, 0, core::ptr::null()) };
        if n < 0 || told & libc::POLLNVAL != 0 {
            self.lose();
        } else if self.take(&out, n) != Woken::Bell {
            self.state().unwatch(epfd);
        }
        true
    }

    /// The thread has no bell any more.
    fn lose(&mut self) {
        let owner = self.owner;
        self.state().lose(&owner.set);
    }

    /// Sleeps on one connection, which is covered, for so many nanoseconds (None: for ever), or an
    /// errno.
    pub fn receive(&mut self, port: Port, left: Option<u64>) -> Result<Woken, i32> {
        let epfd = self.owner.set.load(Relaxed);
        let watched = self.state().watch(epfd, port);
        self.owner.on.store(port.index + 1, SeqCst);
        let (mut out, mut own) = ([NOTHING; ROOM], 0);
        let r = if watched {
            self.sleep_in_set(&mut out, left)
        } else {
            self.sleep_beside_set(port, left, &mut own)
        };
        self.owner.on.store(0, SeqCst);
        match r {
            0 => Ok(Woken::Time),
            1.. if watched => Ok(self.take(&out, r)),
            1.. if own != 0 => Ok(Woken::Kernel(own as u16 as u32)),
            1.. => Ok(Woken::Bell),
            e if e == -(libc::EINTR as isize) => Err(libc::EINTR),
            _ => {
                self.lose();
                Ok(Woken::Bell)
            }
        }
    }

    fn sleep_in_set(&mut self, out: &mut [epoll_event; ROOM], left: Option<u64>) -> isize {
        let (epfd, max) = (self.owner.set.load(Relaxed), ROOM as i32);
        let (at, mask) = (out.as_mut_ptr(), core::ptr::null());
        if let Some(left) = left.filter(|left| left % 1_000_000 != 0) {
            let limit = kernel::duration(left);
            // SAFETY: room for as many events, and a live limit.
            let r = unsafe { kernel::get().epoll_pwait2(epfd, at, max, &raw const limit, mask) };
            if !kernel::is_unknown(r) {
                return r;
            }
        }
        let ms = left.map_or(-1, |left| left.div_ceil(1_000_000).min(i32::MAX as u64) as i32);
        // SAFETY: room for as many events.
        unsafe { kernel::get().epoll_pwait(epfd, at, max, ms, mask) }
    }

    fn sleep_beside_set(&mut self, port: Port, left: Option<u64>, own: &mut i16) -> isize {
        let first = pollfd { fd: port.fd, events: libc::POLLIN | libc::POLLRDHUP, revents: 0 };
        let mut asked = [first, self.asked()];
        let limit = left.map(kernel::duration);
        let limit = limit.as_ref().map_or(core::ptr::null(), core::ptr::from_ref);
        // SAFETY: pointers to live locals.
        let r = unsafe { kernel::get().ppoll(asked.as_mut_ptr(), 2, limit, core::ptr::null()) };
        if r > 0 {
            *own = asked[0].revents;
            self.told(asked.last());
        }
        r
    }

    /// Whether the last sleep of a receive was on this connection, and the kernel would still say
    /// of it that it has no time limit. It is nobody else's, or it would not be covered.
    pub fn has_no_limit(&mut self, port: Port) -> bool {
        let state = self.state();
        state.limitless == LIMITS.load(Relaxed) + 1
            && state.receives == (port.index, port.conn.identity.gen_.load(Relaxed), port.fd)
    }

    /// It has none; `limits` were set so far, before it was asked.
    pub fn found_no_limit(&mut self, limits: u32) {
        self.state().limitless = limits + 1;
    }

    /// Takes events of the set.
    fn take(&mut self, out: &[epoll_event; ROOM], n: isize) -> Woken {
        let mut woken = Woken::Bell;
        for event in &out[..n.max(0) as usize] {
            let epfd = self.owner.set.load(Relaxed);
            let state = self.state();
            if state.ears.told(epfd, event.u64, event.events).is_none()
                && event.u64 == state.serial.into()
            {
                woken = Woken::Kernel(event.events);
            }
        }
        woken
    }
}

impl Drop for Sleep {
    fn drop(&mut self) {
        let (pages, wait) = (self.pages, self.state().wait);
        if wait != 0 {
            pages.iter().flatten().for_each(|(page, _)| page.wake(wait));
        }
    }
}

/// A descriptor of ours has moved to another number.
pub fn moved_fd(from: i32, to: i32) {
    for owner in owners() {
        let _ = owner.set.compare_exchange(from, to, Relaxed, Relaxed);
    }
}

/// In a fork child: threads, wait numbers and descriptors are the parent's.
pub fn after_fork_child() {
    for (owner, place) in owners().iter().zip(&PLACES) {
        owner.thread.store(0, Relaxed);
        owner.set.store(-1, Relaxed);
        owner.on.store(0, Relaxed);
        // SAFETY: the only thread of the child.
        unsafe { place.lock.reset() };
        // SAFETY: as above.
        unsafe { *place.state.get() = Place::new().state.into_inner() };
    }
    HIGH.store(0, Relaxed);
}

#[cfg(test)]
mod tests;
