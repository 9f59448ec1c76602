//! Peers that hand over what would hold who closes it.

use super::*;
use std::io::{IoSlice, Write};
use std::net::{TcpListener, TcpStream};

use rustix::event::{EventfdFlags, eventfd};
use rustix::net::sockopt::set_socket_linger;
use rustix::net::{
    AddressFamily, SendAncillaryBuffer, SendAncillaryMessage, SendFlags, SocketFlags, SocketType,
    sendmsg, socketpair,
};
use std::time::Duration;

/// A connection with bytes that nobody takes: its last close waits for an hour. It ends with the
/// other end, which is given as well.
pub fn lingering() -> (OwnedFd, TcpStream) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let mut ours = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    let (theirs, _) = listener.accept().unwrap();
    ours.set_nonblocking(true).unwrap();
    while ours.write(&[0; 1 << 16]).is_ok() {}
    // Its own close would not wait.
    ours.set_nonblocking(false).unwrap();
    set_socket_linger(&ours, Some(Duration::from_secs(3600))).unwrap();
    (ours.into(), theirs)
}

pub fn hand(socket: impl AsFd, bytes: &[u8], files: &[BorrowedFd]) {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(16))];
    let mut ancillary = SendAncillaryBuffer::new(&mut space);
    assert!(files.is_empty() || ancillary.push(SendAncillaryMessage::ScmRights(files)));
    sendmsg(socket, &[IoSlice::new(bytes)], &mut ancillary, SendFlags::empty()).unwrap();
}

fn pair(kind: SocketType) -> (OwnedFd, Peer) {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let (theirs, ours) = socketpair(AddressFamily::UNIX, kind, flags, None).unwrap();
    (theirs, Peer::new(ours, &Leaving::default(), false))
}

fn wait_until_closed(leaving: &Leaving) {
    while leaving.count() > 0 {
        std::thread::yield_now();
    }
}

fn bell() -> OwnedFd {
    eventfd(0, EventfdFlags::CLOEXEC).unwrap()
}

/// While the close is still under way, the engine's thread has gone on.
#[test]
fn a_socket_that_lingers_is_closed_elsewhere() {
    for kind in [SocketType::SEQPACKET, SocketType::STREAM] {
        let (theirs, peer) = pair(kind);
        let (socket, other_end) = lingering();
        hand(&theirs, b"hold this", &[socket.as_fd()]);
        drop(socket);
        assert_eq!(peer.receive(&mut [0; 64], 1).unwrap_err(), Refused::Files);
        let leaving = peer.leaving().clone();
        // The message is still in the queue, with another reference.
        drop(peer);
        assert!(leaving.count() > 0, "{kind:?}");
        drop(other_end);
        wait_until_closed(&leaving);
    }
}

/// Those that the kernel has no room for, those that nobody asked for, and those in messages that
/// were never read.
#[test]
fn descriptors_that_nobody_takes_are_closed_elsewhere() {
    let (socket, other_end) = lingering();
    let (good, bell) = (bell(), self::bell());
    let many = [&[good.as_fd(); MOST_FILES][..], &[socket.as_fd()]].concat();
    let (first, peer) = pair(SocketType::SEQPACKET);
    hand(&first, b"too many", &many);
    assert_eq!(peer.receive(&mut [0; 64], MOST_FILES).unwrap_err(), Refused::Files);
    let (second, unasked) = pair(SocketType::SEQPACKET);
    hand(&second, b"unasked", &[bell.as_fd()]);
    assert_eq!(unasked.receive(&mut [0; 64], 0).unwrap_err(), Refused::Files);
    let (third, unread) = pair(SocketType::SEQPACKET);
    hand(&third, b"unread", &[socket.as_fd()]);
    drop((socket, first, second, third));
    // Whose close of the socket is the last one, lingers: let it be the unread one's.
    let early = peer.leaving().clone();
    drop((peer, unasked));
    wait_until_closed(&early);
    let leaving = unread.leaving().clone();
    drop(unread);
    assert!(leaving.count() == 1 && leaving.is_room());
    drop(other_end);
    wait_until_closed(&leaving);
}

#[test]
fn descriptors_come_with_their_own_bytes() {
    let (theirs, peer) = pair(SocketType::STREAM);
    let memory = rustix::fs::memfd_create(c"memory", rustix::fs::MemfdFlags::CLOEXEC).unwrap();
    hand(&theirs, b"none", &[]);
    hand(&theirs, b"bell", &[bell().as_fd()]);
    hand(&theirs, b"both", &[memory.as_fd(), bell().as_fd()]);
    let mut all = (Vec::new(), 0);
    let mut part = [0; 3];
    while let Some((length, files)) = peer.receive(&mut part, 2).unwrap() {
        let came = all.0.len();
        all.0.extend_from_slice(&part[..length]);
        match files.len() {
            0 => {}
            1 => {
                assert!((came..all.0.len()).contains(&4), "{came}");
                assert!(files.into_iter().next().unwrap().into_bell().is_some());
                all.1 += 1;
            }
            _ => {
                assert!((came..all.0.len()).contains(&8), "{came}");
                assert!(files[0].memory().is_some() && files[1].memory().is_none());
                all.1 += 1;
            }
        }
    }
    assert_eq!(all, (b"nonebellboth".to_vec(), 2));
    drop(theirs);
    assert!(matches!(peer.receive(&mut part, 2), Ok(Some((0, _)))));
}

/// A name does not make a file an eventfd, and only trust makes one of a disk memory.
#[test]
fn files_of_other_kinds_are_refused() {
    let folder = tempfile::tempdir().unwrap();
    let name = folder.path().join("anon_inode:[eventfd]");
    let leaving = Leaving::default();
    let files: [OwnedFd; 3] = [
        std::fs::File::create(name).unwrap().into(),
        std::fs::File::open("/proc/self/exe").unwrap().into(),
        std::io::pipe().unwrap().0.into(),
    ];
    for (place, file) in files.into_iter().enumerate() {
        let kind = Kind::of(&file, true);
        assert_eq!(kind == Kind::Other, place == 2, "{place}: {kind:?}");
        let file = Foreign::new(file, false, &leaving);
        // What lies in a tmpfs is memory.
        assert!(matches!(file.kind, Kind::Other | Kind::Memory), "{place}");
        assert!(file.into_bell().is_none());
    }
    wait_until_closed(&leaving);
}
