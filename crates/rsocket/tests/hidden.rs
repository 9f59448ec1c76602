//! Alone in its process, which closes all descriptors from a number on.
#![cfg(not(loom))]
#![allow(unsafe_code)]

use core::ptr::{from_ref, null_mut};
use libc::{EPOLL_CTL_ADD, EPOLLIN, c_int, epoll_event, sockaddr, sockaddr_in};
use shortwire_rsocket::capi::{
    raccept, rclose, repoll_create, repoll_ctl, repoll_wait, rrecv, rsend,
};
use shortwire_rsocket::sockets;

/// Above what this test opens, and below what the library does.
const FROM: u32 = 64;
const LEN: u32 = size_of::<sockaddr_in>() as u32;

fn socket() -> c_int {
    // SAFETY: no pointers.
    let fd = unsafe { libc::socket(libc::AF_INET, libc::SOCK_STREAM, 0) };
    assert!((0..FROM as c_int).contains(&fd));
    fd
}

/// A socket that listens, and its address.
fn listener() -> (c_int, sockaddr_in) {
    let fd = socket();
    let mut at = sockaddr_in {
        sin_family: libc::AF_INET as u16,
        sin_port: 0,
        sin_addr: libc::in_addr { s_addr: u32::from_ne_bytes([127, 0, 0, 1]) },
        sin_zero: [0; 8],
    };
    let (place, mut len) = ((&raw mut at).cast::<sockaddr>(), LEN);
    // SAFETY: an address and its length.
    assert_eq!(unsafe { libc::bind(fd, place, LEN) }, 0);
    // SAFETY: as above.
    assert_eq!(unsafe { libc::getsockname(fd, place, &raw mut len) }, 0);
    assert!(matches!(sockets::listen(fd, 5), Some(Ok(()))));
    (fd, at)
}

/// Both ends of a connection.
fn connect(listener: c_int, to: sockaddr_in) -> [c_int; 2] {
    let client = socket();
    let connecting = std::thread::spawn(move || {
        // SAFETY: an address and its length.
        unsafe { sockets::connect(client, from_ref(&to).cast(), LEN) }
    });
    // SAFETY: nulls.
    let accepted = unsafe { raccept(listener, null_mut(), null_mut()) };
    assert!(matches!(connecting.join().unwrap(), Some(Ok(()))), "an rsocket, and connected");
    [client, accepted]
}

fn carries_a_byte(from: c_int, to: c_int) -> bool {
    let mut byte = 0u8;
    // SAFETY: one byte.
    let sent = unsafe { rsend(from, from_ref(&7u8).cast(), 1, 0) };
    // SAFETY: one byte.
    let got = unsafe { rrecv(to, (&raw mut byte).cast(), 1, 0) };
    (sent, got, byte) == (1, 1, 7)
}

#[test]
fn closing_all_numbers_from_one_on_leaves_connections_sets_and_listeners() {
    // SAFETY: no handler is installed, so that the alarm ends the process.
    unsafe { libc::alarm(300) };
    let (listener, at) = listener();
    let [client, server] = connect(listener, at);
    let set = repoll_create(0);
    let mut event = epoll_event { events: EPOLLIN as u32, u64: 5 };
    // SAFETY: an event of our own.
    assert_eq!(unsafe { repoll_ctl(set, EPOLL_CTL_ADD, client, &raw mut event) }, 0);
    // SAFETY: a number that the application does not use.
    assert_eq!(unsafe { libc::dup2(client, FROM as c_int) }, FROM as c_int);
    let closed = sockets::close_range(FROM, u32::MAX, |first, last| {
        // SAFETY: what is hidden is not in it.
        unsafe { libc::syscall(libc::SYS_close_range, first, last, 0) as c_int }
    });
    assert_eq!(closed, 0);
    // SAFETY: asks.
    assert_eq!(unsafe { libc::fcntl(FROM as c_int, libc::F_GETFD) }, -1, "closed all the same");
    assert!(carries_a_byte(client, server) && carries_a_byte(server, client));
    let sending = std::thread::spawn(move || {
        std::thread::sleep(std::time::Duration::from_millis(50));
        // SAFETY: one byte.
        unsafe { rsend(server, from_ref(&7u8).cast(), 1, 0) }
    });
    let mut out = epoll_event { events: 0, u64: 0 };
    // SAFETY: room for one.
    assert_eq!(unsafe { repoll_wait(set, &raw mut out, 1, 20_000) }, 1);
    assert_eq!(sending.join().unwrap(), 1);
    let [other_client, other_server] = connect(listener, at);
    assert!(carries_a_byte(other_client, other_server));
    for fd in [client, server, other_client, other_server, set, listener] {
        assert_eq!(rclose(fd), 0);
    }
}
