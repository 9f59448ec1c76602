//! Loopback between two real processes, with the memfd passed as the rendezvous passes it. One test
//! alone in its process, because it counts descriptors and mappings.
#![allow(unsafe_code)]

use dibs::{Device, Dmb, Gid, Loopback};
use rustix::fd::{AsRawFd, BorrowedFd, OwnedFd, RawFd};
use rustix::io::{IoSlice, IoSliceMut};
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, SocketFlags, SocketType, recvmsg, sendmsg, socketpair,
};
use rustix::process::{Pid, WaitOptions, waitpid};
use std::mem::MaybeUninit;

static DEVICE: Loopback = Loopback::new();
const LEN: u32 = 1 << 16;
const GROUP: u32 = 5;
const MESSAGE: &[u8] = b"written by the other process";

/// What the CLC messages would say of a buffer, and its arena's descriptor with the first of them.
fn tell(socket: &OwnedFd, gid: Gid, token: u64, fd: Option<RawFd>) {
    let mut text = [0; 24];
    text[..16].copy_from_slice(&gid.to_bytes());
    text[16..].copy_from_slice(&token.to_ne_bytes());
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    // SAFETY: a share's descriptor stays open until its group is dropped.
    let fds = fd.map(|fd| [unsafe { BorrowedFd::borrow_raw(fd) }]);
    if let Some(fds) = &fds {
        assert!(control.push(SendAncillaryMessage::ScmRights(fds)));
    }
    let sent = sendmsg(socket, &[IoSlice::new(&text)], &mut control, SendFlags::empty());
    assert_eq!(sent, Ok(24));
}

fn hear(socket: &OwnedFd) -> (Gid, u64, Option<OwnedFd>) {
    let mut text = [0; 24];
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let flags = RecvFlags::CMSG_CLOEXEC | RecvFlags::WAITALL;
    let got = recvmsg(socket, &mut [IoSliceMut::new(&mut text)], &mut control, flags).unwrap();
    assert_eq!(got.bytes, 24);
    let fd = control.drain().find_map(|m| match m {
        RecvAncillaryMessage::ScmRights(mut fds) => fds.next(),
        _ => None,
    });
    let (gid, token) = text.split_at(16);
    (Gid::from_bytes(gid.try_into().unwrap()), u64::from_ne_bytes(token.try_into().unwrap()), fd)
}

fn contents(addr: *const u8, len: usize) -> Vec<u8> {
    // SAFETY: within a buffer, to which nobody writes now.
    (0..len).map(|i| unsafe { addr.add(i).read_volatile() }).collect()
}

/// One side of a handshake, and a message each way: by direct store or by `move_data`.
fn meet(socket: &OwnedFd, with_descriptor: bool, moving: bool) -> (Gid, Dmb, u64) {
    tell(socket, DEVICE.gid(), 0, None);
    let (peer, _, _) = hear(socket);
    assert_ne!(peer, DEVICE.gid());
    DEVICE.admit(peer);
    assert!(DEVICE.query_remote_gid(peer));
    let dmb = DEVICE.register_dmb(GROUP, peer, LEN).unwrap();
    let share = DEVICE.lend(dmb.token).filter(|_| with_descriptor);
    tell(socket, DEVICE.gid(), dmb.token, share.map(|fd| fd.raw()));
    let (owner, token, fd) = hear(socket);
    assert_eq!((owner, fd.is_some()), (peer, with_descriptor));
    let fd = fd.as_ref().map(AsRawFd::as_raw_fd);
    let there = DEVICE.map_dmb(GROUP, owner, token, LEN, fd).unwrap();
    let end = LEN - MESSAGE.len() as u32;
    if moving {
        DEVICE.move_data(token, end, MESSAGE.as_ptr(), MESSAGE.len() as u32, true).unwrap();
    } else {
        let to = there.wrapping_add(end as usize);
        // SAFETY: the message ends where the attached buffer ends.
        unsafe { core::ptr::copy_nonoverlapping(MESSAGE.as_ptr(), to, MESSAGE.len()) };
        DEVICE.signal_event(token);
    }
    while DEVICE.wait_signal(dmb.token, 0, None) == Some(0) {}
    assert_eq!(contents(dmb.addr.wrapping_add(end as usize), MESSAGE.len()), MESSAGE);
    assert_eq!(contents(dmb.addr, 128), [0; 128]);
    (owner, dmb, token)
}

fn in_child(socket: &OwnedFd, inherited: Dmb, parent: Gid) {
    // As in any fork child: the parent's buffers are not ours, but what is mapped stays mapped.
    DEVICE.after_fork_child();
    assert_ne!(DEVICE.gid(), parent);
    assert!(!DEVICE.query_remote_gid(parent), "to be met again");
    assert!(DEVICE.lend(inherited.token).is_none() && !DEVICE.unregister_dmb(inherited.token));
    assert_eq!(contents(inherited.addr, 1), [42]);
    meet(socket, true, false);
    meet(socket, false, true);
}

/// Open descriptors, and mapped memfds.
fn census() -> (usize, usize) {
    let fds = std::fs::read_dir("/proc/self/fd").unwrap().count();
    let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
    (fds, maps.lines().filter(|l| l.contains("memfd:shortwire")).count())
}

#[test]
fn two_processes_meet_and_leave_nothing() {
    // SAFETY: no handler is installed, so that the alarm ends a test that hangs.
    unsafe { libc::alarm(120) };
    let before = census();
    for _ in 0..3 {
        round();
        assert_eq!(census(), before);
    }
}

fn round() {
    let inherited = DEVICE.register_dmb(GROUP + 1, Gid::new(1, 2), LEN).unwrap();
    // SAFETY: the first byte of a buffer of our own.
    unsafe { inherited.addr.write(42) };
    let (family, kind) = (AddressFamily::UNIX, SocketType::STREAM);
    let (ours, theirs) = socketpair(family, kind, SocketFlags::CLOEXEC, None).unwrap();
    let parent = DEVICE.gid();
    // SAFETY: the child leaves by _exit, whatever happens in it.
    let pid = unsafe { libc::fork() };
    if pid == 0 {
        drop(ours);
        let passed = std::panic::catch_unwind(|| in_child(&theirs, inherited, parent));
        // SAFETY: ends the process here.
        unsafe { libc::_exit(i32::from(passed.is_err())) };
    }
    drop(theirs);
    let (peer, first, first_there) = meet(&ours, true, true);
    let (_, second, second_there) = meet(&ours, false, false);
    assert_eq!(first.token + 1, second.token, "pooled");
    let ended = waitpid(Pid::from_raw(pid), WaitOptions::empty()).unwrap().unwrap();
    assert_eq!(ended.1.exit_status(), Some(0));

    // The peer is gone, and so are its mappings; ours are as good as before.
    assert_eq!(contents(inherited.addr, 1), [42]);
    for token in [first_there, second_there] {
        assert!(DEVICE.detach_dmb(peer, token));
    }
    for dmb in [first, second, inherited] {
        assert!(DEVICE.unregister_dmb(dmb.token) && DEVICE.release_dmb(dmb.token, u32::MAX));
    }
    DEVICE.drop_group(GROUP);
    DEVICE.drop_group(GROUP + 1);
    assert_eq!(contents(first.addr, 1), [0], "still no fault");
}
