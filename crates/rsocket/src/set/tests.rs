//! Sets beside the kernel's own: the same steps on rsockets, in shared memory and over verbs in
//! software, and on TCP show the same events. tests/progs/repoll.c does them over soft-RoCE.
#![allow(unsafe_code)]

mod edges;

use super::*;
use crate::net::{RsocketListener, RsocketStream, addr};
use crate::verbs::software::chosen;
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};

const IN: u32 = libc::EPOLLIN as u32;
const OUT: u32 = libc::EPOLLOUT as u32;
const HALF: u32 = libc::EPOLLRDHUP as u32;
const HUP: u32 = libc::EPOLLHUP as u32;
const EDGE: u32 = libc::EPOLLET as u32;
const ONCE: u32 = libc::EPOLLONESHOT as u32;

/// Long enough for what is on its way, short enough for what does not come.
const SOON: Duration = Duration::from_millis(40);

trait Kind {
    type Listener: AsRawFd + Sync;
    type Stream: AsRawFd + Read + Write + Send + 'static;
    fn listen() -> Self::Listener;
    fn connect(listener: &Self::Listener) -> Self::Stream;
    fn accept(listener: &Self::Listener) -> Self::Stream;
    fn end(stream: &Self::Stream);
    fn nonblocking(stream: &Self::Stream);
    fn create() -> RawFd;
    fn control(set: RawFd, operation: i32, fd: RawFd, events: u32) -> Result<(), Errno>;
    fn wait(set: RawFd, room: usize, limit: Duration) -> Vec<(RawFd, u32)>;
    fn close(set: RawFd);
}

struct Ours;
struct Verbs;
struct Kernels;

/// Rsockets of either provider.
trait Rsockets: Kind<Listener = RsocketListener, Stream = RsocketStream> {
    /// Bound, to a port of its own.
    fn open() -> RawFd;
    fn connect_to(address: std::net::SocketAddr) -> std::io::Result<RsocketStream>;
}

impl Rsockets for Ours {
    fn open() -> RawFd {
        let fd = socket::open(libc::AF_INET, libc::SOCK_STREAM, 0).unwrap();
        let any = "127.0.0.1:0".parse().unwrap();
        // SAFETY: a complete address.
        addr::with(&any, |ptr, len| unsafe { socket::bind(fd, ptr, len) }).unwrap();
        fd
    }

    fn connect_to(address: std::net::SocketAddr) -> std::io::Result<RsocketStream> {
        RsocketStream::connect(address)
    }
}

impl Rsockets for Verbs {
    fn open() -> RawFd {
        chosen(Ours::open)
    }

    fn connect_to(address: std::net::SocketAddr) -> std::io::Result<RsocketStream> {
        chosen(|| RsocketStream::connect(address))
    }
}

impl Kind for Ours {
    type Listener = RsocketListener;
    type Stream = RsocketStream;

    fn listen() -> RsocketListener {
        RsocketListener::bind("127.0.0.1:0").unwrap()
    }

    fn connect(listener: &RsocketListener) -> RsocketStream {
        RsocketStream::connect(listener.local_addr().unwrap()).unwrap()
    }

    fn accept(listener: &RsocketListener) -> RsocketStream {
        listener.accept().unwrap().0
    }

    fn end(stream: &RsocketStream) {
        stream.shutdown(std::net::Shutdown::Write).unwrap();
    }

    fn nonblocking(stream: &RsocketStream) {
        stream.set_nonblocking(true).unwrap();
    }

    fn create() -> RawFd {
        create(libc::EPOLL_CLOEXEC).unwrap()
    }

    fn control(set: RawFd, operation: i32, fd: RawFd, events: u32) -> Result<(), Errno> {
        let set = find(set)?;
        match operation {
            libc::EPOLL_CTL_ADD => set.add(fd, events, fd as u64),
            libc::EPOLL_CTL_MOD => set.modify(fd, events, fd as u64),
            _ => set.remove(fd),
        }
    }

    fn wait(set: RawFd, room: usize, limit: Duration) -> Vec<(RawFd, u32)> {
        let mut out = vec![libc::epoll_event { events: 0, u64: 0 }; room];
        let n = find(set).unwrap().wait(&mut out, Some(limit), None).unwrap();
        out[..n].iter().map(|event| (event.u64 as RawFd, event.events)).collect()
    }

    fn close(set: RawFd) {
        close(set).unwrap();
    }
}

impl Kind for Verbs {
    type Listener = RsocketListener;
    type Stream = RsocketStream;

    fn listen() -> RsocketListener {
        chosen(Ours::listen)
    }

    fn connect(listener: &RsocketListener) -> RsocketStream {
        chosen(|| Ours::connect(listener))
    }

