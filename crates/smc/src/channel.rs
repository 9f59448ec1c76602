//! The rendezvous channel: one SOCK_SEQPACKET message per CLC message, with the memfd of an arena
//! beside it where the peer needs it.
//!
//! The name is made of the connection's two addresses and lies in the abstract namespace, which
//! belongs to the network namespace as the addresses do. It vanishes with its process: nothing to
//! clean up. Where the ends are in different network namespaces the socket lies in a directory that
//! both see (`directory.rs`); to another guest it is a TCP connection (`stream`).
#![allow(unsafe_code)]

pub mod stream;

use crate::inet::Addr;
use crate::sys;

/// Most a message may have: the largest CLC message and what the handshake puts behind it.
pub const MAX: usize = 720;

/// Why no socket is to be had.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum NoSocket {
    /// Nobody listens there.
    Refused,
    /// Nobody has come yet, or who listens has others waiting.
    NotYet,
    /// Somebody else has the name.
    Taken,
    /// There are as many descriptors as there may be.
    NoRoom,
    /// Something else.
    Failed,
}

impl NoSocket {
    pub(crate) fn of(errno: i32) -> NoSocket {
        match errno {
            libc::ECONNREFUSED => NoSocket::Refused,
            libc::EAGAIN | libc::EINTR | libc::ECONNABORTED => NoSocket::NotYet,
            libc::EADDRINUSE => NoSocket::Taken,
            libc::EMFILE | libc::ENFILE => NoSocket::NoRoom,
            _ => NoSocket::Failed,
        }
    }
}

/// Why no message is to be had.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Silence {
    /// None has come yet.
    Nothing,
    /// The other end has hung up.
    HungUp,
    /// What came is no message, or the channel cannot be used here.
    Unusable,
}

impl Silence {
    fn of(errno: isize) -> Silence {
        match errno as i32 {
            libc::EAGAIN => Silence::Nothing,
            libc::ECONNRESET => Silence::HungUp,
            _ => Silence::Unusable,
        }
    }
}

/// Who is at the other end, as the kernel vouches.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Cred {
    /// Its pid in our pid namespace, 0 if it has none there.
    pub pid: i32,
    /// Its effective user.
    pub uid: u32,
    /// What tells it from other processes where it has no pid here: the kernel's number for its
    /// pidfd, else 0.
    pub id: u64,
}

impl Cred {
    /// A process of another guest: that it shares the bar is all that is known.
    pub const ELSEWHERE: Cred = Cred { pid: 0, uid: u32::MAX, id: u64::MAX };

    /// Whether it is on another machine.
    pub fn is_elsewhere(self) -> bool {
        self == Cred::ELSEWHERE
    }

    /// Whether two of the same credentials are one process. One without pid or number could be any
    /// of its user's.
    pub fn is_one_process(self) -> bool {
        self.pid > 0 || self.id != 0
    }
}

/// Prefix of every rendezvous name, after the leading NUL.
pub const PREFIX: &[u8] = b"shortwire/2/";

/// `sockaddr_un` of the rendezvous for a connection: the lower end first.
fn address(low: &Addr, high: &Addr) -> ([u8; 110], u32) {
    let mut raw = [0u8; 110];
    raw[..2].copy_from_slice(&(libc::AF_UNIX as u16).to_ne_bytes());
    let mut at = 3;
    raw[at..at + PREFIX.len()].copy_from_slice(PREFIX);
    at += PREFIX.len();
    for byte in low.key().iter().chain(&high.key()) {
        const HEX: &[u8; 16] = b"0123456789abcdef";
        raw[at] = HEX[usize::from(byte >> 4)];
        raw[at + 1] = HEX[usize::from(byte & 15)];
        at += 2;
    }
    (raw, at as u32)
}

fn socket() -> Result<i32, NoSocket> {
    let fd = check(sys::socket(libc::AF_UNIX, libc::SOCK_SEQPACKET | libc::SOCK_NONBLOCK, 0))?;
    pass_rights(fd, 0);
    Ok(fd)
}

