//! Which descriptors are ours to watch: one word per descriptor number, and per connection what this process holds.
//!
//! A hook on a plain file costs one load and one branch.
#![allow(unsafe_code)]

use core::sync::atomic::{AtomicBool, AtomicI32, AtomicPtr, AtomicU32, AtomicU64, Ordering::*};

use smc::conn::Conn;
use smc::{group, reason, sys, table};

use crate::ledger::{self, held};

pub mod travel;

/// What a descriptor number stands for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Kind {
    /// Not ours.
    Other,
    /// A TCP socket without a connection object.
    Tcp,
    /// A connection, by table index.
    Conn(u32),
    /// An epoll set, by set index.
    Epoll(u32),
}

const TAG_TCP: u64 = 1 << 56;
const TAG_CONN: u64 = 2 << 56;
const TAG_EPOLL: u64 = 3 << 56;
const TAG_MASK: u64 = 0xff << 56;

static WORDS: AtomicPtr<AtomicU64> = AtomicPtr::new(core::ptr::null_mut());
static LIMIT: AtomicU32 = AtomicU32::new(0);
/// One above the highest descriptor ever marked.
static HIGH: AtomicU32 = AtomicU32::new(0);
/// The process that owns this memory; a vfork child shares it and must not change it.
static PID: AtomicU32 = AtomicU32::new(0);
/// A word that the kernel wipes in every child with memory of its own, however it was made; else 1. The handlers of
/// pthread_atfork do not run for all of them.
static HOME: AtomicPtr<AtomicU32> = AtomicPtr::new(core::ptr::null_mut());
/// Where vfork and clone are not among our entry points, such a child would go unseen.
const UNSEEN_SHARING: bool = !cfg!(target_arch = "x86_64");
/// A child that shares this memory was made, or may have been: from then on only the kernel knows who is who.
pub static SHARED: AtomicBool = AtomicBool::new(UNSEEN_SHARING);
/// Connections of this process with a direction on a ring, or about to.
static UPGRADED: AtomicU32 = AtomicU32::new(0);
/// Whether an SO_RCVLOWAT above 1 was ever set: the kernel's is lowered before the connection leaves TCP.
pub static MARKED: AtomicBool = AtomicBool::new(false);

/// Whether any descriptor's readiness may not be the kernel's.
pub fn readiness_differs() -> bool {
    UPGRADED.load(Relaxed) > 0 || MARKED.load(Relaxed)
}

/// What this process (not its family) keeps for a connection, beside the number of its descriptors (`ledger.rs`).
#[repr(C)]
#[derive(Default)]
pub struct Local {
    /// First epoll registration, index + 1.
    pub regs: AtomicU32,
    /// A descriptor that names it.
    pub fd: AtomicU32,
    /// Counted in `UPGRADED`.
    pub upgraded: AtomicU32,
    /// How often it was removed from an epoll set while it was on a ring.
    pub removals: AtomicU32,
    /// Our own descriptor of it, while calls of other threads go on that began before its close (0: none).
    kept: AtomicI32,
    /// The fork, by its number, for which the child's descriptors were counted last, and how many those were.
    counted_for: AtomicU32,
    counted: AtomicU32,
}
/// Forks so far.
static FORKS: AtomicU32 = AtomicU32::new(0);
/// Sockets seen, of which each so many-th makes us look for killed children.
static CREATED: AtomicU32 = AtomicU32::new(1);
const REAP_EVERY: u32 = 64;
/// Places at which is looked then for connections that left and did not arrive: more than sockets that came since.
const RECALLED: u32 = 4 * REAP_EVERY;
static LOCALS: AtomicPtr<Local> = AtomicPtr::new(core::ptr::null_mut());

/// Reserves the arrays. Without them every descriptor is `Other` and everything stays TCP.
pub fn init() {
    let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: `limit` is a live rlimit.
    unsafe { sys::syscall(libc::SYS_prlimit64, 0, libc::RLIMIT_NOFILE as usize, 0, &raw mut limit as usize, 0, 0) };
    let n = limit.rlim_max.clamp(1024, 1 << 20) as usize;
    let locals = sys::reserve(table::CAPACITY as usize * size_of::<Local>(), false);
    let words = sys::reserve(n * 8, false);
    if locals.is_null() || words.is_null() || !ledger::init() {
        return;
    }
    LOCALS.store(locals.cast(), Release);
    WORDS.store(words.cast(), Release);
    LIMIT.store(n as u32, Release);
    settle_down();
}

