//! What a process holds of its family's connections. That of a fork child lies in memory which its parent sees too: a
//! child that is killed gives nothing back, so its parent does.

use core::sync::atomic::{AtomicPtr, AtomicU32, AtomicU64, AtomicUsize, Ordering::*};

use shm::lock::FastLock;
use smc::{sys, table};

/// A process's share. All zero is a valid one.
#[repr(C)]
pub struct Ledger {
    /// The process; 0 before it has come to life, `ANOTHER` if its parent cannot go by this.
    pid: AtomicU32,
    /// When it was made for a child, in nanoseconds.
    born: AtomicU64,
    /// Wait numbers taken, one bit each.
    waits: [AtomicU64; table::WAITS / 64],
    /// Descriptors that name a connection.
    held: [AtomicU32; table::CAPACITY as usize],
}

/// It runs another program, which keeps no ledger here, or its parent knows it by another number.
const ANOTHER: u32 = u32::MAX;
/// A child that has not come to life by then never will, or without us: the fork failed, or it was killed at once.
const STILLBORN_NS: u64 = 10_000_000_000;
const LEN: usize = size_of::<Ledger>();
/// Children that are looked at with every fork.
const AT_A_TIME: usize = 8;

static MINE: AtomicPtr<Ledger> = AtomicPtr::new(core::ptr::null_mut());
/// For the child that is being forked.
static NEXT: AtomicPtr<Ledger> = AtomicPtr::new(core::ptr::null_mut());
/// Of children that may live. One that finds no place here gives nothing back when it is killed.
static CHILDREN: [AtomicPtr<Ledger>; 1024] = [const { AtomicPtr::new(core::ptr::null_mut()) }; 1024];
/// No child is at this place or above.
static TOP: AtomicUsize = AtomicUsize::new(0);
/// Held while ledgers of children are looked at, and taken away.
static REAPING: FastLock<false> = FastLock::new();
static LOOKED_AT: AtomicUsize = AtomicUsize::new(0);
/// What `Ledger::pid` is while this program runs.
static NUMBER: AtomicU32 = AtomicU32::new(0);

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

/// The next one's memory. Called by one thread at a time, as the other two.
pub fn before_fork() {
    if MINE.load(Relaxed).is_null() {
        return;
    }
    let next = sys::reserve(LEN, true).cast::<Ledger>();
    NEXT.store(next, Relaxed);
    // SAFETY: null, or zeroed memory that is a valid ledger.
    if let Some(l) = unsafe { next.as_ref() } {
        l.born.store(sys::now_ns(), Relaxed);
    }
}

pub fn after_fork_parent() {
    let child = NEXT.swap(core::ptr::null_mut(), Relaxed);
    if child.is_null() {
        return;
    }
    // SAFETY: our own mapping. Further children have no use for it.
    unsafe { sys::syscall(libc::SYS_madvise, child as usize, LEN, libc::MADV_DONTFORK as usize, 0, 0, 0) };
    let free = |slot: &AtomicPtr<Ledger>| slot.compare_exchange(core::ptr::null_mut(), child, AcqRel, Relaxed).is_ok();
    match CHILDREN.iter().position(free) {
        Some(at) => drop(TOP.fetch_max(at + 1, Relaxed)),
        None => unmap(child),
    }
}

