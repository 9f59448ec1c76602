//! The C interface among real processes: refusals, strangers, forks, signals, kills, and bad input.
#![allow(unsafe_code)]
#![cfg(not(loom))]

mod processes;

use core::ffi::c_int;
use libc::{sockaddr, sockaddr_in};
use shortwire_rsocket::capi::*;
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering::Relaxed};
use std::sync::{Mutex, MutexGuard};
use std::time::{Duration, Instant};

/// A test that hangs is killed; none asserts how long something takes.
fn watchdog() {
    // SAFETY: no handler is installed, so that the alarm ends the process.
    unsafe { libc::alarm(300) };
}

fn errno() -> i32 {
    std::io::Error::last_os_error().raw_os_error().unwrap()
}

fn address(port: u16) -> sockaddr_in {
    // SAFETY: all of it may be zero.
    let mut a: sockaddr_in = unsafe { core::mem::zeroed() };
    a.sin_family = libc::AF_INET as u16;
    a.sin_port = port.to_be();
    a.sin_addr.s_addr = u32::from_be_bytes([127, 0, 0, 1]).to_be();
    a
}

fn raw(a: &sockaddr_in) -> *const sockaddr {
    core::ptr::from_ref(a).cast()
}

const LEN: u32 = size_of::<sockaddr_in>() as u32;

fn stream() -> c_int {
    let fd = rsocket(libc::AF_INET, libc::SOCK_STREAM, 0);
    assert!(fd >= 0, "{}", errno());
    fd
}

fn port_of(fd: c_int) -> u16 {
    let (mut a, mut len) = (address(0), LEN);
    // SAFETY: an address.
    assert_eq!(unsafe { rgetsockname(fd, (&raw mut a).cast(), &mut len) }, 0);
    u16::from_be(a.sin_port)
}

fn listener() -> (c_int, u16) {
    let fd = stream();
    // SAFETY: an address.
    assert_eq!(unsafe { rbind(fd, raw(&address(0)), LEN) }, 0);
    assert_eq!(rlisten(fd, 8), 0);
    (fd, port_of(fd))
}

fn connect(fd: c_int, port: u16) -> c_int {
    // SAFETY: an address.
    unsafe { rconnect(fd, raw(&address(port)), LEN) }
}

fn accept(fd: c_int) -> c_int {
    // SAFETY: no address wanted.
    unsafe { raccept(fd, core::ptr::null_mut(), core::ptr::null_mut()) }
}

fn send(fd: c_int, bytes: &[u8], flags: c_int) -> isize {
    // SAFETY: a slice.
    unsafe { rsend(fd, bytes.as_ptr().cast(), bytes.len(), flags) }
}

fn recv(fd: c_int, bytes: &mut [u8], flags: c_int) -> isize {
    // SAFETY: a slice.
    unsafe { rrecv(fd, bytes.as_mut_ptr().cast(), bytes.len(), flags) }
}

fn set(fd: c_int, level: c_int, name: c_int, value: i32) -> c_int {
    // SAFETY: an int.
    unsafe { rsetsockopt(fd, level, name, (&raw const value).cast(), 4) }
}

fn get(fd: c_int, level: c_int, name: c_int) -> i32 {
    let (mut value, mut len) = (0i32, 4);
    // SAFETY: an int.
    assert_eq!(unsafe { rgetsockopt(fd, level, name, (&raw mut value).cast(), &mut len) }, 0);
    value
}

/// Both ends in this thread.
fn pair() -> (c_int, c_int) {
    pair_with(0)
}

/// The second end may map so many buffers.
fn pair_with(iomaps: i32) -> (c_int, c_int) {
    let (l, port) = listener();
    let c = stream();
    assert_eq!(set(c, 0x10000, 3, iomaps), 0, "RDMA_IOMAPSIZE");
    assert_eq!(rfcntl(c, libc::F_SETFL, libc::O_NONBLOCK.into()), 0);
    assert_eq!((connect(c, port), errno()), (-1, libc::EINPROGRESS));
    let s = accept(l);
    assert!(s >= 0);
    let mut fds = [libc::pollfd { fd: c, events: libc::POLLOUT, revents: 0 }];
    // SAFETY: one entry.
    assert_eq!(unsafe { rpoll(fds.as_mut_ptr(), 1, -1) }, 1);
    assert_eq!(fds[0].revents, libc::POLLOUT);
    assert_eq!(get(c, libc::SOL_SOCKET, libc::SO_ERROR), 0);
    assert_eq!(rfcntl(c, libc::F_SETFL, 0), 0);
    assert_eq!(rclose(l), 0);
    (c, s)
}