/// This process owns this memory.
fn settle_down() {
    PID.store(sys::getpid(), Relaxed);
    if HOME.load(Relaxed).is_null() {
        const PAGE: usize = 4096;
        let page = sys::reserve(PAGE, false);
        // SAFETY: a page of our own.
        let wiped = |p| unsafe {
            sys::syscall(libc::SYS_madvise, p as usize, PAGE, libc::MADV_WIPEONFORK as usize, 0, 0, 0) == 0
        };
        if page.is_null() || !wiped(page) {
            return;
        }
        HOME.store(page.cast(), Relaxed);
    }
    // SAFETY: mapped above, for good.
    unsafe { &*HOME.load(Relaxed) }.store(1, Relaxed);
}

#[inline]
fn word(fd: i32) -> Option<&'static AtomicU64> {
    // A negative number becomes a large one and fails the same test.
    if fd as u32 >= LIMIT.load(Relaxed) {
        return None;
    }
    // SAFETY: below LIMIT, which is set after WORDS; never unmapped.
    Some(unsafe { &*WORDS.load(Relaxed).add(fd as usize) })
}

/// What `fd` stands for.
#[inline]
pub fn kind(fd: i32) -> Kind {
    match word(fd) {
        None => Kind::Other,
        Some(w) => {
            let v = w.load(Acquire);
            if v == 0 { Kind::Other } else { decode(v) }
        }
    }
}

fn decode(v: u64) -> Kind {
    match v & TAG_MASK {
        TAG_TCP => Kind::Tcp,
        TAG_CONN => Kind::Conn(v as u32),
        TAG_EPOLL => Kind::Epoll(v as u32),
        _ => Kind::Other,
    }
}

/// This process has left for good: nothing is marked any more, so that no hook makes a system call of its own.
static LEFT: AtomicBool = AtomicBool::new(false);

/// Whether `leave_for_good` was called here, or in a parent.
#[inline]
pub fn has_left() -> bool {
    LEFT.load(Relaxed)
}

/// Before a sandbox that kills for system calls which the program itself does not make, or a descriptor table of a single
/// thread, of which marks for the whole process would be wrong: all connections go back to TCP and are forgotten.
#[cold]
pub fn leave_for_good(why: u32) {
    if home() == Some(0) {
        leave_unseen();
        return;
    }
    if !owner() || LEFT.swap(true, Relaxed) {
        return;
    }
    smc::config::CONFIG.disable();
    each(|fd, k| {
        if let Kind::Conn(i) = k {
            give_up(i, conn(i), fd, why);
        }
    });
    each(|fd, k| {
        let Kind::Conn(i) = k else {
            if k == Kind::Tcp
                && let Some(w) = word(fd)
            {
                w.store(0, Release);
            }
            return;
        };
        // What the peer has yet to give back, and an event that only we can put a name to, are still served.
        let waiting = conn(i).switched() || local(i).regs.load(Relaxed) != 0;
        if !waiting && let Some(w) = word(fd) {
            w.store(0, Release);
            drop_ref(i, -1);
        }
    });
}

/// The same in a child with memory of its own that was made past libc's fork: its parent answers for the connections, and the
/// child, which has a filter of its own to fear, must not make a table or look for one.
#[cold]
fn leave_unseen() {
    if LEFT.swap(true, Relaxed) {
        return;
    }
    smc::config::CONFIG.disable();
    each(|fd, _| {
        if let Some(w) = word(fd) {
            w.store(0, Release);
        }
    });
}

/// Marks `fd`, whose number the kernel has just given out: a word left from a close that we did not see goes.
pub fn mark(fd: i32, kind: Kind) {
    let Some(w) = word(fd) else { return };
    forget_stale(fd, w);
    if has_left() {
        return;
    }
    w.store(
        match kind {
            Kind::Other => 0,
            Kind::Tcp => TAG_TCP,
            Kind::Conn(i) => TAG_CONN | u64::from(i),
            Kind::Epoll(i) => TAG_EPOLL | u64::from(i),
        },
        Release,
    );
    HIGH.fetch_max(fd as u32 + 1, Relaxed);
    if (0..=2).contains(&fd) && matches!(kind, Kind::Tcp | Kind::Conn(_)) {
        leave_to_stdio(fd);
    }
}

