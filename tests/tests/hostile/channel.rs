//! The rendezvous as a stranger uses it.

use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::thread::sleep;

use rustix::fs::{MemfdFlags, ftruncate, memfd_create};
use rustix::io::Errno;
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, SocketAddrUnix, SocketFlags, SocketType, recv, recvmsg,
    sendmsg, socket_with,
};
use system_tests::stream::{Random, bytes};
use system_tests::{Deadline, millis, secs};

/// The rendezvous of a connection between two ports of 127.0.0.1.
pub fn name(one: u16, other: u16) -> Vec<u8> {
    let end = |port: u16| format!("00000000000000000000ffff7f000001{port:04x}");
    format!("shortwire/2/{}{}", end(one.min(other)), end(one.max(other))).into_bytes()
}

pub fn seqpacket() -> OwnedFd {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None).expect("a socket")
}

pub fn address(name: &[u8]) -> SocketAddrUnix {
    SocketAddrUnix::new_abstract_name(name).expect("a name")
}

pub fn say(to: &OwnedFd, message: &[u8], fds: &[BorrowedFd]) {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(8))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    if !fds.is_empty() {
        control.push(SendAncillaryMessage::ScmRights(fds));
    }
    let sent = sendmsg(to, &[std::io::IoSlice::new(message)], &mut control, SendFlags::NOSIGNAL);
    // Since Linux 6.16 whoever is not admitted yet cannot pass a descriptor. A peer that has hung
    // up has made its point.
    if sent == Err(Errno::PERM) && !fds.is_empty() {
        say(to, message, &[]);
    }
}

/// The first message of whoever has called, who may be stopped before it says it.
pub fn hear(from: &OwnedFd) -> Vec<u8> {
    let mut buffer = [0; 4096];
    let end = Deadline::within(secs(30));
    while !end.is_over() {
        if let Ok((n, _)) = recv(from, &mut buffer, RecvFlags::empty()) {
            return buffer[..n].to_vec();
        }
        sleep(millis(1));
    }
    Vec::new()
}

/// A message that has come, and the descriptors with it.
pub fn hear_with(from: &OwnedFd) -> Option<(Vec<u8>, Vec<OwnedFd>)> {
    let mut buffer = [0; 4096];
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(8))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let n = recvmsg(
        from,
        &mut [std::io::IoSliceMut::new(&mut buffer)],
        &mut control,
        RecvFlags::CMSG_CLOEXEC | RecvFlags::DONTWAIT,
    )
    .ok()?
    .bytes;
    let fds = control.drain().filter_map(|m| {
        if let RecvAncillaryMessage::ScmRights(fds) = m { Some(fds) } else { None }
    });
    Some((buffer[..n].to_vec(), fds.flatten().collect()))
}

pub fn memory(len: u64) -> OwnedFd {
    let fd =
        memfd_create("stranger", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING).expect("memfd");
    ftruncate(&fd, len).expect("its length");
    fd
}

/// Something wrong to say, in the given order of malice.
pub fn nonsense(kind: u64, to: &OwnedFd) {
    let mut random = Random::new(kind);
    let tiny = memory(1);
    let large = memory(1 << 22);
    match kind % 9 {
        0 => say(to, &bytes(kind, 1 + random.below(700) as usize), &[]),
        1 => say(to, &bytes(kind, 5000), &[]),
        2 => say(to, &[], &[]),
        3 => {}
        4 => say(to, &[b"\xe2\xd4\xc3\xc4\x01".as_slice(), &bytes(kind, 100)].concat(), &[]),
        5 => say(
            to,
            &[b"\xe2\xd4\xc3\xc4\x01\xff\xff\x20".as_slice(), &bytes(kind, 500)].concat(),
            &[tiny.as_fd()],
        ),
        6 => say(
            to,
            &bytes(kind, 80),
            &[tiny.as_fd(), large.as_fd(), tiny.as_fd(), large.as_fd(), tiny.as_fd()],
        ),
        7 => (0..20).for_each(|i| say(to, &bytes(kind + i, 60), &[large.as_fd()])),
        _ => say(
            to,
            &[b"\xe2\xd4\xc3\xc4\x04\x00\x1c\x20".as_slice(), &bytes(kind, 20)].concat(),
            &[],
        ),
    }
}