    fn accept(listener: &RsocketListener) -> RsocketStream {
        Ours::accept(listener)
    }

    fn end(stream: &RsocketStream) {
        Ours::end(stream);
    }

    fn nonblocking(stream: &RsocketStream) {
        Ours::nonblocking(stream);
    }

    fn create() -> RawFd {
        Ours::create()
    }

    fn control(set: RawFd, operation: i32, fd: RawFd, events: u32) -> Result<(), Errno> {
        Ours::control(set, operation, fd, events)
    }

    fn wait(set: RawFd, room: usize, limit: Duration) -> Vec<(RawFd, u32)> {
        Ours::wait(set, room, limit)
    }

    fn close(set: RawFd) {
        Ours::close(set);
    }
}

impl Kind for Kernels {
    type Listener = TcpListener;
    type Stream = TcpStream;

    fn listen() -> TcpListener {
        TcpListener::bind("127.0.0.1:0").unwrap()
    }

    fn connect(listener: &TcpListener) -> TcpStream {
        TcpStream::connect(listener.local_addr().unwrap()).unwrap()
    }

    fn accept(listener: &TcpListener) -> TcpStream {
        listener.accept().unwrap().0
    }

    fn end(stream: &TcpStream) {
        stream.shutdown(std::net::Shutdown::Write).unwrap();
    }

    fn nonblocking(stream: &TcpStream) {
        stream.set_nonblocking(true).unwrap();
    }

    fn create() -> RawFd {
        // SAFETY: makes a descriptor.
        unsafe { libc::epoll_create1(libc::EPOLL_CLOEXEC) }
    }

    fn control(set: RawFd, operation: i32, fd: RawFd, events: u32) -> Result<(), Errno> {
        let mut event = libc::epoll_event { events, u64: fd as u64 };
        // SAFETY: an event of our own.
        match unsafe { libc::epoll_ctl(set, operation, fd, &raw mut event) } {
            0 => Ok(()),
            _ => Err(last_error()),
        }
    }

    fn wait(set: RawFd, room: usize, limit: Duration) -> Vec<(RawFd, u32)> {
        let mut out = vec![libc::epoll_event { events: 0, u64: 0 }; room];
        // SAFETY: the set is open.
        let set = unsafe { BorrowedFd::borrow_raw(set) };
        let n = epoll_wait(set, &mut out, limit.as_millis() as i32).unwrap();
        out[..n].iter().map(|event| (event.u64 as RawFd, event.events)).collect()
    }

    fn close(set: RawFd) {
        // SAFETY: ours.
        unsafe { libc::close(set) };
    }
}

fn pair<K: Kind>() -> (K::Stream, K::Stream) {
    let listener = K::listen();
    std::thread::scope(|scope| {
        let client = scope.spawn(|| K::connect(&listener));
        let server = K::accept(&listener);
        (client.join().unwrap(), server)
    })
}

/// What a set shows of one end while the other does things, step by step.
fn steps<K: Kind>(asked: u32) -> Vec<String> {
    let (mut here, mut there) = pair::<K>();
    let set = K::create();
    let fd = here.as_raw_fd();
    let mut seen = Vec::new();
    let mut shows = |step: &str| {
        // An rsocket whose peer has closed it has ended both ways, as `rpoll` tells, too.
        let events = K::wait(set, 8, SOON).into_iter().map(|(_, events)| events & !HUP);
        let events: Vec<u32> = events.filter(|events| *events != 0).collect();
        seen.push(format!("{step}: {events:x?}"));
    };
    K::control(set, libc::EPOLL_CTL_ADD, fd, asked).unwrap();
    shows("new");
    there.write_all(b"abcdef").unwrap();
    shows("data");
    shows("the same data");
    here.read_exact(&mut [0; 3]).unwrap();
    shows("half of it");
    there.write_all(b"gh").unwrap();
    shows("more data");
    here.read_exact(&mut [0; 5]).unwrap();
    shows("nothing");
    there.write_all(b"i").unwrap();
    shows("data again");
    K::control(set, libc::EPOLL_CTL_MOD, fd, asked).unwrap();
    shows("asked again");
    here.read_exact(&mut [0; 1]).unwrap();
    K::control(set, libc::EPOLL_CTL_MOD, fd, asked | OUT).unwrap();
    shows("asked for room");
    K::control(set, libc::EPOLL_CTL_MOD, fd, asked).unwrap();
    K::end(&there);
    shows("half an end");
    shows("still half an end");
    K::control(set, libc::EPOLL_CTL_DEL, fd, 0).unwrap();
    shows("no member");
    drop(there);
    K::control(set, libc::EPOLL_CTL_ADD, fd, asked).unwrap();
    shows("the end");
    drop(here);
    shows("closed");
    K::close(set);
    seen
}

