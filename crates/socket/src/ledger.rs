//! What a process holds of its connections. That of a fork child lies in memory which its parent
//! sees too: a child that is killed gives nothing back, so its parent does, of what both have. No
//! other child sees it: with the ledger of a brother it could end connections that it never had.
#![allow(unsafe_code)]

use core::sync::atomic::{AtomicBool, AtomicPtr, AtomicU32, AtomicU64, AtomicUsize, Ordering::*};

use shm::lock::FastLock;
use smc::{sys, table};

/// A process's share, of whole pages: munmap of the others' takes the page that they end in with them.
/// All zero is a valid one.
#[repr(C, align(4096))]
pub struct Ledger {
    /// The process, with `ELSEWHERE` once it runs another program, which keeps no ledger here; 0
    /// before it has come to life; `STRANGER` if its parent knows it by another number.
    pid: AtomicU32,
    /// Connections that its parent has passed over a Unix socket, perhaps to this process: the
    /// inode, and how far that is.
    notes: [AtomicU64; NOTES],
    /// Descriptors that name a connection.
    held: [AtomicU32; table::CAPACITY as usize],
    /// Up to whole pages. By alignment it would be wrong: mmap keeps to the pages that the kernel has, and a
    /// reference to less than it asks for is undefined.
    _rest: [u8; FIELDS.next_multiple_of(table::LARGEST_PAGE) - FIELDS],
}

/// Bytes of a ledger's fields in front of `_rest`.
const FIELDS: usize = 8 + NOTES * 8 + table::CAPACITY as usize * 4;

/// The latest so many connections that were passed.
const NOTES: usize = 64;
/// In a note: the parent has no descriptor of it any more; and: this process has taken it on.
const LET_GO: u64 = 1 << 32;
const TAKEN_ON: u64 = 1 << 33;

const ELSEWHERE: u32 = 1 << 31;
const STRANGER: u32 = 1 << 30;
const LEN: usize = size_of::<Ledger>();
const _: () = assert!(LEN.is_multiple_of(table::LARGEST_PAGE));
/// Children whose ledgers there is room for at a time. One that finds none gives nothing back when
/// it is killed.
const CHILDREN: usize = 256;
/// Those that are looked at with every fork.
const AT_A_TIME: usize = 8;
const NONE: usize = usize::MAX;

static MINE: AtomicPtr<Ledger> = AtomicPtr::new(core::ptr::null_mut());
/// The ledgers of our children, made with the first.
static POOL: AtomicPtr<Ledger> = AtomicPtr::new(core::ptr::null_mut());
/// Which of the pool are in use, and that none is from `TOP` on.
static TAKEN: [AtomicBool; CHILDREN] = [const { AtomicBool::new(false) }; CHILDREN];
/// Of which the child has ended, and its word was taken for that: it may write on to the memory
/// that it has. They are used again when no others are left, in other memory.
static SETTLED: [AtomicBool; CHILDREN] = [const { AtomicBool::new(false) }; CHILDREN];
/// The fork that each child of the pool comes from.
static SINCE: [AtomicU32; CHILDREN] = [const { AtomicU32::new(0) }; CHILDREN];
static TOP: AtomicUsize = AtomicUsize::new(0);
/// Ours is looked at by our parent, when we have ended.
static SEEN: AtomicBool = AtomicBool::new(false);
/// That of the child that is being forked.
static NEXT: AtomicUsize = AtomicUsize::new(NONE);
/// That of the child that was forked last, or was not.
static LAST: AtomicUsize = AtomicUsize::new(NONE);
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
    // SAFETY: set by `init`, without which no connection is known, and by `after_fork_child`;
    // mapped while this process lives.
    unsafe { &*MINE.load(Relaxed) }
}

/// Descriptors of this process that name connection `index`.
#[inline]
pub fn held(index: u32) -> &'static AtomicU32 {
    &mine().held[index as usize]
}

/// Finds room for that of the child of this fork. Called by one thread at a time, as the other two.
pub fn before_fork(fork: u32) {
    // Without a table nothing is held, and a child that makes one is a family of its own.
    if MINE.load(Relaxed).is_null() || !table::exists() {
        return;
    }
    if POOL.load(Relaxed).is_null() {
        POOL.store(sys::reserve(LEN * CHILDREN, true).cast(), Release);
    }
    if POOL.load(Relaxed).is_null() {
        return;
    }
    let free = || TAKEN.iter().position(|taken| !taken.load(Relaxed) && !taken.swap(true, AcqRel));
    let renewed = || {
        renew();
        free()
    };
    if let Some(at) = free().or_else(renewed) {
        SINCE[at].store(fork, Relaxed);
        // SYNC: pool. Behind the pool itself; pairs with `children` and `reap`.
        TOP.fetch_max(at + 1, AcqRel);
        NEXT.store(at, Relaxed);
    }
}