/// A number that stdin, stdout or stderr reads and writes, past every hook.
#[cold]
fn leave_to_stdio(fd: i32) {
    if let Some((index, c)) = conn_of(fd) {
        give_up(index, c, fd, reason::STDIO.code());
    }
}

fn forget_stale(fd: i32, w: &AtomicU64) {
    let old = w.swap(0, AcqRel);
    match decode(old) {
        Kind::Conn(i) => drop_ref(i, -1),
        Kind::Epoll(i) => crate::epoll::forget(i, fd),
        _ => {}
    }
}

/// A number came back from a creator of non-sockets: nothing of ours can live there any more.
#[inline]
pub fn purge(fd: i32) -> i32 {
    if let Some(w) = word(fd)
        && w.load(Relaxed) != 0
        && owner()
    {
        forget_stale(fd, w);
    }
    fd
}

/// One above the highest descriptor ever marked.
pub fn high() -> i32 {
    HIGH.load(Relaxed) as i32
}

/// What the kernel says of this memory, where it can be asked: that it is its owner's or shared with it (1), or a child's (0).
fn home() -> Option<u32> {
    let home = HOME.load(Relaxed);
    // SAFETY: a page that stays mapped.
    (!home.is_null()).then(|| unsafe { &*home }.load(Relaxed))
}

/// Whether this is the process whose memory this is, and not its vfork child.
pub fn owner() -> bool {
    if home() == Some(1) && !SHARED.load(Relaxed) {
        return true;
    }
    sys::getpid() == PID.load(Relaxed)
}

/// This process's share of connection `index`.
#[inline]
pub fn local(index: u32) -> &'static Local {
    // SAFETY: index is below CAPACITY and LOCALS is set before any index exists.
    unsafe { &*LOCALS.load(Relaxed).add(index as usize) }
}

/// The connection at `index`.
#[inline]
pub fn conn(index: u32) -> &'static Conn {
    // SAFETY: an index exists only after the table does.
    unsafe { table::get().unwrap_unchecked() }.conn(index)
}

/// The connection that `fd` names, made at the first call for a TCP socket.
#[inline]
pub fn conn_of(fd: i32) -> Option<(u32, &'static Conn)> {
    match kind(fd) {
        Kind::Conn(i) => Some((i, conn(i))),
        Kind::Tcp => create(fd),
        _ => None,
    }
}

/// The connection that `fd` names, if it has one already.
#[inline]
pub fn existing(fd: i32) -> Option<(u32, &'static Conn)> {
    match kind(fd) {
        Kind::Conn(i) => Some((i, conn(i))),
        _ => None,
    }
}

#[cold]
fn create(fd: i32) -> Option<(u32, &'static Conn)> {
    let table = table::get()?;
    if CREATED.fetch_add(1, Relaxed).is_multiple_of(REAP_EVERY) {
        ledger::reap(true, lost);
        travel::recall(table, RECALLED);
    }
    let index = table.alloc().or_else(|| {
        ledger::reap(true, lost);
        travel::recall(table, table::CAPACITY);
        table.alloc()
    })?;
    let c = table.conn(index);
    c.reset();
    smc::witness::begin(c);
    c.next_try.store(smc::config::CONFIG.after.load(Relaxed), Relaxed);
    c.pid.store(PID.load(Relaxed), Relaxed);
    let l = local(index);
    held(index).store(1, Relaxed);
    l.regs.store(0, Relaxed);
    l.fd.store(fd as u32, Relaxed);
    l.upgraded.store(0, Relaxed);
    l.removals.store(0, Relaxed);
    l.kept.store(0, Relaxed);
    match word(fd)?.compare_exchange(TAG_TCP, TAG_CONN | u64::from(index), AcqRel, Acquire) {
        Ok(_) => Some((index, c)),
        Err(_) => {
            held(index).store(0, Relaxed);
            c.gen_.fetch_add(1, Release);
            table.free(index);
            existing(fd)
        }
    }
}

/// `new` names what `old` names.
pub fn share(old: i32, new: i32) {
    let k = kind(old);
    match k {
        Kind::Conn(i) => {
            conn(i).refs.fetch_add(1, AcqRel);
            held(i).fetch_add(1, AcqRel);
        }
        // A second descriptor for a socket without an object yet: both must come to name the same one.
        Kind::Tcp => {
            if create(old).is_some() {
                return share(old, new);
            }
        }
        Kind::Epoll(i) => crate::epoll::share(i),
        Kind::Other => {}
    }
    match word(new) {
        Some(_) => mark(new, k),
        // Beyond our array nothing is watched: what is unwatched must not be upgraded.
        None => {
            if let Kind::Conn(i) = k {
                freeze(i, conn(i), old, reason::FD_LIMIT.code());
            }
        }
    }
}