#[test]
fn one_thread_can_connect_to_itself() {
    watchdog();
    let (c, s) = pair();
    let mut buf = [0; 64];
    assert_eq!(send(c, b"there", 0), 5);
    assert_eq!((recv(s, &mut buf, 0), &buf[..5]), (5, &b"there"[..]));
    assert_eq!((recv(s, &mut buf, libc::MSG_DONTWAIT), errno()), (-1, libc::EAGAIN));
    assert_eq!(send(s, b"and back", 0), 8);
    assert_eq!(rclose(s), 0);
    assert_eq!(
        (recv(c, &mut buf, libc::MSG_WAITALL), &buf[..8]),
        (8, &b"and back"[..]),
        "sent before the end"
    );
    assert_eq!(recv(c, &mut buf, 0), 0, "the end");
    assert_eq!((send(c, b"x", 0), errno()), (-1, libc::ECONNRESET));
    assert_eq!(rclose(c), 0);
}

/// The accepted end is complete once it is used: the buffer of the other one is gone by then.
#[test]
fn what_was_sent_and_closed_before_the_first_receive_arrives() {
    watchdog();
    let (c, s) = pair();
    assert_eq!((send(c, b"x", 0), rclose(c)), (1, 0));
    let mut buf = [0; 8];
    assert_eq!((recv(s, &mut buf, 0), buf[0]), (1, b'x'));
    assert_eq!(recv(s, &mut buf, 0), 0, "the end");
    assert_eq!((send(s, b"x", 0), errno()), (-1, libc::ECONNRESET));
    assert_eq!(rclose(s), 0);
}

/// Waits for the accepted end of a connection while another thread takes the last step to it: the peer's
/// introduction, which wakes whoever finds it.
fn waits_beside_who_opens(wait: impl Fn(c_int, c_int) -> c_int + Sync) {
    // Long, as its end is a look, too.
    const LIMIT: Duration = Duration::from_secs(20);
    let (l, port) = listener();
    for round in 0..20 {
        let c = stream();
        assert_eq!(rfcntl(c, libc::F_SETFL, libc::O_NONBLOCK.into()), 0);
        assert_eq!((connect(c, port), errno()), (-1, libc::EINPROGRESS));
        let s = accept(l);
        let is_over = AtomicBool::new(false);
        let seen = std::thread::scope(|scope| {
            let waits = scope.spawn(|| {
                let start = Instant::now();
                (wait(s, LIMIT.as_millis() as c_int), start.elapsed() < LIMIT)
            });
            std::thread::sleep(Duration::from_millis(5));
            scope.spawn(|| {
                while !is_over.load(Relaxed) {
                    let mut one = libc::pollfd { fd: s, events: 0, revents: 0 };
                    // SAFETY: one entry.
                    unsafe { rpoll(&mut one, 1, 0) };
                }
            });
            let mut one = libc::pollfd { fd: c, events: libc::POLLOUT, revents: 0 };
            // SAFETY: one entry.
            assert_eq!(unsafe { rpoll(&mut one, 1, -1) }, 1);
            assert_eq!(send(c, b"x", 0), 1);
            let seen = waits.join();
            is_over.store(true, Relaxed);
            seen.unwrap()
        });
        assert_eq!(seen, (1, true), "round {round}");
        [c, s].into_iter().for_each(|fd| assert_eq!(rclose(fd), 0));
    }
    assert_eq!(rclose(l), 0);
}

