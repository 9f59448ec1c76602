//! Where sets and registrations live: two reserved arrays, whose members are reused and never
//! freed, so that a late reader finds another set or registration at worst.
#![allow(unsafe_code)]

use core::sync::atomic::{AtomicPtr, AtomicU32, Ordering::*};

use shm::lock::{FastGuard, FastLock};
use smc::sys;

use super::set::{Entry, Set};
use crate::fds;

const MAX_ENTRIES: u32 = 1 << 18;
const MAX_SETS: u32 = 4096;

/// An array that grows in place.
struct Slots<T> {
    base: AtomicPtr<T>,
    used: AtomicU32,
    max: u32,
}

impl<T> Slots<T> {
    const fn new(max: u32) -> Self {
        Self { base: AtomicPtr::new(core::ptr::null_mut()), used: AtomicU32::new(0), max }
    }

    #[inline]
    fn get(&self, index: u32) -> Option<&'static T> {
        // SYNC: slots. Acquire: a slot below `used` is complete; pairs with the release in `push`.
        if index >= self.used.load(Acquire) {
            return None;
        }
        // SAFETY: slots below `used` are initialised, never moved and never freed.
        Some(unsafe { &*self.base.load(Relaxed).add(index as usize) })
    }

    /// One more slot, if there is room and memory.
    fn push(&self, _: &Tables, value: T) -> Option<u32> {
        let index = self.used.load(Relaxed);
        if self.base.load(Relaxed).is_null() {
            // Address space only, touched as it is used.
            self.base
                .store(sys::reserve(self.max as usize * size_of::<T>(), false).cast(), Relaxed);
        }
        let base = self.base.load(Relaxed);
        if base.is_null() || index == self.max {
            return None;
        }
        // SAFETY: below `max`, and under the tables' lock nobody else writes a slot at `used`.
        unsafe { base.add(index as usize).write(value) };
        // SYNC: slots. Release; pairs with the acquire in `get`.
        self.used.store(index + 1, Release);
        Some(index)
    }
}

static LOCK: FastLock<false> = FastLock::new();
static SETS: Slots<Set> = Slots::new(MAX_SETS);
static ENTRIES: Slots<Entry> = Slots::new(MAX_ENTRIES);
/// First free registration, index + 1, linked by `next_of_conn`.
static FREE: AtomicU32 = AtomicU32::new(0);

/// The lock that fork holds so that the child finds the tables whole.
pub fn lock() -> &'static FastLock<false> {
    &LOCK
}

/// The tables' lock is held. The words that it guards are atomics with relaxed accesses: some are
/// also read without it, as a hint.
pub struct Tables {
    _guard: FastGuard<'static, false>,
}

/// Takes the tables' lock; None in a signal handler that interrupted its holder, or the holder of a
/// set: with the tables' lock another thread may wait for that set, and each would wait for the
/// other for ever.
#[inline]
pub fn tables() -> Option<Tables> {
    if is_set_interrupted() {
        return None;
    }
    LOCK.lock().ok().map(|guard| Tables { _guard: guard })
}

/// Whether this is a signal handler that interrupted the holder of a set.
#[inline]
fn is_set_interrupted() -> bool {
    let last = shm::words::SET.get().checked_sub(1);
    last.and_then(slot).is_some_and(Set::is_interrupted)
}

/// The turn of an epoll_ctl: until it is dropped no other one changes that set.
pub struct Turn {
    /// That of an epoll_ctl which this one interrupts, in a signal handler.
    before: u32,
    _guard: FastGuard<'static, false>,
}

impl Drop for Turn {
    #[inline]
    fn drop(&mut self) {
        shm::words::TURN.set(self.before);
    }
}

/// Takes the turn of set `index`; None in a signal handler that would have to wait for it and has
/// interrupted a holder of any turn, of the tables or of a set: whoever has it may wait for what
/// the handler's thread holds.
#[inline(always)]
pub fn turn(index: u32, s: &'static Set) -> Option<Turn> {
    let guard = match s.turn.try_lock() {
        Some(guard) => guard,
        None if is_interrupted() => return None,
        None => s.turn.lock().ok()?,
    };
    let before = shm::words::TURN.get();
    shm::words::TURN.set(index + 1);
    Some(Turn { before, _guard: guard })
}

/// Whether this is a signal handler that interrupted somebody for whom others may wait.
#[cold]
fn is_interrupted() -> bool {
    let last = shm::words::TURN.get().checked_sub(1);
    LOCK.is_interrupted()
        || is_set_interrupted()
        || last.and_then(slot).is_some_and(|s| s.turn.is_interrupted())
}

/// The set at `index`, in use or not.
#[inline]
pub fn slot(index: u32) -> Option<&'static Set> {
    SETS.get(index)
}

/// The set at `index`.
#[inline]
pub fn set(index: u32) -> Option<&'static Set> {
    slot(index).filter(|s| s.refs.load(Relaxed) != 0)
}

/// The registration at `index`, in use or not.
#[inline]
pub fn entry(index: u32) -> Option<&'static Entry> {
    ENTRIES.get(index)
}