/// SO_PASSRIGHTS of Linux 6.16, which an accepted socket has from its listener; older kernels know
/// no such option.
fn pass_rights(fd: i32, on: i32) -> bool {
    const SO_PASSRIGHTS: i32 = 83;
    sys::setsockopt(fd, libc::SOL_SOCKET, SO_PASSRIGHTS, &on) == 0
}

/// Keeps the other end of a Unix socket from passing descriptors; false if the kernel does not know
/// how.
pub fn refuse_descriptors(fd: i32) -> bool {
    pass_rights(fd, 0)
}

/// Lets the other end, once it was admitted, pass a descriptor. From strangers none is taken:
/// whoever gets one must close it, read or unread, and the last close of some (a socket that
/// lingers, a file of a user's own file system) takes as long as the sender likes.
pub fn take_descriptors(fd: i32) {
    pass_rights(fd, 1);
}

fn check(r: isize) -> Result<i32, NoSocket> {
    if r < 0 { Err(NoSocket::of(-r as i32)) } else { Ok(r as i32) }
}

/// Bytes that a call has read; none are the end.
fn heard(r: isize) -> Result<usize, Silence> {
    match r {
        0 => Err(Silence::HungUp),
        1.. => Ok(r as usize),
        _ => Err(Silence::of(-r)),
    }
}

/// Binds and listens under the connection's name; the hidden descriptor.
pub fn listen(low: &Addr, high: &Addr) -> Result<i32, NoSocket> {
    listen_at(&address(low, high))
}

/// Binds and listens at this address.
pub(crate) fn listen_at((raw, len): &([u8; 110], u32)) -> Result<i32, NoSocket> {
    let fd = socket()?;
    let r = match sys::bind(fd, &raw[..*len as usize]) {
        0 => sys::listen(fd, 1),
        e => e,
    };
    park(fd, r)
}

/// Connects to the connection's name.
pub fn connect(low: &Addr, high: &Addr) -> Result<i32, NoSocket> {
    connect_to(&address(low, high))
}

/// Connects to whoever listens at this address.
pub(crate) fn connect_to((raw, len): &([u8; 110], u32)) -> Result<i32, NoSocket> {
    let fd = socket()?;
    park(fd, sys::connect(fd, &raw[..*len as usize]))
}

/// Takes the one connection.
pub fn accept(listener: i32) -> Result<i32, NoSocket> {
    check(sys::accept(listener)).map(crate::hidden::park)
}

fn park(fd: i32, r: isize) -> Result<i32, NoSocket> {
    if r < 0 {
        sys::close(fd);
        return Err(NoSocket::of(-r as i32));
    }
    Ok(crate::hidden::park(fd))
}

/// Credentials of the process at the other end when it connected or listened.
pub fn peer(fd: i32) -> Option<Cred> {
    let mut c = libc::ucred { pid: 0, uid: u32::MAX, gid: u32::MAX };
    let known = sys::getsockopt(fd, libc::SOL_SOCKET, libc::SO_PEERCRED, &mut c) > 0;
    known.then(|| Cred {
        pid: c.pid,
        uid: c.uid,
        id: if c.pid == 0 { pidfd_number(fd) } else { 0 },
    })
}

/// The number of the pidfd of the process at the other end: from Linux 6.9 on each process has its
/// own, in all pid namespaces the same. 0 where it cannot be told.
fn pidfd_number(fd: i32) -> u64 {
    const SO_PEERPIDFD: i32 = 77;
    const PID_FS_MAGIC: i64 = 0x5049_4446;
    let mut pidfd = -1i32;
    if sys::getsockopt(fd, libc::SOL_SOCKET, SO_PEERPIDFD, &mut pidfd) < 0 || pidfd < 0 {
        return 0;
    }
    // Before, all pidfds were one anonymous inode.
    let own = sys::file_system_of(pidfd) == Some(PID_FS_MAGIC);
    let number = if own { sys::stat(pidfd).map_or(0, |st| st.st_ino) } else { 0 };
    sys::close(pidfd);
    number
}