/// As `share`, where the kernel has already closed what `new` named before.
pub fn share_over(old: i32, new: i32) {
    if kind(old) == Kind::Other {
        purge(new);
    } else {
        share(old, new);
    }
}

/// Whether other processes hold descriptors of this connection.
pub fn is_shared(index: u32) -> bool {
    conn(index).refs.load(Acquire) != held(index).load(Acquire)
}

/// What must precede the close of `fd` in this process; the kernel's close follows.
pub fn before_close(fd: i32) {
    let Some(w) = word(fd) else { return };
    if w.load(Relaxed) == 0 || !owner() {
        return;
    }
    if let Kind::Conn(i) = decode(w.load(Acquire))
        && conn(i).refs.load(Relaxed) > 1
    {
        crate::epoll::before_close(i, fd);
    }
    match decode(w.swap(0, AcqRel)) {
        Kind::Conn(i) => drop_ref(i, fd),
        Kind::Epoll(i) => crate::epoll::forget(i, fd),
        _ => {}
    }
}

/// One descriptor less; with the last one of all processes the connection ends. `fd` is still open, or -1.
fn drop_ref(index: u32, fd: i32) {
    let c = conn(index);
    let l = local(index);
    if fd >= 0 && held(index).load(Acquire) == 1 && c.refs.load(Acquire) == 1 && keep(c, l, fd) {
        return;
    }
    if held(index).load(Acquire) == 1 && c.refs.load(Acquire) > 1 && c.is_exposed() {
        // A child that was killed holds nothing any more, and this may be the last descriptor: without a word to the peer its
        // close would pass for a death.
        ledger::reap(true, lost);
    }
    // In this order: who is killed in between leaves one too many.
    let here = held(index).fetch_sub(1, AcqRel) - 1;
    let all = c.refs.fetch_sub(1, AcqRel) - 1;
    if here == 0 {
        if l.upgraded.swap(0, AcqRel) != 0 {
            UPGRADED.fetch_sub(1, Relaxed);
        }
        crate::epoll::forget_conn(index);
    } else if l.fd.load(Relaxed) == fd as u32 {
        let other = (0..high()).find(|&f| kind(f) == Kind::Conn(index));
        l.fd.store(other.unwrap_or(-1) as u32, Relaxed);
    }
    if here > 0 && !c.switched() && crate::epoll::registered_as(index, fd) {
        // The kernel's registration lives on with the other descriptors, but can't be changed any more.
        freeze(index, c, fd, reason::UNSEEN.code());
    }
    if all == 0 {
        crate::calls::io::deferred::forget(index);
        if is_for_parent(c) {
            if fd >= 0 {
                c.close(fd);
            }
            // As if this process had been killed while it held it.
            c.refs.fetch_add(1, AcqRel);
            held(index).fetch_add(1, AcqRel);
            return;
        }
        smc::meet::abandon(c, fd);
        if fd >= 0 {
            c.close(fd);
        }
        group::release(c);
        finish(c);
        c.gen_.fetch_add(1, Release);
        if let Some(t) = table::get() {
            t.free(index);
        }
    }
}

/// Whether our parent, whose link group it belongs to, can and must end a connection that we held last: its buffers would be in
/// use there for good, and the image of the peer's header, with what stands in it, would serve the next connection.
fn is_for_parent(c: &Conn) -> bool {
    let upgraded = c.my_token.load(Relaxed) != 0;
    upgraded && c.pid.load(Relaxed) != PID.load(Relaxed) && ledger::is_settled_by(c.pid.load(Relaxed))
}

/// Keeps a connection open under a descriptor of our own, if calls of other threads are inside: close does not end them, and
/// takes effect behind the last. False when there are none.
fn keep(c: &Conn, l: &Local, fd: i32) -> bool {
    // In an epoll set it would go on being reported.
    if !c.is_exposed() || l.regs.load(Relaxed) != 0 || !is_in_use(c, l, fd) || !smc::hidden::room() {
        return false;
    }
    let own = sys::fcntl(fd, libc::F_DUPFD_CLOEXEC, 0);
    if own < 0 {
        return false;
    }
    l.kept.store(smc::hidden::park(own as i32), SeqCst);
    // SYNC: kept. Pairs with `left`: whoever has left since does not know of it.
    if !is_in_use(c, l, fd) {
        left(c);
    }
    true
}

