//! Calls that move data: which socket, which flags, and whether to wait.
#![allow(unsafe_code)]

use super::lifecycle::last_error;
use super::{Phase, Socket, Wait, datagram};
use crate::provider::Any;
use crate::stream::{RecvOptions, Stream};
use crate::{kernel, table};
use core::ptr::null;
use rustix::fd::RawFd;
use shm::Errno;
use std::time::{Duration, Instant};

/// Flags that mean nothing here, or what happens anyway.
const HARMLESS: i32 =
    libc::MSG_NOSIGNAL | libc::MSG_MORE | libc::MSG_DONTROUTE | libc::MSG_CONFIRM | libc::MSG_EOR;

impl Socket {
    fn blocks(&self, flags: i32) -> bool {
        !self.is_nonblocking() && flags & libc::MSG_DONTWAIT == 0
    }

    fn is_datagram(&self) -> bool {
        self.phase() == Phase::Datagram
    }
}

/// Calls what does not wait until it has something, for so long since `start`.
fn within(
    stream: &Stream<Any>,
    events: i16,
    (start, limit): (Instant, Duration),
    mut now: impl FnMut() -> Result<usize, Errno>,
) -> Result<usize, Errno> {
    loop {
        match now() {
            Err(Errno::AGAIN) => {}
            done => return done,
        }
        let left = limit.saturating_sub(start.elapsed());
        if left.is_zero() {
            return Err(Errno::AGAIN);
        }
        sleep(stream, events, left)?;
    }
}

/// Until there is one of the events, or for so long.
fn sleep(stream: &Stream<Any>, events: i16, limit: Duration) -> Result<(), Errno> {
    if stream.poll_enter(events) != 0 {
        return Ok(());
    }
    let limit = libc::timespec {
        tv_sec: limit.as_secs().min(i64::MAX as u64) as i64,
        tv_nsec: limit.subsec_nanos().into(),
    };
    let mut one = [libc::pollfd { fd: stream.event_fd(), events: libc::POLLIN, revents: 0 }];
    // SAFETY: an entry, and a time.
    let slept = unsafe { kernel::ppoll(one.as_mut_ptr(), 1, &raw const limit, null()) };
    let error = last_error();
    stream.poll_leave(one[0].revents != 0);
    if slept < 0 { Err(error) } else { Ok(()) }
}

/// What is left of buffers behind their first bytes.
fn behind<P: Copy>(
    bufs: &[(P, usize)],
    mut bytes: usize,
    from: fn(P, usize) -> P,
) -> Vec<(P, usize)> {
    let rest = bufs.iter().map(|&(at, len)| {
        let skipped = bytes.min(len);
        bytes -= skipped;
        (from(at, skipped), len - skipped)
    });
    rest.filter(|(_, len)| *len > 0).collect()
}

/// A send that may wait for so long: how much of it was done by then.
///
/// # Safety
/// Each buffer is readable.
#[cold]
unsafe fn send_within(
    socket: &Socket,
    bufs: &[(*const u8, usize)],
    limit: Duration,
) -> Result<usize, Errno> {
    let (start, mut done) = (Instant::now(), 0);
    let stream = socket.stream(Wait::within(start, Some(limit)))?;
    let total = bufs.iter().map(|buf| buf.1).sum::<usize>();
    loop {
        let rest = behind(bufs, done, |at: *const u8, n| at.wrapping_add(n));
        // SAFETY: by the contract.
        let now = || unsafe { stream.send(&rest, false) };
        match within(stream, libc::POLLOUT, (start, limit), now) {
            Ok(n) => done += n,
            Err(e) => return if done > 0 { Ok(done) } else { Err(e) },
        }
        if done >= total {
            return Ok(done);
        }
    }
}

/// A receive that may wait for so long.
///
/// # Safety
/// Each buffer is writable.
#[cold]
unsafe fn recv_within(
    socket: &Socket,
    bufs: &[(*mut u8, usize)],
    options: RecvOptions,
    limit: Duration,
) -> Result<usize, Errno> {
    let (start, mut done) = (Instant::now(), 0);
    let stream = socket.stream(Wait::within(start, Some(limit)))?;
    let total = bufs.iter().map(|buf| buf.1).sum::<usize>();
    let at_once = RecvOptions { block: false, wait_all: false, ..options };
    loop {
        let rest = behind(bufs, done, |at: *mut u8, n| at.wrapping_add(n));
        // SAFETY: by the contract.
        let now = || unsafe { stream.recv(&rest, at_once) };
        match within(stream, libc::POLLIN, (start, limit), now) {
            Ok(0) => return Ok(done),
            Ok(n) => done += n,
            Err(e) => return if done > 0 { Ok(done) } else { Err(e) },
        }
        if !options.wait_all || options.peek || done >= total {
            return Ok(done);
        }
    }
}

