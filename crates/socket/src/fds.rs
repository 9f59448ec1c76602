//! Which descriptors are ours to watch: one word per descriptor number, and per connection what
//! this process holds.
//!
//! A hook on a plain file costs one load and one branch.
#![allow(unsafe_code)]

use core::sync::atomic::{AtomicBool, AtomicI32, AtomicPtr, AtomicU32, AtomicU64, Ordering::*};

use smc::conn::Conn;
use smc::{home, sys, table};

use crate::ledger::{self, held};
use life::{create, drop_ref};
use tcp::go_back_for_stdio;

pub(crate) mod drain;
mod exec;
mod fork;
pub(crate) mod inside;
mod life;
pub(crate) mod rings;
mod tcp;
pub mod travel;

pub use exec::{Kept, before_exec, before_exit, go_back_for_spawn, inherit, undo_exec};
pub(crate) use fork::{
    after_failed_fork, after_fork_child, before_fork, go_back_before_vfork, while_alone, while_held,
};
pub(crate) use inside::{call_ended, kept};
pub(crate) use life::is_shared;
pub use life::{before_close, share, share_over};
pub(crate) use life::{begin_over, end_over, settle_over};
pub(crate) use tcp::on_upgraded;
pub use tcp::{
    go_back, go_back_for_others, go_back_for_readiness, go_back_from_copies, make_way,
    stop_for_good,
};

/// A descriptor that names a connection.
#[derive(Clone, Copy)]
pub struct Port {
    /// Its place in the table.
    pub index: u32,
    /// The connection at that place; type-stable, so that a late reader finds a connection, if not
    /// this one.
    pub conn: &'static Conn,
    /// The descriptor's number, which may name something else as soon as another thread closes it.
    pub fd: i32,
}

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
/// Not ours yet, and in an epoll set already: see `astray`.
const TAG_ASTRAY: u64 = 4 << 56;
/// An io_uring, of which only `rings` knows more: for everybody else another file.
const TAG_RING: u64 = 5 << 56;
const TAG_MASK: u64 = 0xff << 56;

/// A word for each descriptor below `LIMIT`, 0 for what is not ours. For `leave_unwatched` and this module alone.
pub static WORDS: AtomicPtr<AtomicU64> = AtomicPtr::new(core::ptr::null_mut());
/// See `WORDS`.
pub static LIMIT: AtomicU32 = AtomicU32::new(0);

/// Assembly for a front whose entry comes from a stub of `sites`: a read or write of a descriptor that is
/// not ours goes on at rcx, before there is a stack for it or a register to keep. Programs copy files in
/// small blocks, of which each would pay for both. Wants `{limit}` and `{words}`, both `sym`; touches r11 and
/// the flags.
#[cfg(target_arch = "x86_64")]
#[macro_export]
macro_rules! leave_unwatched {
    () => {
        concat!(
            // read is 0, write 1.
            "cmp eax, 1\n",
            "ja 9f\n",
            // Set after the pointer to the words; the processor keeps that order.
            "cmp edi, dword ptr [rip + {limit}]\n",
            "jae 8f\n",
            "mov r11d, edi\n",
            "shl r11, 3\n",
            "add r11, qword ptr [rip + {words}]\n",
            "cmp qword ptr [r11], 0\n",
            "jne 9f\n",
            "8: jmp rcx\n",
            "9:\n",
        )
    };
}
/// The same for arm64, where some registers are kept before: the first argument is in w0, the number in w8. Goes on
/// at the label 5 if the call is not ours; touches x0, x1 and the flags.
#[cfg(target_arch = "aarch64")]
#[macro_export]
macro_rules! leave_unwatched {
    () => {
        concat!(
            // read is 63, write 64.
            "sub w1, w8, #63\n",
            "cmp w1, #1\n",
            "b.hi 9f\n",
            // Set after the pointer to the words, and read before it. SYNC: words.
            "adrp x1, {limit}\n",
            "add x1, x1, :lo12:{limit}\n",
            "ldar w1, [x1]\n",
            "cmp w0, w1\n",
            "b.hs 5f\n",
            "adrp x1, {words}\n",
            "ldr x1, [x1, :lo12:{words}]\n",
            "ldr x1, [x1, w0, uxtw #3]\n",
            "cbz x1, 5f\n",
            "9:\n",
        )
    };
}
/// One above the highest descriptor ever marked.
static HIGH: AtomicU32 = AtomicU32::new(0);
/// Connections of this process with a direction on a ring, or about to.
static UPGRADED: AtomicU32 = AtomicU32::new(0);
/// Whether an SO_RCVLOWAT above 1 was ever set: the kernel's is lowered before the connection
/// leaves TCP.
pub static MARKED: AtomicBool = AtomicBool::new(false);