#[test]
fn who_waits_sees_what_another_thread_has_opened() {
    watchdog();
    waits_beside_who_opens(|s, limit| {
        let mut one = libc::pollfd { fd: s, events: libc::POLLIN, revents: 0 };
        // SAFETY: one entry.
        unsafe { rpoll(&mut one, 1, limit) }
    });
    waits_beside_who_opens(|s, limit| {
        let set = repoll_create(0);
        let mut event = libc::epoll_event { events: libc::EPOLLIN as u32, u64: 0 };
        // SAFETY: an event.
        assert_eq!(unsafe { repoll_ctl(set, libc::EPOLL_CTL_ADD, s, &mut event) }, 0);
        // SAFETY: room for one.
        let seen = unsafe { repoll_wait(set, &mut event, 1, limit) };
        assert_eq!(rclose(set), 0);
        seen
    });
}

#[test]
fn ports_and_refusals_are_the_kernels() {
    watchdog();
    let (l, port) = listener();
    let other = stream();
    // SAFETY: an address.
    let bound = unsafe { rbind(other, raw(&address(port)), LEN) };
    assert_eq!((bound, errno()), (-1, libc::EADDRINUSE));
    assert_eq!(rclose(l), 0);
    assert_eq!((connect(other, port), errno()), (-1, libc::ECONNREFUSED));
    assert_eq!(rclose(other), 0);
    // A listener of another kind: it may answer anything, or hang up.
    for answer in [&b""[..], b"220 mail.example ready\r\n"] {
        let tcp = TcpListener::bind("127.0.0.1:0").unwrap();
        let port = tcp.local_addr().unwrap().port();
        let t = std::thread::spawn(move || {
            let mut peer = tcp.accept().unwrap().0;
            peer.read_exact(&mut [0; 8]).unwrap();
            peer.write_all(answer).unwrap();
        });
        let fd = stream();
        assert_eq!((connect(fd, port), errno()), (-1, libc::ECONNREFUSED));
        t.join().unwrap();
        assert_eq!(rclose(fd), 0);
    }
}

#[test]
fn strangers_do_not_keep_others_from_being_accepted() {
    watchdog();
    let (l, port) = listener();
    let mut garbage = TcpStream::connect(("127.0.0.1", port)).unwrap();
    garbage.write_all(&[0x55; 500]).unwrap();
    let mut short = TcpStream::connect(("127.0.0.1", port)).unwrap();
    short.write_all(b"RSOCKv1\0").unwrap();
    drop(TcpStream::connect(("127.0.0.1", port)).unwrap());
    let t = std::thread::spawn(move || {
        let c = stream();
        assert_eq!(connect(c, port), 0);
        assert_eq!(send(c, b"me", 0), 2);
        c
    });
    let s = accept(l);
    let mut buf = [0; 2];
    assert_eq!((recv(s, &mut buf, 0), &buf), (2, b"me"));
    [s, l, t.join().unwrap()].into_iter().for_each(|fd| assert_eq!(rclose(fd), 0));
}