/// # Safety
/// Each buffer is readable.
#[inline]
pub unsafe fn send(fd: RawFd, bufs: &[(*const u8, usize)], flags: i32) -> Result<usize, Errno> {
    let socket = table::get(fd)?;
    let block = socket.blocks(flags);
    if let Some(limit) = socket.limit(block, true)
        && flags & !(HARMLESS | libc::MSG_WAITALL) == 0
        && !socket.is_datagram()
    {
        // SAFETY: by the contract.
        return unsafe { send_within(socket, bufs, limit) };
    }
    if let Some(stream) = socket.streaming()
        && flags & !(HARMLESS | libc::MSG_DONTWAIT | libc::MSG_WAITALL) == 0
    {
        // SAFETY: by the contract.
        return unsafe { stream.send(bufs, block) };
    }
    if socket.is_datagram() {
        // SAFETY: by the contract.
        return unsafe { datagram::send(socket, bufs, flags, None) };
    }
    if flags & !(HARMLESS | libc::MSG_DONTWAIT | libc::MSG_WAITALL) != 0 {
        return Err(Errno::OPNOTSUPP);
    }
    // SAFETY: by the contract.
    unsafe { socket.stream(Wait::of(block))?.send(bufs, block) }
}

/// # Safety
/// Each buffer is readable, and so is the address.
pub unsafe fn send_to(
    fd: RawFd,
    bufs: &[(*const u8, usize)],
    flags: i32,
    to: Option<(*const libc::sockaddr, u32)>,
) -> Result<usize, Errno> {
    let socket = table::get(fd)?;
    if socket.is_datagram() {
        // SAFETY: by the contract.
        return unsafe { datagram::send(socket, bufs, flags, to) };
    }
    if to.is_some() {
        return Err(Errno::ISCONN);
    }
    // SAFETY: by the contract.
    unsafe { send(fd, bufs, flags) }
}

/// # Safety
/// Each buffer is writable.
#[inline]
pub unsafe fn recv(fd: RawFd, bufs: &[(*mut u8, usize)], flags: i32) -> Result<usize, Errno> {
    let socket = table::get(fd)?;
    let block = socket.blocks(flags);
    if socket.is_datagram() {
        let nobody = (core::ptr::null_mut(), core::ptr::null_mut());
        // SAFETY: by the contract.
        return unsafe { datagram::recv(socket, bufs, flags, nobody.0, nobody.1) }.map(|got| got.0);
    }
    if flags & !(HARMLESS | libc::MSG_DONTWAIT | libc::MSG_WAITALL | libc::MSG_PEEK) != 0 {
        return Err(Errno::OPNOTSUPP);
    }
    let options = RecvOptions {
        block,
        peek: flags & libc::MSG_PEEK != 0,
        wait_all: flags & libc::MSG_WAITALL != 0 && block,
    };
    if let Some(limit) = socket.limit(block, false) {
        // SAFETY: by the contract.
        return unsafe { recv_within(socket, bufs, options, limit) };
    }
    // SAFETY: by the contract.
    unsafe { socket.stream(Wait::of(block))?.recv(bufs, options) }
}

/// The length, and the flags of the message.
///
/// # Safety
/// Each buffer is writable; `addr` is null, or writable for `*len` bytes.
pub unsafe fn recv_from(
    fd: RawFd,
    bufs: &[(*mut u8, usize)],
    flags: i32,
    addr: *mut libc::sockaddr,
    len: *mut u32,
) -> Result<(usize, i32), Errno> {
    let socket = table::get(fd)?;
    if socket.is_datagram() {
        // SAFETY: by the contract.
        return unsafe { datagram::recv(socket, bufs, flags, addr, len) };
    }
    // SAFETY: by the contract.
    let n = unsafe { recv(fd, bufs, flags)? };
    if n > 0 && !addr.is_null() && !len.is_null() {
        // SAFETY: by the contract.
        let _ = unsafe { socket.name(true, addr, len) };
    }
    Ok((n, 0))
}

/// A direct write into what the peer has mapped.
///
/// # Safety
/// `buf` is readable for `len` bytes.
pub unsafe fn write_mapped(
    fd: RawFd,
    buf: *const u8,
    len: usize,
    offset: i64,
    flags: i32,
) -> Result<usize, Errno> {
    let socket = table::get(fd)?;
    let block = socket.blocks(flags);
    let offset = u64::try_from(offset).map_err(|_| Errno::INVAL)?;
    // SAFETY: by the contract.
    unsafe { socket.stream(Wait::of(block))?.write_mapped(buf, len, offset, block) }
}

/// `riomap`: opens a buffer of the application to the peer.
pub fn map(fd: RawFd, buf: *mut u8, len: usize, prot: i32, offset: i64) -> Result<i64, Errno> {
    let socket = table::get(fd)?;
    if prot & !libc::PROT_WRITE != 0 || offset < -1 {
        return Err(Errno::INVAL);
    }
    let stream = socket.stream_soon()?;
    let offset = u64::try_from(offset).ok();
    stream.map(buf, len, prot & libc::PROT_WRITE != 0, offset).map(|offset| offset as i64)
}

pub fn unmap(fd: RawFd, buf: *mut u8, len: usize) -> Result<(), Errno> {
    table::get(fd)?.streaming().ok_or(Errno::INVAL)?.unmap(buf, len)
}
