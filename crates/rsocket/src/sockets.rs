//! TCP sockets of programs that know nothing of rsockets, for `libshortwire_rspreload.so`: which of
//! them become rsockets, and when.
//!
//! Nothing happens to a socket until it listens, or connects to a listener that takes rsockets
//! (`beacon`). It then is one under its old number, which is that of the kernel's TCP socket all the
//! while. A listener also takes plain TCP clients, whose connections stay so: what they sent first
//! is no request of ours.
#![allow(unsafe_code)]

use crate::beacon::{self, Place};
use crate::socket::{self, Socket};
use crate::{hidden, kernel, set, table};
use rustix::fd::RawFd;
use shm::Errno;

/// Whether calls on that number are for the functions of [`crate::capi`].
#[inline]
pub fn is_rsocket(fd: RawFd) -> bool {
    table::find(fd).is_some()
}

/// Whether it is a set of `repoll`, made by this process.
pub fn is_set(fd: RawFd) -> bool {
    set::is_known(fd)
}

/// False in the child of a `vfork`, which has this process's memory and descriptors of its own.
pub fn is_own_process() -> bool {
    table::is_own_process()
}

/// Options that an rsocket has of its own; for others its TCP socket is asked.
pub fn is_its_option(level: i32, name: i32) -> bool {
    const NAMES: [i32; 5] =
        [libc::SO_ERROR, libc::SO_RCVBUF, libc::SO_SNDBUF, libc::SO_RCVTIMEO, libc::SO_SNDTIMEO];
    level == libc::SOL_SOCKET && NAMES.contains(&name)
}

fn option(fd: RawFd, name: i32) -> Option<i32> {
    let (mut value, mut len) = (0i32, size_of::<i32>() as u32);
    let at = (&raw mut value).cast();
    // SAFETY: a number, and its length.
    let asked = unsafe { kernel::getsockopt(fd, libc::SOL_SOCKET, name, at, &mut len) };
    (asked == 0).then_some(value)
}

/// Its domain, if it is a TCP socket.
fn domain(fd: RawFd) -> Option<i32> {
    // One question for what is no socket; a protocol of 0 is that of Unix sockets.
    (option(fd, libc::SO_PROTOCOL)? == libc::IPPROTO_TCP).then_some(())?;
    let domain = option(fd, libc::SO_DOMAIN)?;
    matches!(domain, libc::AF_INET | libc::AF_INET6).then_some(domain)
}

fn take_over(fd: RawFd, domain: i32) -> Option<&'static Socket> {
    let socket = socket::take_over(fd, domain).ok()?;
    set::taken_over(fd, socket);
    Some(socket)
}

/// As `listen`; None for what is no TCP socket, which is the kernel's.
pub fn listen(fd: RawFd, backlog: i32) -> Option<Result<(), Errno>> {
    let socket = match table::find(fd) {
        Some(socket) => socket,
        // Without room for another it serves plain TCP.
        None => take_over(fd, domain(fd)?)?,
    };
    let done = socket::listen(fd, backlog);
    if done.is_ok() {
        if let Some(beacon) = Place::of_socket(fd).and_then(|at| beacon::light(&at)) {
            socket.keep_beacon(hidden::park(beacon));
        }
        set::changed(fd);
    }
    Some(done)
}

/// As `accept4`, of an rsocket: another one, or a plain TCP connection.
///
/// # Safety
/// As `accept4`.
pub unsafe fn accept(
    fd: RawFd,
    addr: *mut libc::sockaddr,
    len: *mut u32,
    flags: i32,
) -> Result<RawFd, Errno> {
    // SAFETY: by the contract.
    let (fd, is_ours) = unsafe { socket::accept_either(fd, addr, len)? };
    let keeps = flags & libc::SOCK_CLOEXEC != 0;
    // SAFETY: no pointers.
    unsafe { kernel::fcntl(fd, libc::F_SETFD, if keeps { libc::FD_CLOEXEC.into() } else { 0 }) };
    if flags & libc::SOCK_NONBLOCK != 0 {
        match table::find(fd).filter(|_| is_ours) {
            Some(socket) => {
                socket.fcntl(libc::F_SETFL, libc::O_NONBLOCK.into())?;
            }
            // SAFETY: no pointers.
            None => unsafe {
                kernel::fcntl(fd, libc::F_SETFL, libc::O_NONBLOCK.into());
            },
        }
    }
    Ok(fd)
}

/// As `connect`; None where the kernel's is to be called: for what is no TCP socket, and to
/// listeners that do not take rsockets.
///
/// # Safety
/// As `connect`.
pub unsafe fn connect(
    fd: RawFd,
    addr: *const libc::sockaddr,
    len: u32,
) -> Option<Result<(), Errno>> {
    if !is_rsocket(fd) {
        // SAFETY: by the contract.
        let there = unsafe { Place::of(addr, len) }?;
        let domain = domain(fd)?;
        if !beacon::shines(&there) {
            return None;
        }
        take_over(fd, domain)?;
    }
    // SAFETY: by the contract.
    let done = unsafe { socket::connect(fd, addr, len) };
    set::changed(fd);
    Some(done)
}

/// Bytes that can be read without waiting.
pub fn waiting(fd: RawFd) -> Option<usize> {
    table::find(fd)?.streaming().map(crate::stream::Stream::available)
}

/// To be called where a process is about to end without its destructors: what it leaves open is to
/// end in order all the same.
pub fn before_exit() {
    socket::before_exit();
}

/// Whether it is a descriptor of the library's own, which the application has not opened.
pub fn is_hidden(fd: RawFd) -> bool {
    hidden::contains(fd) && is_own_process()
}

/// As `close_range`, which `call` does for a part of the range: around what is hidden. In the child of
/// a `vfork` all goes, which its exec would end as well.
pub fn close_range(first: u32, last: u32, call: impl Fn(u32, u32) -> i32) -> i32 {
    if first > last || !is_own_process() {
        return call(first, last);
    }
    close_all(first, last);
    let (mut from, mut done) = (first, 0);
    for fd in hidden::within(first, last) {
        if fd > from {
            done = call(from, fd - 1).min(done);
        }
        from = fd + 1;
    }
    if from <= last {
        done = call(from, last).min(done);
    }
    done
}

/// Closes the rsockets and sets of these numbers.
fn close_all(first: u32, last: u32) {
    let mut found = Vec::new();
    table::each_number(|fd| found.push(fd));
    found.extend(set::numbers());
    for fd in found.into_iter().filter(|fd| (first..=last).contains(&fd.cast_unsigned())) {
        let _ = set::close_any(fd);
    }
}

impl Socket {
    /// Closed with the listener.
    fn keep_beacon(&self, beacon: RawFd) {
        hidden::close(self.swap_beacon(beacon));
    }
}