#[test]
fn shows_what_the_kernels_sets_show() {
    for asked in [IN, IN | HALF, IN | EDGE, IN | HALF | EDGE, IN | ONCE, IN | EDGE | ONCE, 0] {
        let kernels = steps::<Kernels>(asked);
        assert_eq!(steps::<Ours>(asked), kernels, "{asked:x}");
        assert_eq!(steps::<Verbs>(asked), kernels, "{asked:x}, over verbs");
    }
}

#[test]
fn members_of_all_kinds_wake_a_sleeper() {
    members_wake::<Ours>();
    members_wake::<Verbs>();
}

fn members_wake<K: Rsockets>() {
    let listener = K::listen();
    let (end, mut other) = pair::<K>();
    let plain = eventfd(0, EventfdFlags::NONBLOCK).unwrap();
    let set = K::create();
    let fds = [listener.as_raw_fd(), end.as_raw_fd(), plain.as_raw_fd()];
    for fd in fds {
        K::control(set, libc::EPOLL_CTL_ADD, fd, IN).unwrap();
    }
    assert_eq!(K::wait(set, 8, Duration::ZERO), []);
    let soon = |f: &mut dyn FnMut()| {
        std::thread::scope(|scope| {
            let waits = scope.spawn(|| K::wait(set, 8, Duration::from_secs(20)));
            std::thread::sleep(SOON);
            f();
            waits.join().unwrap()
        })
    };
    let mut client = None;
    let seen = soon(&mut || {
        // Refused behind the accept, which does not come: the connection alone is the event.
        let address = listener.local_addr().unwrap();
        client = Some(std::thread::spawn(move || K::connect_to(address)));
    });
    assert_eq!(seen, [(fds[0], IN)]);
    drop(listener.accept().unwrap());
    drop(client.take().unwrap().join().unwrap());
    assert_eq!(soon(&mut || other.write_all(b"x").unwrap()), [(fds[1], IN)]);
    (&end).read_exact(&mut [0; 1]).unwrap();
    assert_eq!(
        soon(&mut || assert_eq!(rustix::io::write(&plain, &1u64.to_ne_bytes()), Ok(8))),
        [(fds[2], IN)]
    );
    rustix::io::read(&plain, &mut [0; 8]).unwrap();
    // What becomes a member while somebody sleeps.
    let (late, mut far) = pair::<K>();
    far.write_all(b"x").unwrap();
    let fd = late.as_raw_fd();
    let seen = soon(&mut || K::control(set, libc::EPOLL_CTL_ADD, fd, IN).unwrap());
    assert_eq!(seen, [(fd, IN)]);
    drop(late);
    assert_eq!(K::wait(set, 8, Duration::ZERO), [], "a member that was closed");
    let found = find(set).ok();
    K::close(set);
    // Another test may have the number by now.
    let again = find(set).ok();
    assert!(again.is_none_or(|other| !std::sync::Arc::ptr_eq(&other, found.as_ref().unwrap())));
}

#[test]
fn a_member_may_begin_to_listen() {
    begins_to_listen::<Ours>();
    begins_to_listen::<Verbs>();
}

/// One that is a member before it listens, while somebody sleeps, and then has a connection.
fn begins_to_listen<K: Rsockets>() {
    let idle = K::open();
    let set = K::create();
    K::control(set, libc::EPOLL_CTL_ADD, idle, IN).unwrap();
    let seen = std::thread::scope(|scope| {
        let waits = scope.spawn(|| K::wait(set, 8, Duration::from_secs(20)));
        std::thread::sleep(SOON);
        socket::listen(idle, 4).unwrap();
        changed(idle);
        let client = scope.spawn(move || K::connect_to(addr::local(idle).unwrap()));
        let seen = waits.join().unwrap();
        close_any(idle).unwrap();
        drop(client.join().unwrap());
        seen
    });
    assert_eq!(seen, [(idle, IN)]);
    K::close(set);
}

#[test]
fn who_sleeps_in_a_set_that_is_closed_is_told() {
    closed_under_sleepers::<Ours>();
    closed_under_sleepers::<Verbs>();
}

