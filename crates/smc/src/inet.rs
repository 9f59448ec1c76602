//! What the kernel knows of a TCP connection: stream positions, addresses, and whose the other end
//! is.
#![allow(unsafe_code)]

use crate::sys;

/// `struct tcp_info`, as far as it is used. Field offsets are the kernel's ABI (linux/tcp.h).
pub struct TcpInfo {
    raw: [u8; 256],
    told: usize,
}

const ESTABLISHED: u8 = 1;

impl TcpInfo {
    /// None when the kernel is too old to tell `bytes_sent` (before 4.19).
    pub fn of(fd: i32) -> Option<Self> {
        let mut raw = [0u8; 256];
        let n = sys::getsockopt(fd, libc::IPPROTO_TCP, libc::TCP_INFO, &mut raw);
        (n >= 216).then_some(Self { raw, told: n as usize })
    }

    fn u64(&self, at: usize) -> u64 {
        u64::from_ne_bytes(self.raw[at..at + 8].try_into().unwrap_or_default())
    }

    fn u32(&self, at: usize) -> u32 {
        u32::from_ne_bytes(self.raw[at..at + 4].try_into().unwrap_or_default())
    }

    /// In state ESTABLISHED.
    pub fn established(&self) -> bool {
        self.raw[0] == ESTABLISHED
    }

    /// Over: reset, or ended on both sides.
    pub fn is_closed(&self) -> bool {
        self.raw[0] == 7
    }

    /// The peer's FIN has come, or the connection is over.
    pub fn peer_ended(&self) -> bool {
        // Neither ESTABLISHED nor FIN_WAIT1 nor FIN_WAIT2.
        !matches!(self.raw[0], 1 | 4 | 5)
    }

    /// Whether the peer's FIN is among what has arrived; None if that cannot be told.
    fn has_fin(&self) -> Option<bool> {
        match self.raw[0] {
            // TIME_WAIT, CLOSE_WAIT, LAST_ACK, CLOSING.
            6 | 8 | 9 | 11 => Some(true),
            _ if self.is_closed() => None,
            _ => Some(false),
        }
    }

    /// Whether the receive window of `fd`, of which this is the information and which has `queued`
    /// bytes unread, may have no room for another segment. Kernels before 6.2 do not tell the
    /// window: there it may have none unless what it is computed from says that it has.
    pub fn nearly_shut(&self, fd: i32, queued: usize) -> bool {
        let segment = self.u32(20);
        if self.told >= 236 {
            return self.u32(232) <= segment;
        }
        let mut memory = [0u32; 9];
        if sys::getsockopt(fd, libc::SOL_SOCKET, libc::SO_MEMINFO, &mut memory) <= 0 {
            return true;
        }
        // The window is the less of two, less what has come since the peer was told: a limit that
        // grows with the connection, and a part of the memory that is free, half of that unless
        // tcp_adv_win_scale says otherwise.
        let [used, most, ..] = memory;
        let limit = self.u32(64);
        let least = limit.min(most / 8) as usize;
        used > most / 4 || least <= queued + 2 * segment as usize
    }

    /// Stream bytes that were given to the kernel to send.
    pub fn sent(&self) -> u64 {
        self.u64(200) - self.u64(208) + u64::from(self.u32(144))
    }

    /// Stream bytes that the other end's kernel has acknowledged. The end that opened the
    /// connection counts its SYN as one more.
    fn acked(&self) -> u64 {
        self.u64(120)
    }

    /// Stream bytes that have arrived, read or not. A FIN that has arrived counts as one more, in
    /// every state behind it: CLOSE too, which by itself does not tell whether it was reached by
    /// FIN or by RST.
    pub fn arrived(&self) -> u64 {
        self.u64(128)
    }
}