/// Forks so far, with the one that is under way.
pub fn forks() -> u32 {
    FORKS.load(Relaxed)
}

/// Whether any descriptor's readiness may not be the kernel's.
pub fn readiness_differs() -> bool {
    UPGRADED.load(Relaxed) > 0 || MARKED.load(Relaxed)
}

/// What this process (not its family) keeps for a connection, beside the number of its descriptors
/// (`ledger.rs`).
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
    /// Our own descriptor of it, while calls of other threads go on that began before its close (0:
    /// none).
    kept: AtomicI32,
    /// The fork, by its number, for which the child's descriptors were counted last, and how many
    /// those were.
    counted_for: AtomicU32,
    counted: AtomicU32,
    /// Forks before it: no child of these has it.
    born: AtomicU32,
    /// The inode of its socket, if it was passed over a Unix socket by this process or to it.
    passed: AtomicU32,
    /// The ledger's note of that.
    note: AtomicU32,
    /// 1: it came by that note, and our parent is counted among those who hold it.
    came: AtomicU32,
}
/// Forks so far.
static FORKS: AtomicU32 = AtomicU32::new(0);
/// Sockets seen, of which each so many-th makes us look for killed children.
static CREATED: AtomicU32 = AtomicU32::new(1);
const REAP_EVERY: u32 = 64;
/// Places at which is looked then for connections that left and did not arrive: more than sockets
/// that came since.
const LOST_PLACES: u32 = 4 * REAP_EVERY;
static LOCALS: AtomicPtr<Local> = AtomicPtr::new(core::ptr::null_mut());

/// Reserves the arrays. Without them every descriptor is `Other` and everything stays TCP.
pub fn init() {
    let most = sys::descriptor_limit().map_or(0, |(_, most)| most);
    let n = most.clamp(1024, 1 << 20) as usize;
    let locals = sys::reserve(table::CAPACITY as usize * size_of::<Local>(), false);
    let words = sys::reserve(n * 8, false);
    if locals.is_null() || words.is_null() || !ledger::init() {
        return;
    }
    LOCALS.store(locals.cast(), Release);
    WORDS.store(words.cast(), Release);
    // SYNC: words. Behind them; pairs with `word`.
    LIMIT.store(n as u32, Release);
    home::settle();
}

#[inline]
fn word(fd: i32) -> Option<&'static AtomicU64> {
    // A negative number becomes a large one and fails the same test.
    // SYNC: words. Acquire: a processor that reads ahead would find no words below a limit yet.
    if fd as u32 >= LIMIT.load(Acquire) {
        return None;
    }
    // SAFETY: below LIMIT, which is set after WORDS.
    let word = unsafe { WORDS.load(Relaxed).add(fd as usize) };
    // SAFETY: never unmapped.
    Some(unsafe { &*word })
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

/// Whether `fd` names the connection at `index`.
#[inline]
pub(crate) fn names(fd: i32, index: u32) -> bool {
    word(fd).is_some_and(|w| w.load(Acquire) == TAG_CONN | u64::from(index))
}

fn decode(v: u64) -> Kind {
    match v & TAG_MASK {
        TAG_TCP => Kind::Tcp,
        TAG_CONN => Kind::Conn(v as u32),
        TAG_EPOLL => Kind::Epoll(v as u32),
        _ => Kind::Other,
    }
}

/// The library has stopped in this process: nothing is marked any more, so that no hook makes a
/// system call of its own.
static STOPPED: AtomicBool = AtomicBool::new(false);

/// Whether `init` was called: not where the library is off from the start.
pub fn has_begun() -> bool {
    LIMIT.load(Relaxed) != 0
}

/// Whether `stop_for_good` was called here, or in a parent.
#[inline]
pub fn has_stopped() -> bool {
    STOPPED.load(Relaxed)
}

