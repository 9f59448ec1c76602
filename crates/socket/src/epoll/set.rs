//! A set, its registrations, and what its lock guards.
#![allow(unsafe_code)]

mod held;
mod hot;

pub use held::{Held, Owner, held};

use alloc::vec::Vec;
use core::cell::UnsafeCell;
use core::ptr::null;
use core::sync::atomic::{AtomicBool, AtomicI32, AtomicU32, AtomicU64, Ordering::*};

use libc::epoll_event;
use shm::lock::FastLock;
use smc::conn::announce::{Announced, WORDS};
use smc::conn::bells::Bells;
use smc::conn::{Calm, Conn, Waits};
use smc::sys;

use super::bells::{Ears, PAGES};
use super::sleepers::Sleepers;
use super::table::{Tables, set};
use super::underway::Underway;
use crate::fds;

/// What the kernel watches for a hooked registration.
pub const WATCH: u32 =
    (libc::EPOLLIN | libc::EPOLLOUT | libc::EPOLLRDHUP | libc::EPOLLPRI | libc::EPOLLET) as u32;
/// Most events of rings that one call gives out. A program that answers only when it has gone
/// through all its events (Redis) would otherwise let its peer idle meanwhile and then be idle
/// itself: with a call in user space as cheap as this one, small helpings keep both busy.
pub const SHARE: u32 = 8;
/// Upper half of the data that we register. Chosen so that no pointer or small number looks like
/// it. Below it are the registration's serial number (14 bits) and its index (18 bits).
const TAG: u64 = smc::group::bells::REGISTRATION;
const TAG_MASK: u64 = smc::group::bells::TAG;
const INDEX_BITS: u32 = 18;

/// One registration of a connection in a set. Who it is changes only under the tables' lock, and a
/// membership ends under that of its set, too.
pub struct Entry {
    /// Index of its set + 1; 0: free.
    set: AtomicU32,
    conn: AtomicU32,
    /// The connection's, so that a slot of the connection table that was reused is not taken for
    /// it.
    generation: AtomicU32,
    fd: AtomicI32,
    /// Counts the uses of this slot: the kernel may still report one that is gone.
    serial: AtomicU32,
    pub next_of_conn: AtomicU32,
    pub next_of_set: AtomicU32,
    pub prev_of_set: AtomicU32,
    state: UnsafeCell<State>,
}

// SAFETY: the cell is reached through `Held` only, by the holder of the lock of the set that `set`
// names.
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
    fn of(ev: epoll_event) -> Self {
        Self {
            events: ev.events,
            data: ev.u64,
            enabled: true,
            seen_read: u64::MAX,
            ..Self::default()
        }
    }

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

    /// Makes a free registration a member of set `set_index`, for the connection that slot `conn`
    /// had with this generation.
    pub fn admit(
        &self,
        _: &Tables,
        set_index: u32,
        [conn, generation]: [u32; 2],
        fd: i32,
        ev: epoll_event,
    ) {
        self.conn.store(conn, Relaxed);
        self.generation.store(generation, Relaxed);
        self.fd.store(fd, Relaxed);
        self.serial.store((self.serial.load(Relaxed) + 1) & (u32::MAX >> INDEX_BITS), Relaxed);
        // SAFETY: a free one is nobody's but who has the tables' lock.
        unsafe { *self.state.get() = State::of(ev) };
        // SYNC: member. Behind its state; pairs with `is_in`.
        self.set.store(set_index + 1, Release);
    }

    pub fn conn(&self) -> u32 {
        self.conn.load(Relaxed)
    }

    pub fn fd(&self) -> i32 {
        self.fd.load(Relaxed)
    }

    pub fn is_in(&self, set_index: u32) -> bool {
        // SYNC: member. In front of its state; pairs with `admit`.
        self.set.load(Acquire) == set_index + 1
    }

    /// The index of its set.
    pub fn set_index(&self) -> Option<u32> {
        self.set.load(Relaxed).checked_sub(1)
    }

    /// The connection, unless its slot names another one by now.
    #[inline]
    pub fn current(&self) -> Option<&'static Conn> {
        let c = fds::conn(self.conn());
        (c.identity.gen_.load(Relaxed) == self.generation.load(Relaxed)).then_some(c)
    }

    /// Whether the registered number still names the connection: only then may the kernel's
    /// registration be changed by it.
    fn is_named(&self) -> bool {
        fds::names(self.fd(), self.conn())
    }

    pub fn tag(&self, index: u32) -> u64 {
        TAG | u64::from(self.serial.load(Relaxed) << INDEX_BITS | index)
    }
}

