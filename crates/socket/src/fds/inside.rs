//! Closes under calls of other threads: a call goes on, and the connection ends behind the last
//! one, as in the kernel.

use core::sync::atomic::{AtomicI32, AtomicU32, AtomicUsize, Ordering::*};

use smc::conn::Conn;
use smc::{sys, table};

use super::life::drop_ref;
use super::{Local, local};

/// Keeps a connection open under a descriptor of our own, if calls of other threads are inside:
/// close does not end them, and takes effect behind the last. False when there are none.
pub(super) fn keep(c: &Conn, l: &Local, fd: i32) -> bool {
    // In an epoll set it would go on being reported.
    if !c.is_exposed() || l.regs.load(Relaxed) != 0 || !is_in_use(c, l, fd) || !smc::hidden::room()
    {
        return false;
    }
    let own = sys::fcntl(fd, libc::F_DUPFD_CLOEXEC, 0);
    if own < 0 {
        return false;
    }
    l.kept.store(smc::hidden::park(own as i32), SeqCst);
    // SYNC: kept. Pairs with `call_ended`: whoever has left since does not know of it.
    if !is_in_use(c, l, fd) {
        call_ended(c);
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

/// A descriptor of ours has moved to another number.
pub(super) fn moved_fd(from: i32, to: i32) {
    let Some(t) = table::get().filter(|_| table::exists()) else { return };
    for index in 0..t.used() {
        let _ = local(index).kept.compare_exchange(from, to, SeqCst, Relaxed);
    }
}

/// A call has ended that had to wait. The last one ends a connection that was closed meanwhile.
pub fn call_ended(c: &Conn) {
    let index = table::index_of(c) as u32;
    let l = local(index);
    // SYNC: kept. Behind this thread's leave; pairs with `keep`, which looks for threads inside
    // behind its store: one of both ends the connection.
    let own = l.kept.load(SeqCst);
    if own == 0 || is_in_use(c, l, own) {
        return;
    }
    let own = l.kept.swap(0, SeqCst);
    if own != 0 {
        drop_ref(index, own);
        smc::hidden::close(own);
    }
}

/// Threads of a process that have sets of their own, at most.
pub const OWNERS: usize = 256;

/// A thread, and the kernel's set by which it sleeps in receives (`bell`).
pub struct Owner {
    /// Its id, 0: nobody has this place.
    pub thread: AtomicU32,
    /// A descriptor of ours, below 0: there is none.
    pub set: AtomicI32,
    /// The connection on which it sleeps in a receive, by index and plus one; 0: it does not.
    pub on: AtomicU32,
}

impl Owner {
    const fn nobody() -> Self {
        Self { thread: AtomicU32::new(0), set: AtomicI32::new(-1), on: AtomicU32::new(0) }
    }
}

/// Together, so that a thread finds its own place soon.
static SETS: [Owner; OWNERS] = [const { Owner::nobody() }; OWNERS];
/// Above it no place was ever taken.
pub static HIGH: AtomicUsize = AtomicUsize::new(0);

/// The places that were ever taken.
pub fn owners() -> &'static [Owner] {
    &SETS[..HIGH.load(Relaxed).min(OWNERS)]
}

/// All places.
pub fn places() -> &'static [Owner; OWNERS] {
    &SETS
}

/// How often, a millisecond apart, a thread is looked at that is inside a call and runs: on a busy
/// machine it may not get to its sleep for that long, and taken for gone it would find its
/// connection closed.
const LOOKS: u32 = 200;

/// Whether a thread of ours that was inside a call on one of `fds` still is: it may have left by a
/// jump and do something else.
fn waits(c: &Conn, thread: u32, fds: [i32; 2]) -> bool {
    const WITH_LISTS: [libc::c_long; 2] = [libc::SYS_ppoll, SYS_POLL];
    const BY_BELL: [libc::c_long; 2] = [libc::SYS_epoll_pwait, libc::SYS_epoll_pwait2];
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
        let mut text = [0; 256];
        let Some(doing) = doing(thread, &mut text) else { return false };
        if !doing.starts_with("running") {
            let mut words = doing.split(' ');
            let Some(call) = words.next().and_then(|number| number.parse().ok()) else {
                return false;
            };
            let first = words
                .next()
                .and_then(|arg| i64::from_str_radix(arg.trim_start_matches("0x"), 16).ok());
            let named = first.is_some_and(|fd| fds.contains(&(fd as i32)));
            // It may sleep by its bell, and that on another connection.
            let own = owners().iter().find(|owner| owner.thread.load(Relaxed) == thread);
            let (set, on) =
                own.map_or((-1, 0), |own| (own.set.load(Relaxed), own.on.load(Relaxed)));
            let by_bell = BY_BELL.contains(&call) && first == Some(i64::from(set));
            if by_bell || on != 0 && call == libc::SYS_ppoll {
                return on == table::index_of(c) as u32 + 1;
            }
            return WITH_LISTS.contains(&call) || WITH_NUMBERS.contains(&call) && named;
        }
        sys::nap();
    }
    false
}

/// What the kernel says of a thread of ours: the number of its system call and its arguments, or
/// "running".
fn doing(thread: u32, text: &mut [u8; 256]) -> Option<&str> {
    let path = alloc::format!("/proc/self/task/{thread}/syscall");
    let file =
        rustix::fs::open(path, rustix::fs::OFlags::CLOEXEC, rustix::fs::Mode::empty()).ok()?;
    let n = rustix::io::read(&file, &mut text[..]).ok()?;
    core::str::from_utf8(&text[..n]).ok()
}

#[cfg(target_arch = "x86_64")]
const SYS_POLL: libc::c_long = libc::SYS_poll;
#[cfg(not(target_arch = "x86_64"))]
const SYS_POLL: libc::c_long = libc::SYS_ppoll;