fn closed_under_sleepers<K: Rsockets>() {
    let (end, _other) = pair::<K>();
    let set = K::create();
    K::control(set, libc::EPOLL_CTL_ADD, end.as_raw_fd(), IN).unwrap();
    let found = std::sync::Barrier::new(3);
    std::thread::scope(|scope| {
        let waits = [(); 2].map(|()| {
            scope.spawn(|| {
                let mut out = [libc::epoll_event { events: 0, u64: 0 }];
                let of_number = find(set);
                // Once it is closed another test may have the number.
                found.wait();
                of_number?.wait(&mut out, Some(Duration::from_secs(20)), None)
            })
        });
        found.wait();
        std::thread::sleep(SOON);
        K::close(set);
        for wait in waits {
            assert_eq!(wait.join().unwrap(), Err(Errno::BADF));
        }
    });
}

/// What has ended, and was told, is there for as long as it is not closed, and wakes nobody again.
#[test]
fn who_waits_beside_a_member_that_has_ended_sleeps() {
    ended_beside::<Ours>();
    ended_beside::<Verbs>();
}

fn ended_beside<K: Rsockets>() {
    for how in [EDGE, ONCE] {
        let (end, other) = pair::<K>();
        let set = K::create();
        K::control(set, libc::EPOLL_CTL_ADD, end.as_raw_fd(), IN | how).unwrap();
        drop(other);
        let mut seen = 0;
        while seen & IN == 0 {
            seen |= K::wait(set, 1, Duration::from_secs(20))[0].1;
        }
        // What comes of the end in a second piece is told, too.
        while !K::wait(set, 1, SOON).is_empty() {}
        let time = || {
            let time = rustix::time::clock_gettime(rustix::time::ClockId::ThreadCPUTime);
            Duration::try_from(time).unwrap()
        };
        let before = time();
        assert_eq!(K::wait(set, 1, Duration::from_millis(500)), []);
        let took = time() - before;
        assert!(took < Duration::from_millis(250), "{took:?} of a processor, {how:#x}");
        // Asked anew it is told anew.
        K::control(set, libc::EPOLL_CTL_MOD, end.as_raw_fd(), IN).unwrap();
        assert_ne!(K::wait(set, 1, Duration::from_secs(20)), []);
        K::close(set);
    }
}

#[test]
fn a_short_array_gets_round_to_all() {
    gets_round::<Ours>();
    gets_round::<Verbs>();
}

fn gets_round<K: Rsockets>() {
    let pairs: Vec<_> = (0..4).map(|_| pair::<K>()).collect();
    let plain = eventfd(1, EventfdFlags::NONBLOCK).unwrap();
    let set = K::create();
    K::control(set, libc::EPOLL_CTL_ADD, plain.as_raw_fd(), IN).unwrap();
    for (here, there) in &pairs {
        K::control(set, libc::EPOLL_CTL_ADD, here.as_raw_fd(), IN).unwrap();
        (&mut &*there).write_all(b"x").unwrap();
    }
    let mut seen: Vec<_> = (0..10).flat_map(|_| K::wait(set, 1, SOON)).collect();
    seen.sort_unstable();
    seen.dedup();
    assert_eq!(seen.len(), 5, "{seen:?}");
    K::close(set);
}

#[test]
fn mistakes_are_named() {
    mistakes::<Ours>();
    mistakes::<Verbs>();
}

fn mistakes<K: Rsockets>() {
    let (end, _other) = pair::<K>();
    let fd = end.as_raw_fd();
    let (set, another) = (K::create(), K::create());
    assert_eq!(create(1 << 20), Err(Errno::INVAL));
    assert_eq!(K::control(set, libc::EPOLL_CTL_MOD, fd, IN), Err(Errno::NOENT));
    assert_eq!(K::control(set, libc::EPOLL_CTL_DEL, fd, IN), Err(Errno::NOENT));
    assert_eq!(K::control(set, libc::EPOLL_CTL_ADD, fd, IN), Ok(()));
    assert_eq!(K::control(set, libc::EPOLL_CTL_ADD, fd, IN), Err(Errno::EXIST));
    assert_eq!(K::control(set, libc::EPOLL_CTL_ADD, -1, IN), Err(Errno::BADF));
    assert_eq!(K::control(set, libc::EPOLL_CTL_ADD, 1 << 20, IN), Err(Errno::BADF));
    assert_eq!(K::control(set, libc::EPOLL_CTL_ADD, another, IN), Err(Errno::INVAL));
    assert_eq!(K::control(set, libc::EPOLL_CTL_ADD, set, IN), Err(Errno::INVAL));
    let file = std::fs::File::open("/proc/self/exe").unwrap();
    assert_eq!(K::control(set, libc::EPOLL_CTL_ADD, file.as_raw_fd(), IN), Err(Errno::PERM));
    assert_eq!(find(fd).err(), Some(Errno::INVAL));
    assert_eq!(find(set).unwrap().wait(&mut [], None, None), Err(Errno::INVAL));
    K::close(set);
    K::close(another);
}