#[test]
fn bad_input_is_answered_with_errno() {
    watchdog();
    let mut b = [0u8; 8];
    let p = b.as_mut_ptr().cast();
    for fd in [-1, 0, 999_999, i32::MAX] {
        // SAFETY: refused before anything is touched; so below.
        let calls = unsafe {
            [
                rrecv(fd, p, 8, 0),
                rsend(fd, p, 8, 0),
                riounmap(fd, p, 8) as isize,
                riomap(fd, p, 8, 2, 0, 0) as isize,
            ]
        };
        assert_eq!(calls, [-1; 4]);
        assert_eq!(
            (rlisten(fd, 1), rshutdown(fd, 2), rclose(fd), rfcntl(fd, libc::F_GETFL, 0)),
            (-1, -1, -1, -1)
        );
        assert_eq!(errno(), libc::EBADF);
    }
    for (domain, kind, protocol, error) in [
        (27, libc::SOCK_STREAM, 0, libc::EAFNOSUPPORT),
        (libc::AF_UNIX, libc::SOCK_STREAM, 0, libc::ENOTSUP),
        (libc::AF_INET, libc::SOCK_RAW, 0, libc::ENOTSUP),
        (libc::AF_INET, libc::SOCK_STREAM, libc::IPPROTO_UDP, libc::ENOTSUP),
    ] {
        assert_eq!((rsocket(domain, kind, protocol), errno()), (-1, error));
    }
    let s = stream();
    assert_eq!((send(s, b"x", 0), errno()), (-1, libc::ENOTCONN));
    assert_eq!((accept(s), errno()), (-1, libc::EINVAL));
    // SAFETY: a value too short, and none.
    let short = unsafe {
        [
            rsetsockopt(s, 1, libc::SO_RCVBUF, p, 3),
            rsetsockopt(s, 1, libc::SO_RCVBUF, core::ptr::null(), 4),
        ]
    };
    assert_eq!(short, [-1; 2]);
    assert_eq!((set(s, 12345, 1, 1), errno()), (-1, libc::ENOTSUP));
    assert_eq!((set(s, libc::SOL_SOCKET, libc::SO_PRIORITY, 1), errno()), (-1, libc::ENOTSUP));
    assert_eq!((set(s, 0x10000, 99, 1), errno()), (-1, libc::ENOTSUP));
    assert_eq!((set(s, libc::IPPROTO_TCP, libc::TCP_KEEPIDLE, 0), errno()), (-1, libc::EINVAL));
    assert_eq!(set(s, 0x10000, 1, 100), 0);
    assert_eq!(get(s, 0x10000, 1), 100);
    for value in [i32::MIN, -1, 0, 1, i32::MAX] {
        assert_eq!(set(s, libc::SOL_SOCKET, libc::SO_RCVBUF, value), 0);
        assert!((4096..=1 << 28).contains(&get(s, libc::SOL_SOCKET, libc::SO_RCVBUF)), "{value}");
    }
    assert_eq!(rclose(s), 0);
    let (c, s) = pair();
    assert_eq!((set(c, 0x10000, 1, 100), errno()), (-1, libc::EINVAL), "too late");
    // SAFETY: refused, or out of every map.
    unsafe {
        assert_eq!((riomap(c, p, 8, libc::PROT_READ, 0, 0), errno()), (-1, libc::EINVAL));
        assert_eq!((riomap(c, p, 8, libc::PROT_WRITE, 0, -2), errno()), (-1, libc::EINVAL));
        assert_eq!(
            (riomap(c, p, 8, libc::PROT_WRITE, 0, 0), errno()),
            (-1, libc::ENOMEM),
            "no iomaps were asked for"
        );
        assert_eq!(riowrite(c, p, 8, 0, 0), 0, "nothing is mapped there");
        assert_eq!(rreadv(c, core::ptr::null(), 1), -1);
        assert_eq!(rwritev(c, core::ptr::null(), -1), -1);
    }
    assert_eq!((rshutdown(c, 7), errno()), (-1, libc::EINVAL));
    assert_eq!((send(c, b"x", libc::MSG_OOB), errno()), (-1, libc::EOPNOTSUPP));
    [c, s].into_iter().for_each(|fd| assert_eq!(rclose(fd), 0));
}

static ALARMS: AtomicU32 = AtomicU32::new(0);
static RETURNED: AtomicBool = AtomicBool::new(false);

extern "C" fn count(_: c_int) {
    ALARMS.fetch_add(1, Relaxed);
}

fn on_signal(flags: c_int) {
    // SAFETY: all of it may be zero.
    let mut action: libc::sigaction = unsafe { core::mem::zeroed() };
    action.sa_sigaction = count as *const () as usize;
    action.sa_flags = flags;
    // SAFETY: initialised.
    assert_eq!(unsafe { libc::sigaction(libc::SIGUSR1, &action, core::ptr::null_mut()) }, 0);
}

/// What a process does at the signal is one for all of its threads.
fn turn() -> MutexGuard<'static, ()> {
    static TURN: Mutex<()> = Mutex::new(());
    TURN.lock().unwrap_or_else(|e| e.into_inner())
}