#[repr(C, align(8))]
struct Control([u8; 64]);

/// Sends one message, with a descriptor if one is given; false if it cannot be. Never waits.
#[must_use]
pub fn send(fd: i32, message: &[u8], pass: Option<i32>) -> bool {
    let iov = libc::iovec { iov_base: message.as_ptr().cast_mut().cast(), iov_len: message.len() };
    let mut control = Control([0; 64]);
    // SAFETY: all-zero is a valid msghdr.
    let mut msg: libc::msghdr = unsafe { core::mem::zeroed() };
    msg.msg_iov = (&raw const iov).cast_mut();
    msg.msg_iovlen = 1;
    if let Some(pass) = pass {
        // cmsghdr on Linux: length, level, type; data behind 16 bytes.
        control.0[..8].copy_from_slice(&20usize.to_ne_bytes());
        control.0[8..12].copy_from_slice(&libc::SOL_SOCKET.to_ne_bytes());
        control.0[12..16].copy_from_slice(&libc::SCM_RIGHTS.to_ne_bytes());
        control.0[16..20].copy_from_slice(&pass.to_ne_bytes());
        msg.msg_control = control.0.as_mut_ptr().cast();
        msg.msg_controllen = 24;
    }
    let flags = libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL;
    // SAFETY: `msg` and what it points to are live.
    unsafe { sys::sendmsg(fd, &raw const msg, flags) >= 0 }
}

/// Receives one message and the descriptor that came with it, if any. Never waits. More than one
/// descriptor, or a message that is too long, is an error and leaves nothing open.
pub fn recv(fd: i32, out: &mut [u8; MAX]) -> Result<(usize, Option<i32>), Silence> {
    let iov = libc::iovec { iov_base: out.as_mut_ptr().cast(), iov_len: out.len() };
    let mut control = Control([0; 64]);
    // SAFETY: all-zero is a valid msghdr.
    let mut msg: libc::msghdr = unsafe { core::mem::zeroed() };
    msg.msg_iov = (&raw const iov).cast_mut();
    msg.msg_iovlen = 1;
    msg.msg_control = control.0.as_mut_ptr().cast();
    msg.msg_controllen = control.0.len();
    let flags = libc::MSG_DONTWAIT | libc::MSG_CMSG_CLOEXEC;
    // SAFETY: `msg` and what it points to are live.
    let r = unsafe { sys::recvmsg(fd, &raw mut msg, flags) };
    if r < 0 {
        return Err(Silence::of(-r));
    }
    let word = |at: usize| i32::from_ne_bytes(control.0[at..at + 4].try_into().unwrap_or_default());
    let mut passed = None;
    let mut extra = false;
    if msg.msg_controllen >= 20 && word(8) == libc::SOL_SOCKET && word(12) == libc::SCM_RIGHTS {
        let len = usize::from_ne_bytes(control.0[..8].try_into().unwrap_or_default()).min(64);
        for at in (16..len.saturating_sub(3)).step_by(4) {
            if passed.replace(word(at)).is_some_and(|old| sys::close(old) == 0) {
                extra = true;
            }
        }
    }
    let is_cut = msg.msg_flags & (libc::MSG_TRUNC | libc::MSG_CTRUNC) != 0;
    let n = if extra || is_cut { Err(Silence::Unusable) } else { heard(r) };
    if n.is_err()
        && let Some(fd) = passed
    {
        sys::close(fd);
    }
    Ok((n?, passed))
}

/// Looks at the next message, and leaves it there.
pub fn peek(fd: i32, out: &mut [u8; MAX]) -> Result<usize, Silence> {
    // SAFETY: the buffer is ours.
    heard(unsafe {
        sys::recv(fd, out.as_mut_ptr(), out.len(), libc::MSG_PEEK | libc::MSG_DONTWAIT)
    })
}