/// Gives the ledgers that are settled other memory, in which they are empty.
#[cold]
fn renew() {
    let Some(_guard) = REAPING.try_lock() else { return };
    let pool = POOL.load(Relaxed);
    let mut from = 0;
    while from < CHILDREN {
        let run = SETTLED[from..].iter().take_while(|settled| settled.load(Acquire)).count();
        let all = from..from + run;
        let first = pool.wrapping_add(from).cast();
        // SAFETY: ledgers of the pool, which nobody uses here.
        if run > 0 && unsafe { shm::address::map_over(first, LEN * run, None) } {
            all.for_each(|at| {
                SETTLED[at].store(false, Relaxed);
                TAKEN[at].store(false, Release);
            });
        }
        from += run + 1;
    }
}

/// Whether there is one for the child of the fork that is under way.
#[cfg(test)]
pub fn has_place() -> bool {
    NEXT.load(Relaxed) != NONE
}

pub fn after_fork_parent() {
    LAST.store(NEXT.swap(NONE, Relaxed), Relaxed);
}

/// Behind that, if there is no child that would write to its ledger.
pub fn after_failed_fork() {
    let last = LAST.swap(NONE, Relaxed);
    if last != NONE {
        TAKEN[last].store(false, Release);
    }
}

/// That of the child of `parent`. `each` calls its argument for the connection of every descriptor.
pub fn after_fork_child(parent: u32, each: impl FnOnce(&mut dyn FnMut(u32))) {
    if !table::exists() {
        return;
    }
    // SAFETY: the only thread of the child.
    unsafe { REAPING.reset() };
    let top = TOP.swap(0, Relaxed);
    TAKEN[..top].iter().chain(&SETTLED[..top]).for_each(|mark| mark.store(false, Relaxed));
    let pool = POOL.swap(core::ptr::null_mut(), Relaxed);
    let next = NEXT.swap(NONE, Relaxed);
    let old = MINE.load(Relaxed);
    if next == NONE {
        // Without room for a new one, and unseen by the parent: in place of the parent's own.
        // SAFETY: what was the parent's ledger, in the only thread of this process.
        unsafe { sys::renew(old.cast(), LEN) };
    } else {
        MINE.store(pool.wrapping_add(next), Relaxed);
        // SAFETY: the parent's ledger, which nobody uses here.
        unsafe { sys::give_back(old.cast(), LEN) };
    }
    if !pool.is_null() {
        // Those of the others; without one of our own, all.
        let own = if next == NONE { 0..0 } else { next..next + 1 };
        for others in [0..own.start, own.end..CHILDREN] {
            if !others.is_empty() {
                // SAFETY: within the pool, and nobody uses them here.
                unsafe {
                    sys::give_back(pool.wrapping_add(others.start).cast(), LEN * others.len())
                };
            }
        }
    }
    each(&mut |index| {
        held(index).fetch_add(1, Relaxed);
    });
    // In a PID namespace of its own it has no parent, and a number that means another process
    // there.
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

/// The ledgers of children that may live.
fn children() -> impl Iterator<Item = &'static Ledger> {
    // SYNC: pool. In this order: whoever finds a number of ledgers finds where they are, in the middle
    // of the first fork as well.
    let top = TOP.load(Acquire);
    let pool = POOL.load(Relaxed);
    // SAFETY: below TOP, in a pool that stays mapped.
    (0..top).filter(|&at| is_in_use(at)).map(move |at| unsafe { &*pool.wrapping_add(at) })
}

fn is_in_use(at: usize) -> bool {
    TAKEN[at].load(Acquire) && !SETTLED[at].load(Acquire)
}

/// The socket of this inode is about to be passed to another process, perhaps to a child of ours.
/// The number of the note, from 1 on.
pub fn passes(inode: u32) -> u32 {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    let at = NEXT.fetch_add(1, Relaxed) % NOTES as u32;
    children().for_each(|l| l.notes[at as usize].store(inode.into(), Release));
    at + 1
}

/// The socket that note `number` is of was not passed after all. A child that gets it by another try would
/// take this note for it, of which it never hears that we have let go.
pub fn takes_back(number: u32, inode: u32) {
    let Some(at) = (number as usize).checked_sub(1) else { return };
    for note in children().map(|l| &l.notes[at]) {
        // A child that has taken it on already keeps it.
        let _ = note.compare_exchange(inode.into(), 0, Relaxed, Relaxed);
    }
}

