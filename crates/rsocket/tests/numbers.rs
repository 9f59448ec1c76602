//! Alone in its process: a number that was closed is another socket's at once.
#![allow(unsafe_code)]

use core::ptr::{from_ref, null_mut};
use libc::{EPOLL_CTL_ADD, EPOLLIN, EPOLLOUT, c_int, epoll_event, sockaddr, sockaddr_in};
use shortwire_rsocket::capi::{raccept, rclose, repoll_create, repoll_ctl, repoll_wait};
use shortwire_rsocket::sockets;

fn socket() -> c_int {
    // SAFETY: no pointers.
    let fd = unsafe { libc::socket(libc::AF_INET, libc::SOCK_STREAM, 0) };
    assert!(fd >= 0);
    fd
}

/// A TCP socket in a set, closed as the kernel has it, is no member any more: not by the number of
/// another one that becomes an rsocket.
#[test]
fn a_member_that_was_closed_does_not_come_back_as_an_rsocket() {
    let listener = socket();
    let mut at: sockaddr_in = sockaddr_in {
        sin_family: libc::AF_INET as u16,
        sin_port: 0,
        sin_addr: libc::in_addr { s_addr: u32::from_ne_bytes([127, 0, 0, 1]) },
        sin_zero: [0; 8],
    };
    let mut len = size_of::<sockaddr_in>() as u32;
    let place = (&raw mut at).cast::<sockaddr>();
    // SAFETY: an address and its length.
    assert_eq!(unsafe { libc::bind(listener, place, len) }, 0);
    // SAFETY: as above.
    assert_eq!(unsafe { libc::getsockname(listener, place, &raw mut len) }, 0);
    assert!(matches!(sockets::listen(listener, 5), Some(Ok(()))));
    let set = repoll_create(0);
    let mut event = epoll_event { events: (EPOLLIN | EPOLLOUT) as u32, u64: 7 };
    let old = socket();
    // SAFETY: an event of our own, here and below.
    assert_eq!(unsafe { repoll_ctl(set, EPOLL_CTL_ADD, old, &raw mut event) }, 0);
    // SAFETY: ours.
    assert_eq!(unsafe { libc::close(old) }, 0);
    let new = socket();
    assert_eq!(new, old, "the least free number");
    let to = at;
    let connecting = std::thread::spawn(move || {
        // SAFETY: an address and its length.
        unsafe { sockets::connect(new, from_ref(&to).cast(), size_of::<sockaddr_in>() as u32) }
    });
    // SAFETY: nulls.
    let accepted = unsafe { raccept(listener, null_mut(), null_mut()) };
    assert!(accepted >= 0);
    assert!(matches!(connecting.join().unwrap(), Some(Ok(()))));
    assert!(sockets::is_rsocket(new));
    let mut out = epoll_event { events: 0, u64: 0 };
    // SAFETY: room for one.
    assert_eq!(unsafe { repoll_wait(set, &raw mut out, 1, 0) }, 0);
    event.u64 = 8;
    // SAFETY: as above.
    assert_eq!(unsafe { repoll_ctl(set, EPOLL_CTL_ADD, new, &raw mut event) }, 0);
    // SAFETY: as above.
    assert_eq!(unsafe { repoll_wait(set, &raw mut out, 1, 20_000) }, 1);
    let data = out.u64;
    assert_eq!(data, 8);
    [new, accepted, listener, set].into_iter().for_each(|fd| assert_eq!(rclose(fd), 0));
    for fd in [new, set] {
        assert_eq!(rclose(fd), -1);
        assert_eq!(std::io::Error::last_os_error().raw_os_error(), Some(libc::EBADF));
    }
}
