//! Peers of interfaces that try to hold the engine's thread: if one can, its test does not end.

use std::io::{IoSlice, Write};
use std::mem::MaybeUninit;
use std::net::{TcpListener, TcpStream};
use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;
use std::rc::Rc;
use std::time::Duration;

use engine::Link;
use engine::app::{App, Context, Io, Kind};
use engine::apps::memif::{Memif, MemifArgs};
use engine::apps::shm_link::{ShmLink, ShmLinkArgs};
use engine::apps::unix_socket::{SocketMode, UnixSocket, UnixSocketArgs};
#[cfg(feature = "vhost-user")]
use engine::apps::vhost_user::{VhostUser, VhostUserArgs};
#[cfg(feature = "vhost-user")]
use rustix::fs::{MemfdFlags, SealFlags, fcntl_add_seals, ftruncate, memfd_create};
use rustix::io::Errno;
use rustix::net::sockopt::set_socket_linger;
use rustix::net::{
    AddressFamily, SendAncillaryBuffer, SendAncillaryMessage, SendFlags, Shutdown, SocketAddrUnix,
    SocketFlags, SocketType, accept_with, bind, connect, listen, sendmsg, shutdown, socket_with,
};

/// A connection with bytes that nobody takes: its last close waits for an hour, or for the end of
/// the other end, which is given as well.
fn lingering() -> (OwnedFd, TcpStream) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let mut ours = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    let (theirs, _) = listener.accept().unwrap();
    ours.set_nonblocking(true).unwrap();
    while ours.write(&[0; 1 << 16]).is_ok() {}
    ours.set_nonblocking(false).unwrap();
    set_socket_linger(&ours, Some(Duration::from_secs(3600))).unwrap();
    (ours.into(), theirs)
}

fn hand(socket: &OwnedFd, bytes: &[u8], file: OwnedFd) {
    assert_eq!(try_to_hand(socket, bytes, file), Ok(()));
}

fn try_to_hand(socket: &OwnedFd, bytes: &[u8], file: OwnedFd) -> Result<(), Errno> {
    let files = [file.as_fd()];
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut ancillary = SendAncillaryBuffer::new(&mut space);
    assert!(ancillary.push(SendAncillaryMessage::ScmRights(&files)));
    let sent = sendmsg(socket, &[IoSlice::new(bytes)], &mut ancillary, SendFlags::empty());
    if sent.is_err() {
        // It is only here, and closed now.
        set_socket_linger(&file, None).unwrap();
    }
    sent.map(drop)
}

fn socket(kind: SocketType) -> OwnedFd {
    socket_with(AddressFamily::UNIX, kind, SocketFlags::CLOEXEC, None).unwrap()
}

fn reach(path: &Path, kind: SocketType) -> OwnedFd {
    let socket = socket(kind);
    connect(&socket, &SocketAddrUnix::new(path).unwrap()).unwrap();
    socket
}

fn memif(path: &Path, listen: bool) -> Memif {
    let args = MemifArgs {
        path: path.to_path_buf(),
        listen,
        id: 0,
        secret: String::new(),
        queues: 1,
        ring: 8,
        buffer: 256,
        unsealed: false,
    };
    Memif::new(args, &context()).unwrap()
}

fn context() -> Context {
    Context { name: "hostile".into(), thread: 0 }
}

/// The app goes on while the close that it has caused is under way: nobody has ended the other end.
fn is_left<A: App + Kind>(app: &mut A, now: u64) {
    is_left_if(true, app, now);
}

fn is_left_if<A: App + Kind>(left: bool, app: &mut A, now: u64) {
    let place = A::COUNTERS.iter().position(|name| *name == "violations").unwrap();
    let mut counters = vec![0; A::COUNTERS.len()];
    for step in 0..4 {
        app.tick(&Io::new(vec![None], vec![None], now + step));
    }
    app.counters(&mut counters);
    assert_eq!(counters[place], u64::from(left), "{:?}", app.notice());
}