/// The registrations of a connection. Without the tables' lock only a hint.
pub fn of_conn(conn: u32) -> impl Iterator<Item = (u32, &'static Entry)> {
    let mut at = fds::local(conn).regs.load(Relaxed);
    core::iter::from_fn(move || {
        let i = at.checked_sub(1)?;
        let e = entry(i)?;
        at = e.next_of_conn.load(Relaxed);
        Some((i, e))
    })
}

/// Registrations of a connection that a search without the tables' lock looks at.
const NEAR: usize = 4;

/// The registration of `fd` in a set, for the thread that has that set's turn: nobody else adds any to
/// it. Without the tables' lock, which all sets share; so None also where others change the connection's
/// list meanwhile, or where the list is long, and what it finds may be no member of the set any more. None
/// in a signal handler that interrupted the holder of a set, who may have what another set's holder waits for.
#[inline]
pub fn find_by_turn(_: &Turn, set_index: u32, conn: u32, fd: i32) -> Option<u32> {
    if is_set_interrupted() {
        return None;
    }
    // What others take off the list leads elsewhere: to registrations of other connections.
    let is_it = |e: &Entry| e.is_in(set_index) && e.fd() == fd && e.conn() == conn;
    of_conn(conn).take(NEAR).find(|(_, e)| is_it(e)).map(|(i, _)| i)
}

impl Tables {
    /// Every set that was ever made.
    pub fn sets(&self) -> impl Iterator<Item = (u32, &'static Set)> {
        (0..).map_while(|i| Some((i, slot(i)?)))
    }

    /// A set nobody uses.
    pub fn spare_set(&self) -> Option<u32> {
        let old = self.sets().find(|(_, s)| s.refs.load(Relaxed) == 0).map(|(i, _)| i);
        old.or_else(|| SETS.push(self, Set::new()))
    }

    /// The registrations of a set. The one at hand may be released on the way.
    pub fn of_set(&self, s: &Set) -> impl Iterator<Item = (u32, &'static Entry)> {
        let mut at = s.first.load(Relaxed);
        core::iter::from_fn(move || {
            let i = at.checked_sub(1)?;
            let e = entry(i)?;
            at = e.next_of_set.load(Relaxed);
            Some((i, e))
        })
    }

    /// The registration of `fd` in a set.
    pub fn find(&self, set_index: u32, conn: u32, fd: i32) -> Option<(u32, &'static Entry)> {
        of_conn(conn).find(|(_, e)| e.is_in(set_index) && e.fd() == fd)
    }

    /// A free registration, not linked to anything.
    pub fn take(&self) -> Option<(u32, &'static Entry)> {
        if let Some(i) = FREE.load(Relaxed).checked_sub(1) {
            let e = entry(i)?;
            FREE.store(e.next_of_conn.load(Relaxed), Relaxed);
            return Some((i, e));
        }
        let index = ENTRIES.push(self, Entry::new())?;
        Some((index, entry(index)?))
    }

    /// Gives back what `take` returned.
    pub fn give_back(&self, index: u32, e: &Entry) {
        // Not a swap: those are locked instructions, which the tables' lock makes needless.
        e.next_of_conn.store(FREE.load(Relaxed), Relaxed);
        FREE.store(index + 1, Relaxed);
    }

    /// Puts a registration on the list of its connection.
    pub fn link_conn(&self, index: u32, e: &Entry) {
        let regs = &fds::local(e.conn()).regs;
        e.next_of_conn.store(regs.load(Relaxed), Relaxed);
        regs.store(index + 1, Relaxed);
    }

    /// Takes it off again.
    pub fn unlink_conn(&self, index: u32, e: &Entry) {
        let next = e.next_of_conn.load(Relaxed);
        let regs = &fds::local(e.conn()).regs;
        if regs.load(Relaxed) == index + 1 {
            regs.store(next, Relaxed);
        } else if let Some((_, before)) =
            of_conn(e.conn()).find(|(_, b)| b.next_of_conn.load(Relaxed) == index + 1)
        {
            before.next_of_conn.store(next, Relaxed);
        }
    }

    /// Puts a registration on the list of its set.
    pub fn link_set(&self, index: u32, e: &Entry, s: &Set) {
        let first = s.first.load(Relaxed);
        s.first.store(index + 1, Relaxed);
        e.prev_of_set.store(0, Relaxed);
        e.next_of_set.store(first, Relaxed);
        if let Some(f) = first.checked_sub(1).and_then(entry) {
            f.prev_of_set.store(index + 1, Relaxed);
        }
    }

    /// Takes it off again.
    pub fn unlink_set(&self, e: &Entry, s: &Set) {
        let (prev, next) = (e.prev_of_set.load(Relaxed), e.next_of_set.load(Relaxed));
        match prev.checked_sub(1).and_then(entry) {
            Some(p) => p.next_of_set.store(next, Relaxed),
            None => s.first.store(next, Relaxed),
        }
        if let Some(n) = next.checked_sub(1).and_then(entry) {
            n.prev_of_set.store(prev, Relaxed);
        }
    }
}
