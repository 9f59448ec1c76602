//! What a process holds of its family's connections. That of a fork child lies in memory which its parent sees too: a
//! child that is killed gives nothing back, so its parent does.
#![allow(unsafe_code)]

use core::sync::atomic::{AtomicBool, AtomicPtr, AtomicU32, AtomicU64, AtomicUsize, Ordering::*};

use shm::lock::FastLock;
use smc::{sys, table};

/// A process's share, of whole pages. All zero is a valid one.
#[repr(C, align(4096))]
pub struct Ledger {
    /// The process, with `ELSEWHERE` once it runs another program, which keeps no ledger here; 0 before it has come to life;
    /// `STRANGER` if its parent knows it by another number.
    pid: AtomicU32,
    /// Wait numbers taken, one bit each.
    waits: [AtomicU64; table::WAITS / 64],
    /// Descriptors that name a connection.
    held: [AtomicU32; table::CAPACITY as usize],
}

const ELSEWHERE: u32 = 1 << 31;
const STRANGER: u32 = 1 << 30;
const LEN: usize = size_of::<Ledger>();
/// Children whose ledgers there is room for at a time. One that finds none gives nothing back when it is killed.
const CHILDREN: usize = 256;
/// Those that are looked at with every fork.
const AT_A_TIME: usize = 8;
const NONE: usize = usize::MAX;

static MINE: AtomicPtr<Ledger> = AtomicPtr::new(core::ptr::null_mut());
/// The ledgers of our children, made with the first; and those among which ours is.
static POOL: AtomicPtr<Ledger> = AtomicPtr::new(core::ptr::null_mut());
static SIBLINGS: AtomicPtr<Ledger> = AtomicPtr::new(core::ptr::null_mut());
/// Which of the pool are in use, and that none is from `TOP` on.
static TAKEN: [AtomicBool; CHILDREN] = [const { AtomicBool::new(false) }; CHILDREN];
static TOP: AtomicUsize = AtomicUsize::new(0);
/// Ours is looked at by our parent, when we have ended.
static SEEN: AtomicBool = AtomicBool::new(false);
/// That of the child that is being forked.
static NEXT: AtomicUsize = AtomicUsize::new(NONE);
/// Held while ledgers of children are looked at, and taken away.
static REAPING: FastLock<false> = FastLock::new();
static LOOKED_AT: AtomicUsize = AtomicUsize::new(0);

/// False without memory for it.
pub fn init() -> bool {
    let fresh = sys::reserve(LEN, false).cast::<Ledger>();
    if !fresh.is_null() {
        MINE.store(fresh, Release);
    }
    !fresh.is_null()
}

fn mine() -> &'static Ledger {
    // SAFETY: set by `init`, without which no connection is known, and by `after_fork_child`; mapped while this process lives.
    unsafe { &*MINE.load(Relaxed) }
}

/// Descriptors of this process that name connection `index`.
#[inline]
pub fn held(index: u32) -> &'static AtomicU32 {
    &mine().held[index as usize]
}

/// Takes a wait number; 0 when all are taken.
pub fn take_wait(t: &table::Header) -> u32 {
    let wait = t.take_wait();
    mine().waits[wait as usize / 64].fetch_or(u64::from(wait != 0) << (wait % 64), Relaxed);
    wait
}

/// Gives a wait number back.
pub fn free_wait(t: &table::Header, wait: u32) {
    mine().waits[wait as usize / 64].fetch_and(!(1 << (wait % 64)), Relaxed);
    t.free_wait(wait);
}

/// Finds room for the next one. Called by one thread at a time, as the other two.
pub fn before_fork() {
    // Without a table nothing is held, and a child that makes one is a family of its own.
    if MINE.load(Relaxed).is_null() || !table::exists() {
        return;
    }
    if POOL.load(Relaxed).is_null() {
        POOL.store(sys::reserve(LEN * CHILDREN, true).cast(), Release);
    }
    let free = |taken: &AtomicBool| !taken.swap(true, AcqRel);
    if !POOL.load(Relaxed).is_null()
        && let Some(at) = TAKEN.iter().position(free)
    {
        TOP.fetch_max(at + 1, AcqRel);
        NEXT.store(at, Relaxed);
    }
}

pub fn after_fork_parent() {
    NEXT.store(NONE, Relaxed);
}