/// Other threads of this process that are inside a call.
fn inside(c: &Conn) -> impl Iterator<Item = u32> {
    c.sleepers.inside().chain(c.inside_kernel())
}

/// Whether another thread of this process is inside a call that waits.
fn is_in_use(c: &Conn, l: &Local, fd: i32) -> bool {
    inside(c).any(|thread| waits(c, thread, [fd, l.fd.load(Relaxed) as i32]))
}

/// The descriptor under which a connection lives on that was closed under a call.
#[inline]
pub fn kept(c: &Conn) -> Option<i32> {
    match local(table::index_of(c) as u32).kept.load(SeqCst) {
        0 => None,
        fd => Some(fd),
    }
}

/// A call has ended that had to wait. The last one ends a connection that was closed meanwhile.
pub fn left(c: &Conn) {
    let index = table::index_of(c) as u32;
    let l = local(index);
    let own = l.kept.load(SeqCst);
    if own == 0 || is_in_use(c, l, own) {
        return;
    }
    let own = l.kept.swap(0, SeqCst);
    if own != 0 {
        let e = crate::errno();
        drop_ref(index, own);
        smc::hidden::close(own);
        crate::set_errno(e);
    }
}

/// How often, a millisecond apart, a thread is looked at that is inside a call and runs: on a busy machine it may not get to its
/// sleep for that long, and taken for gone it would find its connection closed.
const LOOKS: u32 = 200;

/// Whether a thread of ours that was inside a call on one of `fds` still is: it may have left by a jump and do something else.
fn waits(c: &Conn, thread: u32, fds: [i32; 2]) -> bool {
    const WITH_LISTS: [libc::c_long; 2] = [libc::SYS_ppoll, SYS_POLL];
    const WITH_NUMBERS: [libc::c_long; 13] = [
        libc::SYS_read,
        libc::SYS_readv,
        libc::SYS_preadv2,
        libc::SYS_recvfrom,
        libc::SYS_recvmsg,
        libc::SYS_recvmmsg,
        libc::SYS_write,
        libc::SYS_writev,
        libc::SYS_pwritev2,
        libc::SYS_sendto,
        libc::SYS_sendmsg,
        libc::SYS_sendmmsg,
        libc::SYS_sendfile,
    ];
    for _ in 0..LOOKS {
        if !inside(c).any(|other| other == thread) {
            return false;
        }
        let Ok(doing) = std::fs::read_to_string(format!("/proc/self/task/{thread}/syscall")) else { return false };
        if !doing.starts_with("running") {
            let mut words = doing.split(' ');
            let Some(call) = words.next().and_then(|number| number.parse().ok()) else { return false };
            let first = words.next().and_then(|arg| i64::from_str_radix(arg.trim_start_matches("0x"), 16).ok());
            let named = first.is_some_and(|fd| fds.contains(&(fd as i32)));
            return WITH_LISTS.contains(&call) || WITH_NUMBERS.contains(&call) && named;
        }
        sys::nap();
    }
    false
}

#[cfg(target_arch = "x86_64")]
const SYS_POLL: libc::c_long = libc::SYS_poll;
#[cfg(not(target_arch = "x86_64"))]
const SYS_POLL: libc::c_long = libc::SYS_ppoll;

/// A child that held `n` descriptors of a connection was killed.
fn lost(index: u32, n: u32) {
    let less = conn(index).refs.fetch_update(AcqRel, Acquire, |refs| refs.checked_sub(n));
    if less == Ok(n) {
        // The last holder. The kernel has closed the socket, and what only the child had mapped is gone with it.
        end_unheld(index);
    }
}

/// Ends a connection to which nobody in the family has a descriptor.
fn end_unheld(index: u32) {
    let c = conn(index);
    if c.pid.load(Relaxed) == PID.load(Relaxed) {
        smc::meet::abandon(c, -1);
        group::release(c);
    } else {
        c.meeting.store(0, Relaxed);
    }
    finish(c);
    c.gen_.fetch_add(1, Release);
    if let Some(t) = table::get() {
        t.free(index);
    }
}

