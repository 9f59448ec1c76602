//! What the unit tests share: a world whose answers are scripted, and connections upgraded within
//! one process.
#![allow(unsafe_code)]

use std::collections::{HashMap, VecDeque};
use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::os::fd::IntoRawFd;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering::*};
use std::sync::{Mutex, MutexGuard, Once};
use std::thread;
use std::time::{Duration, Instant};

use libc::{epoll_event, iovec, msghdr, nfds_t, pollfd, sigset_t, timespec};
use smc::sys;

use crate::fds::{self, Port};
use crate::kernel::{self, Bare, Kernel};
use crate::{endpoint, epoll, receive, transmit};

/// What a call that would sleep does instead.
#[derive(Clone, Copy)]
pub enum Answer {
    /// It returns this, at once.
    Is(isize),
    /// So many nanoseconds pass, as the library's clock has it, and it returns as if nothing had
    /// come.
    Passes(u64),
    /// This happens meanwhile, and it returns as if nothing had come.
    Does(fn()),
}

/// The kernel itself, but for descriptors that have answers written down.
pub struct Scripted {
    answers: Mutex<Option<HashMap<i32, VecDeque<Answer>>>>,
    /// How far its clock is ahead of the machine's.
    ahead: AtomicU64,
    /// Its clock does not go on.
    pub stands_still: AtomicBool,
    pub restarts: AtomicBool,
    pub cancels: AtomicU32,
    /// Whether it is a kernel without epoll_pwait2, and how often it was asked for epoll_pwait,
    /// with which time last.
    pub old: AtomicBool,
    pub pwaits: AtomicU32,
    pub last_ms: Mutex<i32>,
}

pub static SCRIPTED: Scripted = Scripted {
    answers: Mutex::new(None),
    ahead: AtomicU64::new(0),
    stands_still: AtomicBool::new(false),
    restarts: AtomicBool::new(false),
    cancels: AtomicU32::new(0),
    old: AtomicBool::new(false),
    pwaits: AtomicU32::new(0),
    last_ms: Mutex::new(0),
};
static WORLD: &dyn Kernel = &SCRIPTED;

impl Scripted {
    /// The next sleep on `fd` goes like this.
    pub fn script(&self, fd: i32, answers: &[Answer]) {
        let mut all = self.answers.lock().unwrap();
        all.get_or_insert_default().insert(fd, answers.iter().copied().collect());
    }

    /// How many answers for `fd` nobody has asked for.
    pub fn left(&self, fd: i32) -> usize {
        self.answers.lock().unwrap().as_ref().and_then(|all| all.get(&fd)).map_or(0, VecDeque::len)
    }

    fn next(&self, fd: i32) -> Option<isize> {
        let answer = self.answers.lock().unwrap().as_mut()?.get_mut(&fd)?.pop_front()?;
        Some(match answer {
            Answer::Is(r) => r,
            Answer::Passes(ns) => {
                self.ahead.fetch_add(ns, SeqCst);
                0
            }
            Answer::Does(f) => {
                f();
                0
            }
        })
    }
}

impl Kernel for Scripted {
    unsafe fn recvmsg(&self, fd: i32, msg: *mut msghdr, flags: i32) -> isize {
        // SAFETY: forwarded.
        self.next(fd).unwrap_or_else(|| unsafe { Bare.recvmsg(fd, msg, flags) })
    }

    unsafe fn sendmsg(&self, fd: i32, msg: *const msghdr, flags: i32) -> isize {
        // SAFETY: forwarded.
        unsafe { Bare.sendmsg(fd, msg, flags) }
    }

    fn peek(&self, fd: i32, flags: i32) -> isize {
        self.next(fd).unwrap_or_else(|| Bare.peek(fd, flags))
    }

    unsafe fn ppoll(
        &self,
        list: *mut pollfd,
        n: nfds_t,
        limit: *const timespec,
        mask: *const sigset_t,
    ) -> isize {
        // SAFETY: a list of `n`.
        let first = if n == 0 { -1 } else { unsafe { (*list).fd } };
        // SAFETY: forwarded.
        self.next(first).unwrap_or_else(|| unsafe { Bare.ppoll(list, n, limit, mask) })
    }

    unsafe fn epoll_pwait(
        &self,
        ep: i32,
        out: *mut epoll_event,
        n: i32,
        ms: i32,
        mask: *const sigset_t,
    ) -> isize {
        self.pwaits.fetch_add(1, SeqCst);
        *self.last_ms.lock().unwrap() = ms;
        // SAFETY: forwarded.
        self.next(ep).unwrap_or_else(|| unsafe { Bare.epoll_pwait(ep, out, n, ms, mask) })
    }

    unsafe fn epoll_pwait2(
        &self,
        ep: i32,
        out: *mut epoll_event,
        n: i32,
        limit: *const timespec,
        mask: *const sigset_t,
    ) -> isize {
        if self.old.load(SeqCst) {
            return -(libc::ENOSYS as isize);
        }
        // SAFETY: forwarded.
        self.next(ep).unwrap_or_else(|| unsafe { Bare.epoll_pwait2(ep, out, n, limit, mask) })
    }

    fn test_cancel(&self) {
        self.cancels.fetch_add(1, SeqCst);
    }

    fn restarts(&self) -> bool {
        self.restarts.load(SeqCst)
    }

    fn now_ns(&self) -> u64 {
        let now = if self.stands_still.load(SeqCst) { 0 } else { sys::now_ns() };
        now + self.ahead.load(SeqCst)
    }
}