/// What has come in on a connection.
pub struct Received {
    /// Stream bytes, see `TcpInfo::arrived`.
    pub arrived: u64,
    /// Those of them that were not read.
    pub queued: u64,
    /// Whether a FIN counts among the first; None after a close that may have been a reset.
    pub fin: Option<bool>,
}

/// What has come in, and how much of it was not read.
pub fn received(fd: i32) -> Option<Received> {
    received_since(fd, &TcpInfo::of(fd)?)
}

/// As [`received`], with one system call less, for a caller that keeps other threads from reading
/// meanwhile; also all else that the kernel says of the connection. A FIN that arrives during the
/// call may be counted as a byte.
pub fn received_while_alone(fd: i32) -> Option<(Received, TcpInfo)> {
    let info = TcpInfo::of(fd)?;
    // If all has been read now, all had been before.
    if sys::ioctl_int(fd, libc::FIONREAD).ok()? == 0 {
        return Some((Received { arrived: info.arrived(), queued: 0, fin: info.has_fin() }, info));
    }
    received_since(fd, &info).map(|got| (got, info))
}

fn received_since(fd: i32, before: &TcpInfo) -> Option<Received> {
    // Bytes may arrive between the two calls: agree on the first before and after the second. The
    // kernel looks at the state before it looks at the count, so that only the second answer's
    // state is as new as the first one's count.
    let mut before = before.arrived();
    loop {
        let queued = sys::ioctl_int(fd, libc::FIONREAD).ok()? as u64;
        let after = TcpInfo::of(fd)?;
        let arrived = after.arrived();
        if before == arrived {
            return Some(Received { arrived, queued, fin: after.has_fin() });
        }
        before = arrived;
    }
}

/// Whether this end opened the connection: the kernel counts an acknowledged SYN there, and not
/// where the connection was accepted. None while the counts move, or if they are of neither kind.
pub fn opened(fd: i32) -> Option<bool> {
    counted(fd)?.ok()
}

/// The kernel's counts of what was sent contradict each other: it counts a packet that it could not send,
/// because of a rule that drops what goes out or a full queue, and counts it once more when it tries again.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Miscounted;

/// See `opened`; None while the counts move, or where they may not be asked for. At the end that opened
/// the connection one byte too many does not show.
pub fn counted(fd: i32) -> Option<Result<bool, Miscounted>> {
    let before = TcpInfo::of(fd)?;
    let unacked = sys::ioctl_int(fd, libc::TIOCOUTQ).ok()? as u64;
    let after = TcpInfo::of(fd)?;
    if (before.acked(), before.sent()) != (after.acked(), after.sent()) {
        return None;
    }
    Some(match (after.acked() + unacked).checked_sub(after.sent()) {
        Some(0) => Ok(false),
        Some(1) => Ok(true),
        _ => Err(Miscounted),
    })
}

/// Whether what was sent is certain to be counted wrong. Counts that move are looked at again a few times.
pub fn is_miscounted(fd: i32) -> bool {
    const LOOKS: usize = 8;
    (0..LOOKS).find_map(|_| counted(fd)).is_some_and(|counts| counts.is_err())
}

/// Whether rules of this machine have brought the connection here that was opened to another address
/// or port: by their names its two ends are not each other's, and either may be that of some other
/// connection's. Of one whose source was changed alone the kernel does not tell.
pub fn is_redirected(fd: i32, names: &[Addr; 2]) -> bool {
    /// Of netfilter, for both versions of IP. Not in the libc crate.
    const SO_ORIGINAL_DST: i32 = 80;
    let is_v4 = names[0].mapped()[..12] == MAPPED;
    let level = if is_v4 { libc::IPPROTO_IP } else { libc::IPPROTO_IPV6 };
    let mut raw = [0u8; 28];
    if sys::getsockopt(fd, level, SO_ORIGINAL_DST, &mut raw) <= 0 {
        return false;
    }
    // At the end that opened it that is its peer.
    let opened_to = Addr::of(&raw).map(|to| to.key());
    opened_to.is_some_and(|to| names.iter().all(|name| name.key() != to))
}