/// Marks `fd`, whose number the kernel has just given out: a word left from a close that we did not
/// see goes.
pub fn mark(fd: i32, kind: Kind) {
    let Some(w) = word(fd) else { return };
    if has_stopped() {
        forget_stale(fd, w, 0);
        return;
    }
    let now = match kind {
        Kind::Other => 0,
        Kind::Tcp => TAG_TCP,
        Kind::Conn(i) => TAG_CONN | u64::from(i),
        Kind::Epoll(i) => TAG_EPOLL | u64::from(i),
    };
    forget_stale(fd, w, now);
    raise_high(fd);
    // Where calls are seen by number, stdio's are among them.
    let is_unseen = !cfg!(shortwire_raw) && (0..=2).contains(&fd);
    if is_unseen && matches!(kind, Kind::Tcp | Kind::Conn(_)) {
        go_back_for_stdio(fd);
    }
}

/// The io_uring that `fd` names, by its place.
pub(crate) fn ring(fd: i32) -> Option<u32> {
    let v = word(fd)?.load(Acquire);
    (v & TAG_MASK == TAG_RING).then_some(v as u32)
}

/// `fd` names an io_uring; false where that cannot be noted.
pub(crate) fn mark_ring(fd: i32, index: u32) -> bool {
    let Some(w) = word(fd).filter(|_| !has_stopped()) else { return false };
    forget_stale(fd, w, TAG_RING | u64::from(index));
    raise_high(fd);
    true
}

/// Changes what a number stands for.
#[inline]
fn forget_stale(fd: i32, w: &AtomicU64, now: u64) {
    // SYNC: underway. As in `before_close`.
    let old = w.swap(now, SeqCst);
    if old != 0 {
        retire(fd, old);
    }
}

/// What a number stood for is gone.
#[cold]
fn retire(fd: i32, old: u64) {
    match decode(old) {
        Kind::Conn(i) => drop_ref(i, -1),
        Kind::Epoll(i) => crate::epoll::forget(i, fd),
        _ if old & TAG_MASK == TAG_RING => rings::forget(old as u32),
        _ if old == TAG_ASTRAY => astray(fd),
        _ => {}
    }
}

/// What a number names now has come into an epoll set in place of what it named before, and no note
/// tells of it: its readiness must be the kernel's. If it was not made known yet, it stays on TCP
/// when it is.
#[cold]
pub(crate) fn astray(fd: i32) {
    let Some(w) = word(fd) else { return };
    loop {
        match kind(fd) {
            Kind::Other if w.compare_exchange(0, TAG_ASTRAY, SeqCst, Acquire).is_ok() => return,
            Kind::Other if matches!(w.load(Acquire) & TAG_MASK, TAG_ASTRAY | TAG_RING) => return,
            Kind::Other => {}
            Kind::Epoll(i) => return crate::epoll::nest(i),
            Kind::Tcp | Kind::Conn(_) => {
                if let Some(Port { index, .. }) = port(fd) {
                    while_held(index, fd, |port| {
                        go_back_for_readiness(port, smc::reason::UNSEEN.code())
                    });
                }
                return;
            }
        }
    }
}

/// A number came back from a creator of non-sockets: nothing of ours can live there any more.
#[inline]
pub fn purge(fd: i32) -> i32 {
    if let Some(w) = word(fd)
        && w.load(Relaxed) != 0
        && home::is_owner()
    {
        forget_stale(fd, w, 0);
    }
    fd
}

/// It only rises, so most marks need but a look.
#[inline]
fn raise_high(fd: i32) {
    if high() <= fd {
        HIGH.fetch_max(fd as u32 + 1, Relaxed);
    }
}

/// One above the highest descriptor ever marked.
pub fn high() -> i32 {
    HIGH.load(Relaxed) as i32
}

/// This process's share of connection `index`.
#[inline]
pub fn local(index: u32) -> &'static Local {
    // SAFETY: index is below CAPACITY and LOCALS is set before any index exists.
    let local = unsafe { LOCALS.load(Relaxed).add(index as usize) };
    // SAFETY: never unmapped.
    unsafe { &*local }
}

/// The connection at `index`.
#[inline]
pub fn conn(index: u32) -> &'static Conn {
    // SAFETY: an index exists only after the table does.
    unsafe { table::get().unwrap_unchecked() }.conn(index)
}