/// Adds a finished connection's counts to the table's sums.
fn finish(c: &Conn) {
    let Some(t) = table::get() else { return };
    if !c.is_committed() {
        if c.ops.load(Relaxed) > 0 {
            t.stats.count_fallback(c.reason.load(Relaxed));
        }
        return;
    }
    t.stats.wakeups.add(&c.wakeups);
    t.stats.rx.add(&c.rx.counts);
    t.stats.tx.add(&c.tx.counts);
}

/// Keeps a connection on TCP for good, bringing it back there if need be. Our hooks go on serving it.
#[cold]
pub fn freeze(index: u32, c: &Conn, fd: i32, why: u32) {
    smc::meet::identify(c, fd);
    smc::meet::abandon(c, fd);
    c.revert(fd, why, false);
    crate::epoll::on_reverted(index);
}

/// The same for a descriptor that will be used past our hooks: the kernel's stream must be whole.
#[cold]
pub fn give_up(index: u32, c: &Conn, fd: i32, why: u32) {
    smc::meet::identify(c, fd);
    smc::meet::abandon(c, fd);
    c.revert(fd, why, true);
    crate::epoll::on_reverted(index);
}

/// The same for a connection whose readiness the kernel alone can tell. Bytes that cannot be brought back are still read by
/// our hooks.
#[cold]
pub fn leave_ring(index: u32, c: &Conn, fd: i32, why: u32) {
    smc::meet::identify(c, fd);
    smc::meet::abandon(c, fd);
    c.go_back(fd, why, true);
    crate::epoll::on_reverted(index);
}

/// Notes that a connection's readiness is no longer the kernel's alone.
pub fn on_upgraded(index: u32, fd: i32) {
    let l = local(index);
    l.fd.store(fd as u32, Relaxed);
    if l.upgraded.swap(1, AcqRel) == 0 {
        UPGRADED.fetch_add(1, Relaxed);
    }
    crate::epoll::on_switched(index);
}

/// The application is about to put something of its own on a number that we hid a descriptor at.
pub fn make_way(fd: i32) {
    each(|own, k| {
        if let Kind::Conn(i) = k
            && conn(i).meeting.load(Relaxed) == fd
        {
            smc::meet::abandon(conn(i), own);
        }
    });
    smc::give_way(fd);
}

/// Every marked descriptor of this process.
pub fn each(mut f: impl FnMut(i32, Kind)) {
    for fd in 0..high() {
        match kind(fd) {
            Kind::Other => {}
            k => f(fd, k),
        }
    }
}

/// Before fork: both processes will hold every connection.
pub fn before_fork() {
    ledger::reap(false, lost);
    go_back_from_links();
    let fork = FORKS.fetch_add(1, Relaxed) + 1;
    each(|fd, k| {
        let index = match k {
            Kind::Conn(i) => Some(i),
            // A socket without an object yet may come to be used on both sides: give it one now.
            Kind::Tcp => create(fd).map(|(i, _)| i),
            _ => None,
        };
        if let Some(i) = index {
            conn(i).refs.fetch_add(1, AcqRel);
            let l = local(i);
            if l.counted_for.swap(fork, Relaxed) != fork {
                l.counted.store(0, Relaxed);
            }
            l.counted.fetch_add(1, Relaxed);
            conn(i).await_step();
        }
    });
}

/// In the child. Other threads may have opened and closed sockets between the count in `before_fork` and the fork itself. What
/// was not counted is its parent's alone, and the child's exit would end it under the parent: it leaves that on TCP, unseen.
fn settle_count() {
    if !table::exists() {
        return;
    }
    let Some(t) = table::get() else { return };
    let fork = FORKS.load(Relaxed);
    each(|fd, k| {
        let counted = match k {
            Kind::Conn(i) if local(i).counted_for.load(Relaxed) == fork => Some(local(i)),
            Kind::Conn(_) | Kind::Tcp => None,
            _ => return,
        };
        match (counted, word(fd)) {
            (Some(l), _) => drop(l.counted.fetch_sub(1, Relaxed)),
            (None, Some(w)) => w.store(0, Relaxed),
            _ => {}
        }
    });
    for i in
        (0..t.high_water.load(Relaxed).min(table::CAPACITY)).filter(|&i| local(i).counted_for.load(Relaxed) == fork)
    {
        match local(i).counted.load(Relaxed).cast_signed() {
            0 => {}
            closed @ 1.. => lost(i, closed as u32),
            opened => drop(conn(i).refs.fetch_add(opened.unsigned_abs(), AcqRel)),
        }
    }
}