/// That of the child of `parent`. `each` calls its argument for the connection of every descriptor.
pub fn after_fork_child(parent: u32, each: impl FnOnce(&mut dyn FnMut(u32))) {
    let (old, next) = (MINE.load(Relaxed), NEXT.swap(core::ptr::null_mut(), Relaxed));
    // SAFETY: the only thread of the child.
    unsafe { REAPING.reset() };
    CHILDREN[..TOP.swap(0, Relaxed)].iter().for_each(|slot| slot.store(core::ptr::null_mut(), Relaxed));
    if next.is_null() {
        // Without memory for a new one, and unseen by the parent.
        let (prot, flags) =
            (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_FIXED);
        // SAFETY: replaces exactly what was the parent's ledger, in the only thread of this process.
        unsafe { sys::syscall(libc::SYS_mmap, old as usize, LEN, prot as usize, flags as usize, usize::MAX, 0) };
    } else {
        MINE.store(next, Relaxed);
        unmap(old);
    }
    each(&mut |index| {
        held(index).fetch_add(1, Relaxed);
    });
    // In a PID namespace of its own it has no parent, and a number that means another process there.
    // SAFETY: no arguments.
    let known = unsafe { sys::syscall(libc::SYS_getppid, 0, 0, 0, 0, 0, 0) } as u32 == parent;
    NUMBER.store(if known { sys::getpid() } else { ANOTHER }, Relaxed);
    note(NUMBER.load(Relaxed));
}

/// The process becomes another program, which may take over what this one holds.
pub fn before_exec() {
    note(ANOTHER);
}

/// exec failed.
pub fn undo_exec() {
    note(NUMBER.load(Relaxed));
}

fn note(pid: u32) {
    // SAFETY: null, or as in `mine`.
    if let Some(l) = unsafe { MINE.load(Relaxed).as_ref() } {
        l.pid.store(pid, Release);
    }
}

/// Gives back what children held that were killed: `lost` is called for each connection with the number of descriptors.
/// Looks at some children, or at `all`.
pub fn reap(all: bool, mut lost: impl FnMut(u32, u32)) {
    // Whoever is at it already, on another thread or below this signal handler, does it for us.
    let Some(_guard) = REAPING.try_lock() else { return };
    let top = TOP.load(Relaxed);
    let from = if all { 0 } else { LOOKED_AT.fetch_add(AT_A_TIME, Relaxed) };
    for at in (0..top.min(if all { top } else { AT_A_TIME })).map(|i| from.wrapping_add(i) % top) {
        let child = CHILDREN[at].load(Acquire);
        // SAFETY: null, or mapped until it is taken out below, under the lock.
        let Some(l) = (unsafe { child.as_ref() }).filter(|l| l.is_over()) else { continue };
        l.settle(&mut lost);
        CHILDREN[at].store(core::ptr::null_mut(), Release);
        unmap(child);
    }
}

impl Ledger {
    fn is_over(&self) -> bool {
        match self.pid.load(Acquire) {
            0 => sys::now_ns() - self.born.load(Relaxed) > STILLBORN_NS,
            ANOTHER => true,
            pid => has_ended(pid),
        }
    }

    fn settle(&self, lost: &mut impl FnMut(u32, u32)) {
        let Some(t) = table::get().filter(|_| !matches!(self.pid.load(Relaxed), 0 | ANOTHER)) else { return };
        for wait in (1..table::WAITS as u32).filter(|w| self.waits[*w as usize / 64].load(Relaxed) >> (w % 64) & 1 == 1)
        {
            t.free_wait(wait);
        }
        for index in 0..t.high_water.load(Relaxed).min(table::CAPACITY) {
            match self.held[index as usize].load(Relaxed) {
                0 => {}
                n => lost(index, n),
            }
        }
    }
}

fn unmap(l: *mut Ledger) {
    // SAFETY: a ledger's mapping that is not used any more.
    unsafe { sys::syscall(libc::SYS_munmap, l as usize, LEN, 0, 0, 0, 0) };
}

/// Whether a process has ended, reaped or not. Doubts count as no.
fn has_ended(pid: u32) -> bool {
    // SAFETY: integers only.
    let fd = unsafe { sys::syscall(libc::SYS_pidfd_open, pid as usize, 0, 0, 0, 0, 0) };
    if fd < 0 {
        return fd == -(libc::ESRCH as isize);
    }
    let ended = sys::poll_now(fd as i32, libc::POLLIN) & libc::POLLIN != 0;
    sys::close(fd as i32);
    ended
}