#[test]
fn a_client_of_memif_hands_a_socket_that_lingers() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("socket");
    let mut app = memif(&path, true);
    let peer = reach(&path, SocketType::SEQPACKET);
    let (file, _other_end) = lingering();
    // INIT, with which none comes.
    hand(&peer, &[&[3, 0][..], &[0; 126]].concat(), file);
    is_left(&mut app, 0);
    // And one that is not met before the end.
    let late = reach(&path, SocketType::SEQPACKET);
    let (file, _late_end) = lingering();
    hand(&late, &[0; 128], file);
    drop(late);
    app.stop().unwrap();
}

/// The greeting fails before there is a session.
#[test]
fn a_client_of_memif_hands_a_socket_that_lingers_and_hears_nothing() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("socket");
    let mut app = memif(&path, true);
    let (file, _other_end) = lingering();
    let peer = reach(&path, SocketType::SEQPACKET);
    hand(&peer, &[&[3, 0][..], &[0; 126]].concat(), file);
    shutdown(&peer, Shutdown::Read).unwrap();
    drop(peer);
    for step in 0..4 {
        app.tick(&Io::new(vec![None], vec![None], step));
    }
    app.stop().unwrap();
}

#[test]
fn a_server_of_memif_hands_a_socket_that_lingers() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("socket");
    let listener = socket(SocketType::SEQPACKET);
    bind(&listener, &SocketAddrUnix::new(&path).unwrap()).unwrap();
    listen(&listener, 1).unwrap();
    let mut app = memif(&path, false);
    app.tick(&Io::new(vec![None], vec![None], 1_000_000_000));
    let peer = accept_with(&listener, SocketFlags::CLOEXEC).unwrap();
    let (file, _other_end) = lingering();
    hand(&peer, &[&[2, 0][..], &[0; 126]].concat(), file);
    is_left(&mut app, 1_000_000_001);
    app.stop().unwrap();
}

#[cfg(feature = "vhost-user")]
#[test]
fn a_front_end_hands_a_socket_that_lingers() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("socket");
    let args = VhostUserArgs { path: path.clone(), connect: false, unsealed: false };
    let mut app = VhostUser::new(args, &context()).unwrap();
    let peer = reach(&path, SocketType::STREAM);
    let (file, _other_end) = lingering();
    // SET_VRING_CALL.
    let message = [13_u32, 1, 8, 0, 0].map(u32::to_ne_bytes).concat();
    hand(&peer, &message, file);
    is_left(&mut app, 0);
    app.stop().unwrap();
}

/// A sealed file of huge pages: the first access to one is a SIGBUS where none is left. The table of
/// memory alone accesses nothing, so that this test fails, and does not die, where it is taken.
#[cfg(feature = "vhost-user")]
#[test]
fn a_front_end_hands_huge_pages() {
    let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING | MemfdFlags::HUGETLB;
    let Ok(memory) = memfd_create("guest", flags) else {
        println!(
            "skipped: a_front_end_hands_huge_pages: no memory files of huge pages on this kernel"
        );
        return;
    };
    if ftruncate(&memory, 2 << 20).is_err() {
        println!("skipped: a_front_end_hands_huge_pages: no huge pages of 2 MiB");
        return;
    }
    fcntl_add_seals(&memory, SealFlags::SHRINK | SealFlags::GROW).unwrap();
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("socket");
    // SET_MEM_TABLE with one region: address of the guest, size, address in the front end, offset.
    let header = [5_u32, 1, 8 + 32, 1, 0].map(u32::to_ne_bytes).concat();
    let message = [header, [0, 2 << 20, 1 << 40, 0_u64].map(u64::to_ne_bytes).concat()].concat();
    for unsealed in [true, false] {
        let args = VhostUserArgs { path: path.clone(), connect: false, unsealed };
        let mut app = VhostUser::new(args, &context()).unwrap();
        let peer = reach(&path, SocketType::STREAM);
        hand(&peer, &message, memory.try_clone().unwrap());
        is_left_if(!unsealed, &mut app, 0);
        app.stop().unwrap();
    }
}