/// Before a child in our memory is made. It gives back in our stead what it inherits, but has credentials of its own, from
/// which the kernel takes no requests for our RDMA device.
pub fn before_vfork() {
    if owner() && smc::kind::VERBS.provider() == Some(smc::device::Provider::Hardware) {
        go_back_from_links();
    }
}

fn go_back_from_links() {
    each(|fd, k| {
        if let Kind::Conn(i) = k
            && conn(i).cannot_be_forked()
        {
            while_held(i, fd, |c, fd| {
                // A step of another thread would go on from where the return has left the upgrade: with a buffer that the peer
                // attaches, in a connection that looks at none.
                let alone = hold_upgrade(c);
                if c.cannot_be_forked() {
                    give_up(i, c, fd, reason::SHARED_FD.code());
                }
                if alone {
                    c.release_upgrade();
                }
            });
        }
    });
}

/// Keeps the upgrade from going on, once a step that another thread is in the middle of has ended. False where the step is our
/// own, below a signal handler, or does not end.
fn hold_upgrade(c: &Conn) -> bool {
    c.await_step();
    c.hold_upgrade()
}

/// Runs `f` on a connection that other threads use, with a descriptor of ours. They may close it meanwhile: its slot, and its
/// number, would be another connection's, to which `f` would do what it was to do to this one.
fn while_held(index: u32, fd: i32, f: impl FnOnce(&Conn, i32)) {
    let c = conn(index);
    if c.refs.fetch_update(AcqRel, Acquire, |refs| (refs > 0).then_some(refs + 1)).is_err() {
        return;
    }
    held(index).fetch_add(1, AcqRel);
    smc::meet::identify(c, fd);
    let copy = sys::fcntl(fd, libc::F_DUPFD_CLOEXEC, 0) as i32;
    let own = if copy >= 0 { smc::hidden::park(copy) } else { -1 };
    // The number may have changed hands before it was copied.
    let same = own >= 0 && sys::socket_inode(own) == Some(c.inode.load(Relaxed));
    if kind(fd) == Kind::Conn(index) {
        f(c, if same { own } else { fd });
    }
    drop_ref(index, if same { own } else { -1 });
    if own >= 0 {
        smc::hidden::close(own);
    }
}

/// Before this process loses rights, or gets out of reach of a peer that has none: what is copied by them would be reset.
#[cold]
pub fn go_back_from_copies() {
    if !owner() || has_left() {
        return;
    }
    each(|fd, k| {
        if let Kind::Conn(i) = k
            && conn(i).goes_by_rights()
        {
            give_up(i, conn(i), fd, reason::RIGHTS.code());
        }
    });
}

/// In the fork child.
pub fn after_fork_child() {
    let parent = PID.load(Relaxed);
    settle_down();
    SHARED.store(UNSEEN_SHARING, Relaxed);
    if !WORDS.load(Relaxed).is_null() {
        settle_count();
        ledger::after_fork_child(parent, |count| {
            each(|_, k| {
                if let Kind::Conn(i) = k {
                    count(i);
                }
            });
        });
    }
}

/// The process is about to become another program. Descriptors with FD_CLOEXEC end here. The others go back to TCP if
/// they had left it, and with the table's descriptor kept open too, the new program takes them on (`inherit`): it may
/// be upgraded in turn, as in a server that accepts, forks and execs.
pub fn before_exec() {
    revert_for_exec();
    if !owner() {
        return;
    }
    ledger::before_exec();
    let mut kept = false;
    each(|fd, k| {
        let Kind::Conn(i) = k else { return };
        if cloexec(fd) {
            conn(i).refs.fetch_sub(1, AcqRel);
        } else if !conn(i).is_exposed() {
            smc::meet::identify(conn(i), fd);
            conn(i).heir.store(PID.load(Relaxed), Relaxed);
            kept = true;
        }
    });
    // Not for a process that has changed its user: the table is its family's.
    let same_user = table::get().is_some_and(|t| t.uid.load(Relaxed) == rustix::process::geteuid().as_raw());
    if kept
        && same_user
        && let Some(fd) = table::hidden_fd()
    {
        sys::fcntl(fd, libc::F_SETFD, 0);
    }
}