fn addr(fd: i32, peer: bool) -> Option<Addr> {
    Addr::of(&sys::name_of(fd, peer)?)
}
/// Local and peer address of a connected TCP socket.
pub fn names(fd: i32) -> Option<[Addr; 2]> {
    Some([addr(fd, false)?, addr(fd, true)?])
}

/// A socket address in the table: family, port and address as the kernel gives them.
#[repr(C)]
#[derive(Clone, Copy, Default, PartialEq, Eq)]
pub struct Addr {
    /// AF_INET or AF_INET6; 0 when not yet known.
    pub family: u16,
    /// Host order.
    pub port: u16,
    /// IPv4 in the first four bytes.
    pub ip: [u8; 16],
}

impl Addr {
    /// A socket address as the kernel writes it, filled up with zeros; None if it is of another
    /// family, or its interface matters.
    pub fn of(raw: &[u8; 28]) -> Option<Self> {
        let family = u16::from_ne_bytes([raw[0], raw[1]]);
        let port = u16::from_be_bytes([raw[2], raw[3]]);
        let mut ip = [0u8; 16];
        match i32::from(family) {
            libc::AF_INET => ip[..4].copy_from_slice(&raw[4..8]),
            // Link-local addresses need their interface to be unique; such a connection stays TCP.
            libc::AF_INET6 if raw[24..28] == [0; 4] => ip.copy_from_slice(&raw[8..24]),
            _ => return None,
        }
        Some(Addr { family, port, ip })
    }

    /// The address as IPv6, IPv4 mapped, so that both ends of a dual-stack connection name it
    /// alike.
    pub fn mapped(&self) -> [u8; 16] {
        if i32::from(self.family) == libc::AF_INET6 {
            return self.ip;
        }
        let mut ip = [0u8; 16];
        ip[10..12].fill(0xff);
        ip[12..].copy_from_slice(&self.ip[..4]);
        ip
    }

    /// 127/8, mapped or not, or ::1.
    pub fn is_loopback(&self) -> bool {
        let ip = self.mapped();
        (ip[..12] == MAPPED && ip[12] == 127) || ip == LOOPBACK6
    }

    /// Address and port, in the order that gives the two ends their roles.
    pub fn key(&self) -> [u8; 18] {
        let mut key = [0u8; 18];
        key[..16].copy_from_slice(&self.mapped());
        key[16..].copy_from_slice(&self.port.to_be_bytes());
        key
    }
}

const MAPPED: [u8; 12] = [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff];
const LOOPBACK6: [u8; 16] = [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1];

/// Whether a connection stays on this host: same address at both ends, or both loopback.
pub fn is_local(names: &[Addr; 2]) -> bool {
    let [a, b] = names;
    a.mapped() == b.mapped() || (a.is_loopback() && b.is_loopback())
}

/// The kernel's socket table cannot be asked: a sandbox forbids netlink.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct CannotAsk;

/// Asks the kernel's socket table who owns the socket at the other end of `names` (sock_diag, exact
/// lookup; needs no privilege). None when it is unknown or not yet accepted by anybody.
pub fn peer_uid(names: &[Addr; 2]) -> Result<Option<u32>, CannotAsk> {
    // The other end sees the pair reversed. It may be an IPv6 socket with mapped addresses, so both
    // families are asked.
    let [local, peer] = names;
    if local.mapped()[..12] == MAPPED
        && let Some(owner) = lookup(libc::AF_INET as u8, peer, local)?
    {
        return Ok(Some(owner));
    }
    lookup(libc::AF_INET6 as u8, peer, local)
}