fn counter<A: App + Kind>(app: &A, name: &str) -> u64 {
    let place = A::COUNTERS.iter().position(|counter| *counter == name).unwrap();
    let mut counters = vec![0; A::COUNTERS.len()];
    app.counters(&mut counters);
    counters[place]
}

/// A turn of the app, at that time.
fn breathe(app: &mut impl App, now: u64) {
    let io = Io::new(vec![None], vec![Some(Rc::new(Link::new()))], now);
    app.pull(&io);
    app.tick(&io);
}

/// The end that listens, which nobody is to hand anything.
#[test]
fn the_other_end_of_a_link_hands_a_socket_that_lingers() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("socket");
    let args = ShmLinkArgs { path: path.clone(), listen: true, slots: 16 };
    let mut app = ShmLink::new(args, &context()).unwrap();
    for peers in 1..=2 {
        let peer = reach(&path, SocketType::SEQPACKET);
        breathe(&mut app, peers);
        assert_eq!(counter(&app, "connections"), peers);
        let (file, _other_end) = lingering();
        hand(&peer, b"out of turn", file);
        breathe(&mut app, peers);
        assert!(app.notice().is_some());
    }
    // One that is not read before the end.
    let peer = reach(&path, SocketType::SEQPACKET);
    breathe(&mut app, 3);
    let (file, _other_end) = lingering();
    hand(&peer, b"late", file);
    app.stop().unwrap();
}

/// The end that connects, in place of the memory.
#[test]
fn whoever_a_link_reaches_hands_a_socket_that_lingers() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("socket");
    let listener = socket(SocketType::SEQPACKET);
    bind(&listener, &SocketAddrUnix::new(&path).unwrap()).unwrap();
    listen(&listener, 1).unwrap();
    let args = ShmLinkArgs { path, listen: false, slots: 16 };
    let mut app = ShmLink::new(args, &context()).unwrap();
    for peers in 1..=2 {
        breathe(&mut app, peers * 1_000_000_000);
        let peer = accept_with(&listener, SocketFlags::CLOEXEC).unwrap();
        let (file, _other_end) = lingering();
        hand(&peer, b"shortwire-1 \x10\0\0\0", file);
        breathe(&mut app, peers * 1_000_000_000);
        assert!(app.notice().is_some());
    }
    app.stop().unwrap();
}

/// The kernel refuses it (Linux 6.16), or it is closed elsewhere.
#[test]
fn whoever_sends_packets_hands_a_socket_that_lingers() {
    for (mode, kind) in [
        (SocketMode::Packet, SocketType::SEQPACKET),
        (SocketMode::Stream, SocketType::STREAM),
        (SocketMode::Datagram, SocketType::DGRAM),
    ] {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("socket");
        let (their_path, local) = (folder.path().join("theirs"), (kind == SocketType::DGRAM));
        let args = UnixSocketArgs {
            path: if local { their_path.clone() } else { path.clone() },
            listen: !local,
            mode,
            local: local.then(|| path.clone()),
        };
        let mut app = UnixSocket::new(args, &context()).unwrap();
        let peer = socket(kind);
        bind(&peer, &SocketAddrUnix::new(&their_path).unwrap()).unwrap();
        breathe(&mut app, 1_000_000_000);
        connect(&peer, &SocketAddrUnix::new(&path).unwrap()).unwrap();
        let mut other_ends = Vec::new();
        // Before it is met, while it is, and what is not read before the end.
        for turn in 2..=4 {
            let (file, other_end) = lingering();
            other_ends.push(other_end);
            let sent = try_to_hand(&peer, &[0, 0, 0, 1, 7], file);
            assert!(matches!(sent, Ok(()) | Err(Errno::PERM)), "{mode:?}: {sent:?}");
            if turn < 4 {
                breathe(&mut app, turn * 1_000_000_000);
                breathe(&mut app, turn * 1_000_000_000);
            }
            assert_eq!(counter(&app, "connections"), 1, "{mode:?}");
        }
        app.stop().unwrap();
    }
}