#[test]
fn signals_interrupt_or_restart_as_asked_for() {
    watchdog();
    let _turn = turn();
    let (c, s) = pair();
    for flags in [0, libc::SA_RESTART] {
        on_signal(flags);
        let before = ALARMS.load(Relaxed);
        RETURNED.store(false, Relaxed);
        // SAFETY: asks.
        let me = unsafe { libc::pthread_self() };
        let t = std::thread::spawn(move || {
            std::thread::sleep(Duration::from_millis(50));
            // Until the receive has returned, in front of which the first signal may come, or at least
            // restarted once.
            let goes_on = || match flags {
                0 => !RETURNED.load(Relaxed),
                _ => ALARMS.load(Relaxed) < before + 3,
            };
            while goes_on() {
                // SAFETY: the thread waits for this one.
                unsafe { libc::pthread_kill(me, libc::SIGUSR1) };
                std::thread::sleep(Duration::from_millis(20));
            }
            if flags != 0 {
                assert_eq!(send(s, b"x", 0), 1);
            }
        });
        let got = recv(c, &mut [0; 4], 0);
        let error = errno();
        RETURNED.store(true, Relaxed);
        if flags == 0 {
            assert_eq!((got, error), (-1, libc::EINTR));
        } else {
            assert_eq!(got, 1);
        }
        t.join().unwrap();
    }
    [c, s].into_iter().for_each(|fd| assert_eq!(rclose(fd), 0));
}

/// A listener that does not accept: a connect to it waits, and so does what is received behind it.
#[test]
fn a_connection_that_is_being_made_is_waited_for_as_long_as_asked() {
    watchdog();
    let (l, port) = listener();
    let c = stream();
    let limit = libc::timeval { tv_sec: 0, tv_usec: 100_000 };
    for name in [libc::SO_RCVTIMEO, libc::SO_SNDTIMEO] {
        let (value, len) = ((&raw const limit).cast(), size_of_val(&limit) as u32);
        // SAFETY: a time.
        assert_eq!(unsafe { rsetsockopt(c, libc::SOL_SOCKET, name, value, len) }, 0);
    }
    assert_eq!((connect(c, port), errno()), (-1, libc::EINPROGRESS));
    assert_eq!((connect(c, port), errno()), (-1, libc::EALREADY));
    assert_eq!((recv(c, &mut [0; 1], 0), errno()), (-1, libc::EAGAIN));
    assert_eq!((send(c, b"x", 0), errno()), (-1, libc::EAGAIN));
    let s = accept(l);
    assert_eq!((send(s, b"s", libc::MSG_DONTWAIT), errno()), (-1, libc::EAGAIN), "not met yet");
    assert_eq!((send(c, b"x", 0), recv(s, &mut [0; 1], 0)), (1, 1));
    [c, s, l].into_iter().for_each(|fd| assert_eq!(rclose(fd), 0));
}

#[test]
fn signals_interrupt_or_restart_a_connect_as_asked_for() {
    watchdog();
    let _turn = turn();
    let (l, port) = listener();
    let c = stream();
    for flags in [0, libc::SA_RESTART] {
        on_signal(flags);
        let before = ALARMS.load(Relaxed);
        RETURNED.store(false, Relaxed);
        // SAFETY: asks.
        let me = unsafe { libc::pthread_self() };
        let signals = std::thread::spawn(move || {
            std::thread::sleep(Duration::from_millis(50));
            // As above: until the call has returned, or has gone on behind several.
            while !RETURNED.load(Relaxed) && (flags == 0 || ALARMS.load(Relaxed) < before + 3) {
                // SAFETY: the thread waits for this one.
                unsafe { libc::pthread_kill(me, libc::SIGUSR1) };
                std::thread::sleep(Duration::from_millis(30));
            }
            if flags == 0 { -1 } else { accept(l) }
        });
        let done = connect(c, port);
        let error = errno();
        RETURNED.store(true, Relaxed);
        let s = signals.join().unwrap();
        if flags == 0 {
            assert_eq!((done, error), (-1, libc::EINTR));
        } else {
            assert_eq!(done, 0);
            assert!(ALARMS.load(Relaxed) >= before + 3, "it has gone on behind them");
            assert_eq!(rclose(s), 0);
        }
    }
    [c, l].into_iter().for_each(|fd| assert_eq!(rclose(fd), 0));
}

/// An empty set, or one with SIGUSR1.
fn signals(has_one: bool) -> libc::sigset_t {
    // SAFETY: zero is an empty set.
    let mut set: libc::sigset_t = unsafe { core::mem::zeroed() };
    if has_one {
        // SAFETY: a set.
        assert_eq!(unsafe { libc::sigaddset(&mut set, libc::SIGUSR1) }, 0);
    }
    set
}

