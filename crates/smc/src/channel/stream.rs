//! A channel to another guest: a TCP connection, on which each message has its length in front of
//! it. No descriptors pass.
#![allow(unsafe_code)]

use super::{MAX, NoSocket, Silence, check, heard, park};
use crate::inet::Addr;
use crate::sys;

/// Calls a port of the peer's machine from the local address of a connection. The answer is not
/// waited for.
pub(crate) fn dial(local: &Addr, peer: &Addr, port: u16) -> Result<i32, NoSocket> {
    let fd = check(sys::socket(local.family.into(), libc::SOCK_STREAM | libc::SOCK_NONBLOCK, 0))?;
    let address = |addr: &Addr, port: u16| {
        let mut raw = [0u8; 28];
        raw[..2].copy_from_slice(&addr.family.to_ne_bytes());
        raw[2..4].copy_from_slice(&port.to_be_bytes());
        let v4 = i32::from(addr.family) == libc::AF_INET;
        if v4 {
            raw[4..8].copy_from_slice(&addr.ip[..4])
        } else {
            raw[8..24].copy_from_slice(&addr.ip)
        }
        (raw, if v4 { 16usize } else { 28 })
    };
    sys::setsockopt(fd, libc::IPPROTO_TCP, libc::TCP_NODELAY, &1i32);
    let ((own, own_len), (other, other_len)) = (address(local, 0), address(peer, port));
    let r = match sys::bind(fd, &own[..own_len]) {
        0 => sys::connect(fd, &other[..other_len]),
        e => e,
    };
    park(fd, if r == -(libc::EINPROGRESS as isize) { 0 } else { r })
}

/// Looks at the next message, and leaves it there; nothing while it is not there as a whole.
pub fn peek(fd: i32, out: &mut [u8; MAX]) -> Result<usize, Silence> {
    let mut raw = [0u8; MAX + 2];
    // SAFETY: the buffer is ours.
    let n = heard(unsafe {
        sys::recv(fd, raw.as_mut_ptr(), raw.len(), libc::MSG_PEEK | libc::MSG_DONTWAIT)
    })?;
    let len = usize::from(u16::from_be_bytes([raw[0], raw[1]]));
    match len {
        _ if n < 2 => Err(Silence::Nothing),
        0 => Err(Silence::Unusable),
        _ if len > MAX => Err(Silence::Unusable),
        _ if n < 2 + len => Err(Silence::Nothing),
        _ => {
            out[..len].copy_from_slice(&raw[2..2 + len]);
            Ok(len)
        }
    }
}

/// Receives one message. Never waits.
pub fn recv(fd: i32, out: &mut [u8; MAX]) -> Result<usize, Silence> {
    let len = peek(fd, out)?;
    // SAFETY: the buffer is ours. So many bytes are there.
    heard(unsafe { sys::recv(fd, [0u8; MAX + 2].as_mut_ptr(), 2 + len, libc::MSG_DONTWAIT) })?;
    Ok(len)
}

/// Sends one message; false if it cannot be. Never waits.
#[must_use]
pub fn send(fd: i32, message: &[u8]) -> bool {
    let mut raw = [0u8; MAX + 2];
    let len = message.len();
    let Some(place) = raw.get_mut(2..2 + len) else { return false };
    place.copy_from_slice(message);
    raw[..2].copy_from_slice(&(len as u16).to_be_bytes());
    // SAFETY: `raw` has so many bytes.
    let n =
        unsafe { sys::send(fd, raw.as_ptr(), 2 + len, libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL) };
    // A handshake does not fill a socket's buffer, unless the other end does not read.
    n == (2 + len) as isize
}