fn lookup(family: u8, src: &Addr, dst: &Addr) -> Result<Option<u32>, CannotAsk> {
    // nlmsghdr (16) + inet_diag_req_v2 (56)
    let mut m = [0u8; 72];
    m[0..4].copy_from_slice(&72u32.to_ne_bytes());
    m[4..6].copy_from_slice(&20u16.to_ne_bytes()); // SOCK_DIAG_BY_FAMILY
    m[6..8].copy_from_slice(&1u16.to_ne_bytes()); // NLM_F_REQUEST
    m[16] = family;
    m[17] = libc::IPPROTO_TCP as u8;
    m[20..24].copy_from_slice(&u32::MAX.to_ne_bytes()); // all states
    m[24..26].copy_from_slice(&src.port.to_be_bytes());
    m[26..28].copy_from_slice(&dst.port.to_be_bytes());
    for (at, a) in [(28, src), (44, dst)] {
        if i32::from(family) == libc::AF_INET {
            m[at..at + 4].copy_from_slice(&a.mapped()[12..]);
        } else {
            m[at..at + 16].copy_from_slice(&a.mapped());
        }
    }
    m[64..72].fill(0xff); // INET_DIAG_NOCOOKIE
    const NETLINK_SOCK_DIAG: i32 = 4;
    let fd = sys::socket(libc::AF_NETLINK, libc::SOCK_RAW, NETLINK_SOCK_DIAG) as i32;
    if fd < 0 {
        return Err(CannotAsk);
    }
    let mut reply = [0u8; 1024];
    // SAFETY: the buffer is ours.
    unsafe { sys::send(fd, m.as_ptr(), m.len(), libc::MSG_NOSIGNAL) };
    // The kernel answers a netlink request before `send` returns.
    // SAFETY: the buffer is ours.
    let n = unsafe { sys::recv(fd, reply.as_mut_ptr(), reply.len(), libc::MSG_DONTWAIT) };
    sys::close(fd);
    if n < 16 {
        return Err(CannotAsk);
    }
    // nlmsghdr + inet_diag_msg: uid at 64, inode at 68 of the message behind the header.
    if n < 16 + 72 || u16::from_ne_bytes([reply[4], reply[5]]) != 20 {
        return Ok(None);
    }
    let word =
        |at: usize| u32::from_ne_bytes(reply[16 + at..16 + at + 4].try_into().unwrap_or_default());
    let (uid, inode) = (word(64), word(68));
    Ok((inode != 0).then_some(uid))
}

#[cfg(test)]
mod tests {
    extern crate std;
    use super::*;
    use std::io::{ErrorKind, Read, Write};
    use std::net::{TcpListener, TcpStream};
    use std::os::fd::AsRawFd;

    fn connected() -> (TcpStream, TcpStream) {
        let listener = TcpListener::bind(("127.0.0.1", 0)).unwrap();
        let near = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        (near, listener.accept().unwrap().0)
    }

    /// A low-water mark is waited for while there is room for what is missing, also on kernels
    /// that do not tell the window.
    #[test]
    fn a_window_that_is_not_told_is_computed() {
        let (mut near, mut far) = connected();
        let fd = near.as_raw_fd();
        let shut = |before_6_2: bool| {
            let mut info = TcpInfo::of(fd).unwrap();
            if before_6_2 {
                info.told = 232;
            } else if info.told < 236 {
                return None;
            }
            Some(info.nearly_shut(fd, sys::ioctl_int(fd, libc::FIONREAD).unwrap() as usize))
        };
        far.write_all(&[0; 30]).unwrap();
        near.peek(&mut [0; 30]).unwrap();
        assert_eq!(shut(true), Some(false));
        assert_ne!(shut(false), Some(true));
        far.set_nonblocking(true).unwrap();
        let full = loop {
            match far.write(&[0; 4096]) {
                Ok(sent) => assert!(sent > 0),
                Err(e) => break e.kind(),
            }
        };
        assert_eq!(full, ErrorKind::WouldBlock);
        assert_eq!(shut(true), Some(true));
        drop(far);
        near.read_to_end(&mut std::vec::Vec::new()).unwrap();
    }
}