/// exec failed.
pub fn undo_exec() {
    if !owner() {
        return;
    }
    ledger::undo_exec();
    each(|fd, k| {
        let Kind::Conn(i) = k else { return };
        if cloexec(fd) {
            conn(i).refs.fetch_add(1, AcqRel);
        }
    });
    if let Some(fd) = table::hidden_fd() {
        sys::fcntl(fd, libc::F_SETFD, libc::FD_CLOEXEC as usize);
    }
}

fn cloexec(fd: i32) -> bool {
    sys::fcntl(fd, libc::F_GETFD, 0) & libc::FD_CLOEXEC as isize != 0
}

/// In a new program: takes on the connections that it had before its exec, if any.
pub fn inherit() {
    let Some(fd) = smc::hidden::find_table() else { return };
    let Some(t) = table::adopt(fd) else { return };
    let me = PID.load(Relaxed);
    for fd in 0..sys::descriptor_table_size() {
        let Some(inode) = sys::socket_inode(fd) else { continue };
        if let Some(i) = t.by_inode(inode)
            && t.conn(i).heir.load(Relaxed) == me
        {
            let first = held(i).fetch_add(1, AcqRel) == 0;
            if first {
                local(i).fd.store(fd as u32, Relaxed);
            }
            mark(fd, Kind::Conn(i));
        }
    }
}

/// The process ends without closing. In a fork child, whose family goes on, what it held must be given up in the table.
pub fn before_exit() {
    if !table::exists() || !owner() || table::get().is_none_or(|t| t.creator.load(Relaxed) == PID.load(Relaxed)) {
        return;
    }
    for fd in 0..high() {
        if let Kind::Conn(_) = kind(fd) {
            before_close(fd);
        }
    }
}

/// Before this process becomes another program, or a vfork child of it does.
fn revert_for_exec() {
    let own = owner();
    revert_inherited(|index, fd| {
        if own && !is_shared(index) {
            // Nobody else would read on.
            return false;
        }
        sys::fcntl(fd, libc::F_SETFD, libc::FD_CLOEXEC as usize);
        true
    });
}

/// Descriptors kept from a program that is spawned.
pub struct Kept(Vec<i32>);

/// Before a child that another libc function makes inherits what has no FD_CLOEXEC, and we don't see its exec.
pub fn revert_for_spawn() -> Kept {
    let mut kept = Kept(Vec::new());
    if owner() {
        revert_inherited(|_, fd| {
            sys::fcntl(fd, libc::F_SETFD, libc::FD_CLOEXEC as usize);
            kept.0.push(fd);
            true
        });
    }
    kept
}

impl Drop for Kept {
    fn drop(&mut self) {
        for fd in self.0.drain(..) {
            sys::fcntl(fd, libc::F_SETFD, 0);
        }
    }
}

/// Gives back to TCP what another program is about to inherit. Goes by what is open, not by our marks: a vfork child
/// has rearranged its descriptors without leaving marks. Where the stream cannot be put in order for others (`keep` of the
/// connection and the descriptor), that program must not get it: it would read doorbells between payload, and seldom wants the
/// connection at all, while this one goes on with it. False from `keep`: there is no such one, and it is reset.
fn revert_inherited(mut keep: impl FnMut(u32, i32) -> bool) {
    // A buffer that is exposed is the peer's to switch to, whatever was done here.
    let mut exposed = false;
    each(|_, k| exposed |= matches!(k, Kind::Conn(i) if conn(i).is_exposed()));
    if !exposed {
        return;
    }
    for fd in 0..high().max(64) {
        let flags = sys::fcntl(fd, libc::F_GETFD, 0);
        if flags < 0 || flags & libc::FD_CLOEXEC as isize != 0 {
            continue;
        }
        let Some(inode) = sys::socket_inode(fd) else { continue };
        let mut found = None;
        each(|_, k| {
            if let Kind::Conn(i) = k
                && conn(i).inode.load(Relaxed) == inode
                && conn(i).is_exposed()
            {
                found = Some(i);
            }
        });
        if let Some(i) = found {
            // The peer may send on the ring by now, and is told through its own what we have not read. A vfork child must
            // leave the channel alone: its number is the parent's.
            smc::meet::conclude(conn(i));
            if !conn(i).go_back(fd, reason::INHERITED.code(), true) && !keep(i, fd) {
                conn(i).reset_by_exec(fd);
            }
            if owner() {
                crate::epoll::on_reverted(i);
            }
        }
    }
}