/// This process has no descriptor any more of the socket that note `number` is of.
pub fn lets_go(number: u32, inode: u32) {
    let Some(at) = (number as usize).checked_sub(1) else { return };
    for note in children().map(|l| &l.notes[at]).filter(|note| note.load(Relaxed) as u32 == inode) {
        note.fetch_or(LET_GO, Release);
    }
}

/// The number of the note by which our parent has passed the socket of this inode to us, or to
/// another child.
pub fn takes_on(inode: u32) -> Option<u32> {
    let is_new = |note: u64| (note & !LET_GO == u64::from(inode)).then_some(note | TAKEN_ON);
    let at =
        mine().notes.iter().position(|note| note.fetch_update(AcqRel, Acquire, is_new).is_ok())?;
    Some(at as u32 + 1)
}

/// Whether our parent has let go of what this process has taken on by a note.
pub fn is_let_go(number: u32, inode: u32) -> bool {
    let Some(at) = (number as usize).checked_sub(1) else { return false };
    mine().notes[at].load(Acquire) == u64::from(inode) | LET_GO | TAKEN_ON
}

/// Gives back what children held that were killed: `lost` is called for each connection with the
/// number of descriptors, and the fork that the child comes from. Looks at some children, or at
/// `all`.
pub fn reap(all: bool, mut lost: impl FnMut(u32, u32, u32)) {
    // Whoever is at it already, on another thread or below this signal handler, does it for us.
    let Some(_guard) = REAPING.try_lock() else { return };
    // SYNC: pool. In this order.
    let (top, pool) = (TOP.load(Acquire), POOL.load(Acquire));
    let from = if all { 0 } else { LOOKED_AT.fetch_add(AT_A_TIME, Relaxed) };
    for at in (0..top.min(if all { top } else { AT_A_TIME })).map(|i| from.wrapping_add(i) % top) {
        // SAFETY: below TOP, in a pool that stays mapped.
        let l = unsafe { &*pool.wrapping_add(at) };
        if is_in_use(at) && l.is_over() {
            let since = SINCE[at].load(Relaxed);
            l.settle(|index, n| lost(index, n, since));
            SETTLED[at].store(true, Release);
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
    fn settle(&self, mut lost: impl FnMut(u32, u32)) {
        let given_up = self.pid.swap(0, Relaxed) & ELSEWHERE == 0;
        let Some(t) = table::get() else { return };
        for index in 0..t.used() {
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tests::serial;

    /// Of a process that is not there.
    const NOBODY: u32 = 0x3fff_fff0;

    #[test]
    fn a_ledger_of_the_ended_is_used_again_in_other_memory() {
        let _turn = serial();
        table::get().expect("a table");
        for fork in 0..3 * CHILDREN as u32 {
            before_fork(fork);
            let at = NEXT.load(Relaxed);
            assert_ne!(at, NONE, "fork {fork}");
            // SAFETY: a ledger of the pool.
            let l = unsafe { &*POOL.load(Relaxed).wrapping_add(at) };
            // A place that nobody uses, so that nobody looks there.
            assert_eq!(
                l.held[table::CAPACITY as usize - 1].fetch_add(1, Relaxed),
                0,
                "fork {fork}"
            );
            l.pid.store(NOBODY, Relaxed);
            after_fork_parent();
            reap(true, |_, _, _| ());
        }
    }

    #[test]
    fn what_is_passed_is_noted_for_children_and_taken_on_once() {
        let _turn = serial();
        table::get().expect("a table");
        before_fork(0);
        let number = passes(77);
        // SAFETY: a ledger of the pool.
        let note = unsafe {
            &(*POOL.load(Relaxed).wrapping_add(NEXT.load(Relaxed))).notes[number as usize - 1]
        };
        assert_eq!(note.load(Relaxed), 77);
        lets_go(number, 78);
        assert_eq!(note.load(Relaxed), 77, "of another socket");
        lets_go(number, 77);
        // As the child has it.
        mine().notes[number as usize - 1].store(note.load(Relaxed), Relaxed);
        assert!(!is_let_go(number, 77), "nobody has taken it on");
        assert_eq!((takes_on(77), takes_on(77)), (Some(number), None));
        assert!(is_let_go(number, 77));
        // One that was not sent leaves nothing.
        let number = passes(78);
        takes_back(number, 79);
        let at = number as usize - 1;
        // SAFETY: as above.
        let note = unsafe { &(*POOL.load(Relaxed).wrapping_add(NEXT.load(Relaxed))).notes[at] };
        assert_eq!(note.load(Relaxed), 78, "of another socket");
        takes_back(number, 78);
        assert_eq!(note.load(Relaxed), 0);
        mine().notes[number as usize - 1].store(0, Relaxed);
        after_fork_parent();
    }
}