/// `fd`, which names the connection at `index`.
#[inline]
pub fn port_at(index: u32, fd: i32) -> Port {
    Port { index, conn: conn(index), fd }
}

/// `fd` with its connection, made at the first call for a TCP socket.
#[inline]
pub fn port(fd: i32) -> Option<Port> {
    match kind(fd) {
        Kind::Conn(i) => Some(port_at(i, fd)),
        Kind::Tcp => create(fd),
        _ => None,
    }
}

/// `fd` with its connection, if there is one already.
#[inline]
pub fn existing(fd: i32) -> Option<Port> {
    match kind(fd) {
        Kind::Conn(i) => Some(port_at(i, fd)),
        _ => None,
    }
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::descriptors;
    use crate::tests::{close, connected, port as found, recv, send, serial, upgraded};
    use smc::reason;
    use std::thread;
    use std::time::{Duration, Instant};

    #[test]
    fn a_number_is_what_was_made_last() {
        let _turn = serial();
        let pair = connected();
        assert_eq!(kind(pair.0), Kind::Tcp);
        assert_eq!(kind(-1), Kind::Other);
        assert_eq!(kind(i32::MAX), Kind::Other);
        let index = found(pair.0).index;
        assert_eq!(kind(pair.0), Kind::Conn(index));
        // A close that nobody saw, and a pipe at the same number.
        purge(pair.0);
        assert_eq!(kind(pair.0), Kind::Other);
        assert_eq!(conn(index).identity.refs.load(Relaxed), 0);
    }

    #[test]
    fn a_connection_ends_with_its_last_descriptor() {
        let _turn = serial();
        let pair = upgraded();
        let index = found(pair.0).index;
        let copy = descriptors::dup(pair.0, || sys::fcntl(pair.0, libc::F_DUPFD_CLOEXEC, 0)) as i32;
        assert_eq!(found(copy).index, index);
        assert_eq!(held(index).load(Relaxed), 2);
        assert_eq!(close(copy), 0);
        assert_eq!(held(index).load(Relaxed), 1);
        assert_eq!(send(pair.0, b"on", 0), 2);
        assert_eq!(recv(pair.1, 2, 0), Ok(b"on".to_vec()));
        assert_eq!(close(pair.0), 0);
        assert_eq!(recv(pair.1, 2, 0), Ok(Vec::new()));
        assert_eq!(close(pair.0), -(libc::EBADF as isize));
    }

    /// A call that insists on bytes waits in the kernel while its connection is closed and the place in the
    /// table goes to another one, in which a thread waits, too.
    #[test]
    fn a_call_on_a_closed_connection_leaves_the_next_one_alone() {
        let _turn = serial();
        let inside = |fd: i32| conn(found(fd).index).inside_kernel().count();
        let sleeps = |thread: u32| {
            let stat = std::fs::read_to_string(std::format!("/proc/self/task/{thread}/stat"));
            stat.is_ok_and(|stat| stat.rsplit(')').next().is_some_and(|at| at.starts_with(" S")))
        };
        let waits = |fd: i32| {
            let end = Instant::now() + Duration::from_secs(20);
            while !conn(found(fd).index).inside_kernel().any(sleeps) {
                assert!(Instant::now() < end, "nobody waits");
                thread::yield_now();
            }
        };
        let first = connected();
        let index = found(first.0).index;
        let late = thread::spawn(move || recv(first.0, 10, libc::MSG_WAITALL));
        waits(first.0);
        assert_eq!(close(first.0), 0);
        let mut others = Vec::new();
        let next = loop {
            let pair = connected();
            match [pair.0, pair.1].into_iter().find(|fd| found(*fd).index == index) {
                Some(fd) => break (fd, pair),
                None => others.push(pair),
            }
            assert!(others.len() < 100, "the place stays free");
        };
        let (fd, pair) = next;
        let peer = if fd == pair.0 { pair.1 } else { pair.0 };
        let reader = thread::spawn(move || recv(fd, 1, 0));
        waits(fd);
        assert_eq!(close(first.1), 0);
        assert_eq!(late.join().unwrap(), Ok(Vec::new()));
        assert_eq!(inside(fd), 1, "its own reader");
        assert_eq!(send(peer, b"1", 0), 1);
        assert_eq!(reader.join().unwrap(), Ok(b"1".to_vec()));
        core::mem::forget(first);
    }

    /// What was counted for a child that there is not is counted no more.
    #[test]
    fn a_fork_that_fails_leaves_connections_as_they_were() {
        let _turn = serial();
        let (ring, tcp) = (upgraded(), connected());
        let copy = descriptors::dup(ring.0, || sys::fcntl(ring.0, libc::F_DUPFD_CLOEXEC, 0)) as i32;
        let held = |fd: i32| conn(found(fd).index).identity.refs.load(Relaxed);
        let before = [ring.0, ring.1, tcp.0].map(held);
        for _ in 0..300 {
            crate::fork::prepare();
            assert_eq!([ring.0, ring.1, tcp.0].map(held), before.map(|n| 2 * n));
            crate::fork::parent();
            crate::fork::failed();
            assert_eq!([ring.0, ring.1, tcp.0].map(held), before);
        }
        // Places for what children hold have not run out.
        crate::fork::prepare();
        assert!(crate::ledger::has_place());
        crate::fork::parent();
        crate::fork::failed();
        for fd in [copy, ring.0] {
            assert_eq!(close(fd), 0);
        }
        assert_eq!(recv(ring.1, 1, 0), Ok(Vec::new()));
        assert!(!is_shared(found(tcp.0).index));
    }

    #[test]
    fn both_descriptors_of_a_socket_come_to_name_one_connection() {
        let _turn = serial();
        let pair = connected();
        let copy = descriptors::dup(pair.0, || sys::fcntl(pair.0, libc::F_DUPFD_CLOEXEC, 0)) as i32;
        assert_eq!(found(pair.0).index, found(copy).index);
        close(copy);
    }

    #[test]
    fn what_is_put_over_a_connection_ends_it() {
        let _turn = serial();
        let pair = upgraded();
        let [over, other] = [connected(), connected()];
        // SAFETY: integers only.
        let put = || unsafe { libc::dup2(over.0, pair.0) } as isize;
        assert_eq!(descriptors::dup_over(over.0, pair.0, put), pair.0 as isize);
        assert_eq!(found(pair.0).index, found(over.0).index);
        assert_eq!(recv(pair.1, 2, 0), Ok(Vec::new()), "its peer sees the end");
        drop(other);
    }

    #[test]
    fn a_frozen_connection_goes_on_over_tcp() {
        let _turn = serial();
        let pair = upgraded();
        assert_eq!(send(pair.1, b"unread", 0), 6);
        go_back_for_others(found(pair.0), reason::STDIO.code());
        assert_eq!(conn(found(pair.0).index).identity.reason.load(Relaxed), reason::STDIO.code());
        assert_eq!(send(pair.0, b"ring", 0), 4);
        assert_eq!(recv(pair.1, 8, 0), Ok(b"ring".to_vec()));
        assert_eq!(recv(pair.0, 8, 0), Ok(b"unread".to_vec()));
        assert!(!found(pair.0).conn.switched());
    }

    #[test]
    fn a_range_is_closed_around_what_is_hidden() {
        let _turn = serial();
        let _keeps_a_channel = upgraded();
        let hidden: Vec<i32> = smc::hidden::all().collect();
        assert!(!hidden.is_empty());
        let calls = core::cell::RefCell::new(Vec::new());
        let first = *hidden.iter().min().unwrap() as u32;
        let r = descriptors::close_range(first, u32::MAX, 0, |from, to| {
            calls.borrow_mut().push(from..=to);
            0
        });
        assert_eq!(r, 0);
        for fd in hidden {
            assert!(calls.borrow().iter().all(|range| !range.contains(&(fd as u32))), "{fd}");
        }
    }

    /// The only thread that could send them again may be the one that reads them.
    #[test]
    fn what_is_unread_at_a_way_back_is_sent_again_by_an_end_in_the_same_process() {
        let _turn = serial();
        let pair = upgraded();
        assert_eq!(send(pair.1, b"pending", 0), 7);
        go_back_for_others(found(pair.0), reason::PASSED_FD.code());
        assert_eq!(smc::sys::ioctl_int(pair.0, libc::FIONREAD), Ok(7));
        assert_eq!(recv(pair.0, 9, 0), Ok(b"pending".to_vec()));
    }
}