/// The library of a process is one: tests of it take turns.
pub fn serial() -> MutexGuard<'static, ()> {
    static TURN: Mutex<()> = Mutex::new(());
    static BEGIN: Once = Once::new();
    let guard = TURN.lock().unwrap_or_else(|e| e.into_inner());
    BEGIN.call_once(|| {
        kernel::set(&WORLD);
        smc::setting::set(b"PREFER", b"loopback");
        smc::config::CONFIG.after.store(1, Relaxed);
        smc::config::CONFIG.spin_ns.store(0, Relaxed);
        fds::init();
    });
    SCRIPTED.restarts.store(false, SeqCst);
    SCRIPTED.old.store(false, SeqCst);
    guard
}

/// Two ends of a TCP connection, both of which the library watches. Closed with it.
pub struct Pair(pub i32, pub i32);

impl Drop for Pair {
    fn drop(&mut self) {
        for fd in [self.0, self.1] {
            close(fd);
        }
    }
}

pub fn close(fd: i32) -> isize {
    crate::descriptors::close(fd, || sys::close(fd))
}

/// A connection that is TCP.
pub fn connected() -> Pair {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    let client = TcpStream::connect(listener.local_addr().unwrap()).unwrap().into_raw_fd();
    let server = listener.accept().unwrap().0.into_raw_fd();
    endpoint::made(libc::AF_INET, libc::SOCK_STREAM, 0, client as isize);
    fds::mark(server, fds::Kind::Tcp);
    Pair(client, server)
}

/// A connection with both directions on rings and nothing under way.
pub fn upgraded() -> Pair {
    let pair = connected();
    upgrade(&pair);
    pair
}

/// Passes bytes until both directions are on rings.
pub fn upgrade(pair: &Pair) {
    let end = Instant::now() + Duration::from_secs(20);
    let on_rings = |fd| port(fd).conn.sends_on_ring() && port(fd).conn.receives_on_ring();
    while !on_rings(pair.0) || !on_rings(pair.1) {
        assert!(
            Instant::now() < end,
            "no upgrade: {:?}, {:?}",
            port(pair.0).conn.phase(),
            port(pair.1).conn.phase()
        );
        for (from, to) in [(pair.0, pair.1), (pair.1, pair.0)] {
            assert_eq!(send(from, b"x", 0), 1);
            assert_eq!(recv(to, 1, 0), Ok(b"x".to_vec()));
        }
        thread::sleep(Duration::from_millis(1));
    }
}

pub fn port(fd: i32) -> Port {
    fds::port(fd).expect("a connection")
}

/// send(2) through the library.
pub fn send(fd: i32, data: &[u8], flags: i32) -> isize {
    let iov = [iovec { iov_base: data.as_ptr().cast_mut().cast(), iov_len: data.len() }];
    let flags = flags | libc::MSG_NOSIGNAL;
    // SAFETY: live memory.
    let plain = || unsafe { sys::send(fd, data.as_ptr(), data.len(), flags) };
    // SAFETY: live memory.
    unsafe { transmit::send(fd, &iov, flags, plain) }
}

/// recv(2) of up to `n` bytes through the library: the bytes or an errno.
pub fn recv(fd: i32, n: usize, flags: i32) -> Result<Vec<u8>, i32> {
    let mut buffer = vec![0u8; n];
    let at = buffer.as_mut_ptr();
    let iov = [iovec { iov_base: at.cast(), iov_len: n }];
    // SAFETY: live memory.
    let plain = || unsafe { sys::recv(fd, at, n, flags) };
    // SAFETY: live memory.
    let r = unsafe { receive::recv(fd, &iov, flags, plain) };
    if r < 0 {
        return Err(-r as i32);
    }
    buffer.truncate(r as usize);
    Ok(buffer)
}

/// An epoll set of the library's.
pub struct Epoll(pub i32);

impl Epoll {
    pub fn new() -> Self {
        // SAFETY: no pointers.
        Self(epoll::open(unsafe { libc::epoll_create1(0) }))
    }

    pub fn control(&self, op: i32, fd: i32, events: i32) -> isize {
        let own = epoll_event { events: events as u32, u64: fd as u64 };
        let call = |other: Option<&mut epoll_event>| {
            sys::epoll_ctl(self.0, op, fd, other.map_or(&own, |ev| ev))
        };
        // SAFETY: a live event.
        unsafe { epoll::control(self.0, op, fd, &raw const own, call) }
    }

    pub fn add(&self, fd: i32, events: i32) {
        assert_eq!(self.control(libc::EPOLL_CTL_ADD, fd, events), 0);
    }

    /// What a wait of so many nanoseconds tells: descriptor and events.
    pub fn wait(&self, ns: Option<u64>) -> Result<Vec<(i32, u32)>, i32> {
        let mut out = [epoll_event { events: 0, u64: 0 }; 8];
        let ms = ns.map_or(-1, |ns| ns.div_ceil(1_000_000) as i32);
        // SAFETY: live events.
        let plain = || unsafe {
            Bare.epoll_pwait(self.0, out.as_ptr().cast_mut(), 8, ms, core::ptr::null())
        };
        // SAFETY: live events.
        let r = unsafe {
            epoll::wait(self.0, out.as_ptr().cast_mut(), 8, ns, core::ptr::null(), plain)
        };
        if r < 0 {
            return Err(-r as i32);
        }
        let out = core::hint::black_box(&mut out);
        Ok(out[..r as usize].iter().map(|ev| (ev.u64 as i32, ev.events)).collect())
    }

    pub fn now(&self) -> Vec<(i32, u32)> {
        self.wait(Some(0)).unwrap()
    }
}

impl Drop for Epoll {
    fn drop(&mut self) {
        close(self.0);
    }
}