/// One epoll descriptor's user-space half.
pub struct Set {
    /// See `table::turn`, and the registration that who has it asks the kernel about.
    pub turn: FastLock<false>,
    pub underway: Underway,
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
    /// When the kernel was last asked, and whether it is to be asked first because the last answer
    /// was full without it. Two threads may both ask, or ask in turn: only fairness hangs on it.
    pub last_kernel: AtomicU64,
    /// Events of rings that one call gives out, in 1/16; how many the last call gave out, and when.
    pub share: AtomicU32,
    pub given: AtomicU32,
    pub given_at: AtomicU64,
    /// Calls that found something, less those that slept.
    pub busy: AtomicU32,
    /// When a wait leaves the processor to others next.
    pub next_yield: AtomicU64,
    /// How long it keeps the processor before that, by how long others had it when it last did; in
    /// nanoseconds.
    pub yield_every: AtomicU64,
    pub kernel_first: AtomicBool,
}

// SAFETY: the hot list and the bells are reached through `Held` only, by the holder of `lock`.
unsafe impl Sync for Set {}

/// Registrations of which the set's waits know by themselves when something happens.
pub struct Hot {
    /// The first `looked` are those that a look goes into; of all others the peer announces what
    /// happens.
    pub list: Vec<Spot>,
    pub looked: usize,
    /// Where the next look begins.
    pub next: usize,
    /// Calm registrations that looks have gone into of late, less a few for each event that they
    /// found: above 0 it pays to pass over them.
    pub waste: i32,
    /// When a look last went into all of them.
    pub all: u64,
    /// The row in which peers announce it to this set, plus one; 0: it has none.
    pub row: u32,
    /// The control pages in which a sleep is told.
    pub pages: [Page; PAGES],
    /// The arenas in which something may be announced.
    pub arenas: [Arena; PAGES],
}

impl Hot {
    /// With nothing on it.
    pub const fn new() -> Self {
        Self {
            list: Vec::new(),
            looked: 0,
            next: 0,
            waste: 0,
            all: 0,
            row: 0,
            pages: [Page::NONE; PAGES],
            arenas: [Arena::NONE; PAGES],
        }
    }

    /// Forgets what is on it, and keeps its memory.
    pub fn clear(&mut self) {
        let list = core::mem::take(&mut self.list);
        *self = Self { list, ..Self::new() };
        self.list.clear();
    }
}

/// A control page of a peer in which the set's wait word stands for registrations.
#[derive(Clone, Copy)]
pub struct Page {
    pub page: *const Waits,
    /// How many those are, 0: the place is free. One of them, if it is still there.
    pub spots: u32,
    pub one: u32,
}

impl Page {
    const NONE: Self = Self { page: null(), spots: 0, one: 0 };
}

/// Bits in an arena of ours.
#[derive(Clone, Copy)]
pub struct Arena {
    pub bits: *const Announced,
    /// Who looks at which of its slots.
    pub bells: *const Bells,
    /// Registrations for which bits may be set there, 0: the place is free.
    pub spots: u32,
    /// The bits of those that no look goes into, and how many words they may lie in.
    pub settled: [u64; WORDS],
    pub words: usize,
}

impl Arena {
    const NONE: Self =
        Self { bits: null(), bells: null(), spots: 0, settled: [0; WORDS], words: 0 };

    fn is_free(&self) -> bool {
        self.spots == 0
    }
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
    /// Where its peer announces what happens.
    pub told: Told,
    /// What was there when the last look found nothing.
    pub calm: Option<Calm>,
    /// Whether it was to be told of space then.
    pub sends: bool,
}

/// Where the peer of a connection announces what happens on it.
#[derive(Clone, Copy)]
pub enum Told {
    /// It was not asked.
    Unasked,
    /// It cannot.
    Nowhere,
    /// In the arena at this place of `Hot::arenas`, by the bit of this slot.
    Here(u8, u16),
}

impl Spot {
    /// That of a registration of which nothing is known yet.
    fn new(index: u32, since: u64) -> Self {
        Self { index, idle: 0, since, page: null(), told: Told::Unasked, calm: None, sends: false }
    }

    /// Whether a look would find nothing, as the last one did.
    #[inline]
    pub fn is_calm(&self) -> bool {
        self.calm.as_ref().is_some_and(Calm::lasts)
    }
}

impl Set {
    pub const fn new() -> Self {
        Self {
            turn: FastLock::new(),
            underway: Underway::new(),
            lock: FastLock::new(),
            hot: UnsafeCell::new(Hot::new()),
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
    #[inline]
    pub fn is_interrupted(&self) -> bool {
        self.lock.is_interrupted()
    }

    /// # Safety
    /// As for `FastLock::reset`.
    pub unsafe fn reset_locks(&self) {
        for lock in [&self.turn, &self.lock] {
            // SAFETY: forwarded.
            unsafe { lock.reset() };
        }
        self.underway.end();
    }

    /// epoll_ctl on the kernel's set.
    pub fn control(&self, op: i32, fd: i32, ev: epoll_event) -> isize {
        sys::epoll_ctl(self.epfd.load(Relaxed), op, fd, &ev)
    }
}

/// Whether any registration of the set is hooked.
#[inline]
pub fn hooked(index: u32) -> bool {
    set(index).is_some_and(|s| s.hooked.load(SeqCst) > 0)
}