/// As of `ppoll`, `pselect` and `epoll_pwait`: one that came before the call ends it, if nothing is ready.
#[test]
fn a_signal_that_waits_for_the_mask_ends_a_wait() {
    watchdog();
    let _turn = turn();
    on_signal(0);
    let (l, _) = listener();
    let (c, s) = pair();
    assert_eq!((send(c, b"1", 0), recv(s, &mut [0; 1], 0)), (1, 1));
    let (none, usr1) = (signals(false), signals(true));
    // SAFETY: a set.
    let blocked = unsafe { libc::pthread_sigmask(libc::SIG_BLOCK, &usr1, core::ptr::null_mut()) };
    assert_eq!(blocked, 0);
    let poll = |fd: c_int, limit: c_int| {
        let mut one = libc::pollfd { fd, events: libc::POLLIN, revents: 0 };
        // SAFETY: one entry, and a mask.
        unsafe { rpoll_under(&none, &mut one, 1, limit) }
    };
    let select = |fd: c_int, limit: c_int| {
        // SAFETY: zero is an empty set.
        let mut read: libc::fd_set = unsafe { core::mem::zeroed() };
        let millis = i64::from(limit);
        let mut time = libc::timeval { tv_sec: millis / 1000, tv_usec: millis % 1000 * 1000 };
        let null = core::ptr::null_mut();
        // SAFETY: a set with room for the number.
        unsafe { libc::FD_SET(fd, &mut read) };
        // SAFETY: a set, a time and a mask.
        unsafe { rselect_under(&none, fd + 1, [&mut read, null, null], &mut time) }
    };
    let wait = |fd: c_int, limit: c_int| {
        let set = repoll_create(0);
        let mut event = libc::epoll_event { events: libc::EPOLLIN as u32, u64: 0 };
        // SAFETY: an event.
        assert_eq!(unsafe { repoll_ctl(set, libc::EPOLL_CTL_ADD, fd, &mut event) }, 0);
        // SAFETY: room for one, and a mask.
        let seen = unsafe { repoll_wait_under(&none, set, &mut event, 1, limit) };
        let error = errno();
        assert_eq!(rclose(set), 0);
        // SAFETY: it has no obligation.
        let place = unsafe { libc::__errno_location() };
        // SAFETY: the thread's own.
        unsafe { *place = error };
        seen
    };
    let calls: [&dyn Fn(c_int, c_int) -> c_int; 3] = [&poll, &select, &wait];
    // The kernel's `epoll_pwait` that does not wait does not look for signals.
    for (call, looks_at_once) in calls.into_iter().zip([true, true, false]) {
        for fd in [l, s] {
            let raise = || {
                // SAFETY: to this thread.
                assert_eq!(unsafe { libc::raise(libc::SIGUSR1) }, 0);
            };
            raise();
            assert_eq!((call(fd, 20_000), errno()), (-1, libc::EINTR));
            assert_eq!(call(fd, 0), 0, "it was handled");
            raise();
            assert_eq!(call(fd, 0), if looks_at_once { -1 } else { 0 });
            // Who is put off for long finds the time over before the signal.
            let (limit, seen) = if looks_at_once { (50, 0) } else { (20_000, -1) };
            assert_eq!(call(fd, limit), seen);
        }
        assert_eq!(send(c, b"1", 0), 1);
        // SAFETY: to this thread.
        assert_eq!(unsafe { libc::raise(libc::SIGUSR1) }, 0);
        assert_eq!(call(s, 20_000), 1, "what is ready comes first");
        assert_eq!(recv(s, &mut [0; 1], 0), 1);
        assert_eq!((call(s, 20_000), errno()), (-1, libc::EINTR), "and the signal waits");
    }
    // SAFETY: asks.
    let me = unsafe { libc::pthread_self() };
    let sends = std::thread::spawn(move || {
        std::thread::sleep(Duration::from_millis(50));
        // SAFETY: the thread waits for this one.
        unsafe { libc::pthread_kill(me, libc::SIGUSR1) };
    });
    assert_eq!((poll(s, 20_000), errno()), (-1, libc::EINTR), "asleep");
    sends.join().unwrap();
    [c, s, l].into_iter().for_each(|fd| assert_eq!(rclose(fd), 0));
}