/// That of the child of `parent`. `each` calls its argument for the connection of every descriptor.
pub fn after_fork_child(parent: u32, each: impl FnOnce(&mut dyn FnMut(u32))) {
    if !table::exists() {
        return;
    }
    // SAFETY: the only thread of the child.
    unsafe { REAPING.reset() };
    TAKEN[..TOP.swap(0, Relaxed)].iter().for_each(|taken| taken.store(false, Relaxed));
    let pool = POOL.swap(core::ptr::null_mut(), Relaxed);
    let next = NEXT.swap(NONE, Relaxed);
    match next {
        NONE => {
            // Without room for a new one, and unseen by the parent: in place of the parent's own.
            let old = MINE.load(Relaxed);
            // SAFETY: what was the parent's ledger, in the only thread of this process.
            unsafe { sys::renew(old.cast(), LEN) };
        }
        at => {
            MINE.store(pool.wrapping_add(at), Relaxed);
            let old = SIBLINGS.swap(pool, Relaxed);
            if !old.is_null() {
                // SAFETY: where the parent's ledger is, which nobody uses here any more.
                unsafe { sys::give_back(old.cast(), LEN * CHILDREN) };
            }
        }
    }
    each(&mut |index| {
        held(index).fetch_add(1, Relaxed);
    });
    // In a PID namespace of its own it has no parent, and a number that means another process there.
    let known = sys::getppid() == parent;
    SEEN.store(known && next != NONE, Relaxed);
    mine().pid.store(if known { sys::getpid() } else { STRANGER }, Release);
}

/// Whether `parent` is our parent, lives, and gives back what we hold when we have ended.
pub fn is_settled_by(parent: u32) -> bool {
    SEEN.load(Relaxed) && sys::getppid() == parent
}

/// The process becomes another program, which may take over what this one holds.
pub fn before_exec() {
    note(|pid| pid | ELSEWHERE);
}

/// exec failed.
pub fn undo_exec() {
    note(|pid| pid & !ELSEWHERE);
}

fn note(f: impl Fn(u32) -> u32) {
    // SAFETY: null, or as in `mine`.
    if let Some(l) = unsafe { MINE.load(Relaxed).as_ref() } {
        l.pid.store(f(l.pid.load(Relaxed)), Release);
    }
}

/// Gives back what children held that were killed: `lost` is called for each connection with the number of descriptors.
/// Looks at some children, or at `all`.
pub fn reap(all: bool, mut lost: impl FnMut(u32, u32)) {
    // Whoever is at it already, on another thread or below this signal handler, does it for us.
    let Some(_guard) = REAPING.try_lock() else { return };
    let (top, pool) = (TOP.load(Acquire), POOL.load(Acquire));
    let from = if all { 0 } else { LOOKED_AT.fetch_add(AT_A_TIME, Relaxed) };
    for at in (0..top.min(if all { top } else { AT_A_TIME })).map(|i| from.wrapping_add(i) % top) {
        // SAFETY: below TOP, in a pool that stays mapped.
        let l = unsafe { &*pool.wrapping_add(at) };
        if TAKEN[at].load(Acquire) && l.is_over() {
            l.settle(&mut lost);
            TAKEN[at].store(false, Release);
        }
    }
}

impl Ledger {
    /// Whether its process has ended, so that nobody writes here any more.
    fn is_over(&self) -> bool {
        match self.pid.load(Acquire) & !ELSEWHERE {
            0 | STRANGER => false,
            pid => has_ended(pid),
        }
    }

    /// Empties it.
    fn settle(&self, lost: &mut impl FnMut(u32, u32)) {
        let given_up = self.pid.swap(0, Relaxed) & ELSEWHERE == 0;
        let Some(t) = table::get() else { return };
        for wait in (1..table::WAITS as u32).filter(|w| self.waits[*w as usize / 64].load(Relaxed) >> (w % 64) & 1 == 1)
        {
            // Nor does a program that it has become use them.
            t.free_wait(wait);
        }
        self.waits.iter().for_each(|word| word.store(0, Relaxed));
        for index in 0..t.high_water.load(Relaxed).min(table::CAPACITY) {
            match self.held[index as usize].swap(0, Relaxed) {
                0 => {}
                // What it had closed no other program has taken over.
                n if given_up || t.conn(index).is_closed() => lost(index, n),
                _ => {}
            }
        }
    }
}

/// Whether a process has ended, reaped or not. Doubts count as no.
fn has_ended(pid: u32) -> bool {
    let fd = sys::pidfd(pid);
    if fd < 0 {
        return fd == -(libc::ESRCH as isize);
    }
    let ended = sys::poll_now(fd as i32, libc::POLLIN) & libc::POLLIN != 0;
    sys::close(fd as i32);
    ended
}
