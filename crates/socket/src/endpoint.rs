//! Sockets come into being, connect, shut down.
#![allow(unsafe_code)]

use core::sync::atomic::Ordering::Relaxed;

use libc::{sockaddr, socklen_t};
use smc::inet::Addr;
use smc::{meet, reason, sys};

use crate::fds::{self, Kind, Port};
use crate::settle::settle;

/// Marks what socket returned.
pub fn made(domain: i32, kind: i32, proto: i32, fd: isize) -> isize {
    if fd >= 0 {
        let stream = kind & 0xf == libc::SOCK_STREAM;
        let inet = domain == libc::AF_INET || domain == libc::AF_INET6;
        let tcp = stream && inet && (proto == 0 || proto == libc::IPPROTO_TCP);
        fds::mark(fd as i32, if tcp { Kind::Tcp } else { Kind::Other });
    }
    fd
}

/// Marks what accept returned.
pub fn accepted(listener: i32, fd: isize) -> isize {
    if fd < 0 {
        return fd;
    }
    if fds::has_stopped() {
        fds::purge(fd as i32);
        return fd;
    }
    let tcp = match fds::kind(listener) {
        Kind::Tcp | Kind::Conn(_) => true,
        // A listener from before our time, by exec or SCM_RIGHTS: ask what it is.
        _ => {
            let mut proto = 0i32;
            meet::inherited::note_all();
            sys::getsockopt(fd as i32, libc::SOL_SOCKET, libc::SO_PROTOCOL, &mut proto);
            proto == libc::IPPROTO_TCP
        }
    };
    fds::mark(fd as i32, if tcp { Kind::Tcp } else { Kind::Other });
    fd
}

/// Before connect. AF_UNSPEC dissolves the connection; the next one on this descriptor begins anew,
/// on TCP.
///
/// # Safety
/// `a` must be what the application gives to connect, with its length `l`.
pub unsafe fn before_connect(fd: i32, a: *const sockaddr, l: socklen_t) {
    if let Some(port) = fds::existing(fd) {
        // SAFETY: the caller's obligation.
        unsafe { connected_before(port, a, l) };
    }
}

/// The descriptor has a connection already.
///
/// # Safety
/// As for `before_connect`.
#[cold]
#[inline(never)]
unsafe fn connected_before(port: Port, a: *const sockaddr, l: socklen_t) {
    // SAFETY: an address of at least two bytes.
    let dissolves =
        l >= 2 && !crate::faulty(a) && unsafe { (*a).sa_family } == libc::AF_UNSPEC as u16;
    let c = port.conn;
    if dissolves && (c.switched() || !meet::dissolve(c, port.fd)) {
        c.dissolves();
        // What is unread goes with it, so nothing is for our own receives to find.
        fds::go_back_for_readiness(port, reason::REVERTED.code());
    }
}

/// What connect returned, `r`, where `meet::may_offer`.
///
/// # Safety
/// As for `before_connect`.
#[cold]
pub unsafe fn connected(fd: i32, a: *const sockaddr, l: socklen_t, r: isize) -> isize {
    // To this machine it is open by now, also where the program does not wait for it.
    if r == 0 || r == -(libc::EINPROGRESS as isize) {
        let mut raw = [0u8; 28];
        // SAFETY: the kernel has just read so many bytes there.
        unsafe {
            core::ptr::copy_nonoverlapping(a.cast(), raw.as_mut_ptr(), raw.len().min(l as usize))
        };
        opened(fd, &raw);
    }
    r
}

/// A connection to this address was opened, or is being opened.
fn opened(fd: i32, to: &[u8; 28]) {
    let Some(to) = Addr::of(to) else { return };
    if meet::is_worth_an_offer(&to)
        && !shm::lock::on_signal_stack()
        && let Some(Port { index, conn, fd }) = fds::port(fd)
    {
        meet::offer(conn, fd, || fds::is_shared(index));
    }
}

/// shutdown; `plain` is the application's own call.
pub fn shutdown(fd: i32, how: i32, plain: impl FnOnce() -> isize) -> isize {
    if !(0..=2).contains(&how) {
        return plain();
    }
    let Some(port) = fds::existing(fd) else {
        // One that is upgraded later must know that its receives are shut: the kernel's word for this end
        // of its own would pass for the peer's death. Behind the others there is no upgrade.
        let made = if how == libc::SHUT_RD { fds::port(fd) } else { None };
        let generation = made.map(|port| port.conn.identity.gen_.load(Relaxed));
        let r = plain();
        if let Some(Port { conn, .. }) = made
            && r == 0
            // Whom the call has woken may have closed the number, and a socket that is not connected
            // forgets it.
            && generation == Some(conn.identity.gen_.load(Relaxed))
            && smc::inet::TcpInfo::of(fd).is_some_and(|info| info.established())
        {
            conn.shutdown(fd, how);
        }
        return r;
    };
    let c = port.conn;
    settle(port);
    let first = !c.sends_are_shut();
    c.shutdown(fd, how);
    let r = plain();
    if r == -(libc::ENOTCONN as isize) && first && c.is_reset_by_doorbell() {
        if how != libc::SHUT_RD {
            // Or the next send would be told of the reset, instead of this shutdown.
            sys::getsockopt(fd, libc::SOL_SOCKET, libc::SO_ERROR, &mut 0i32);
        }
        return 0;
    }
    r
}
