//! From opening to closing.
#![allow(unsafe_code)]

use super::{Meeting, Phase, Socket, Wait, verbs};
use crate::config::Provider;
use crate::shared::meet::{self, Answer};
use crate::stream::How;
use crate::{census, config, hidden, kernel, table};
use core::sync::atomic::Ordering;
use rustix::fd::{AsFd, BorrowedFd, FromRawFd, IntoRawFd, OwnedFd, RawFd};
use shm::Errno;
use std::time::{Duration, Instant};

/// AF_IB: addresses of InfiniBand without IP.
const AF_IB: i32 = 27;
/// The kernel completes a connection for `accept` only when its request has arrived, for at least
/// so long.
const DEFER: i32 = 1;

/// Runs a call of libc that returns -1 with errno.
fn check(result: i32) -> Result<i32, Errno> {
    if result >= 0 { Ok(result) } else { Err(last_error()) }
}

pub fn last_error() -> Errno {
    Errno::from_io_error(&std::io::Error::last_os_error()).unwrap_or(Errno::IO)
}

/// How long to poll before sleeping: not at all where no other processor could make the wait
/// shorter.
pub fn spin() -> Duration {
    let several = rustix::thread::sched_getaffinity(None).map_or(true, |set| set.count() > 1)
        || std::thread::available_parallelism().map_or(true, |n| n.get() > 1)
        || online() > 1;
    if several { config::defaults().polling } else { Duration::ZERO }
}

/// Processors of the machine: a process pinned to one may well have its peer on another.
fn online() -> i64 {
    // SAFETY: only asks.
    unsafe { libc::sysconf(libc::_SC_NPROCESSORS_ONLN) }
}

/// `rsocket`.
pub fn open(domain: i32, kind: i32, protocol: i32) -> Result<RawFd, Errno> {
    if domain == AF_IB {
        // There is no address of this family without hardware.
        return Err(Errno::AFNOSUPPORT);
    }
    let known = match kind {
        libc::SOCK_STREAM => protocol == 0 || protocol == libc::IPPROTO_TCP,
        libc::SOCK_DGRAM => protocol == 0 || protocol == libc::IPPROTO_UDP,
        _ => false,
    };
    if !known || !matches!(domain, libc::AF_INET | libc::AF_INET6) {
        return Err(Errno::NOTSUP);
    }
    if kind == libc::SOCK_STREAM && config::provider() != Provider::Shared {
        match verbs::open(domain) {
            Err(_) if config::provider() == Provider::VerbsOrShared => {}
            done => return done,
        }
    }
    // SAFETY: makes a new descriptor.
    let fd = check(unsafe { kernel::socket(domain, kind, protocol) })?;
    let phase = if kind == libc::SOCK_STREAM { Phase::Idle } else { Phase::Datagram };
    let socket = adopt(fd, domain, phase)?;
    if phase == Phase::Idle {
        socket.show(census::enter(Some(socket.kernel())));
    }
    Ok(fd)
}

/// Makes a kernel socket an rsocket; closes it if that fails.
pub(super) fn adopt(fd: RawFd, domain: i32, phase: Phase) -> Result<&'static Socket, Errno> {
    // SAFETY: new, and nobody else's.
    let guard = unsafe { OwnedFd::from_raw_fd(fd) };
    let socket = Socket::create(fd, domain, phase)?;
    table::insert(fd, socket).inspect_err(|_| table::release(socket))?;
    let _ = guard.into_raw_fd();
    Ok(socket)
}

/// Makes a TCP socket of the application's an rsocket that is not connected. It stays what it was if
/// that fails.
pub fn take_over(fd: RawFd, domain: i32) -> Result<&'static Socket, Errno> {
    // SAFETY: no pointers.
    let flags = check(unsafe { kernel::fcntl(fd, libc::F_GETFL, 0) })?;
    let socket = Socket::create(fd, domain, Phase::Idle)?;
    socket.status_flags.store(flags & !libc::O_ACCMODE | libc::O_RDWR, Ordering::Relaxed);
    socket.note_limits();
    table::insert(fd, socket).inspect_err(|_| table::release(socket))?;
    socket.show(census::enter(Some(socket.kernel())));
    Ok(socket)
}

/// Ends the TCP connection of a socket, which keeps its number, options and address.
pub(super) fn dissolve(fd: RawFd) {
    let none = libc::sockaddr { sa_family: libc::AF_UNSPEC as u16, sa_data: [0; 14] };
    // SAFETY: an address of our own. What is not connected has nothing to end.
    unsafe { kernel::connect(fd, &raw const none, size_of_val(&none) as u32) };
}

/// # Safety
/// `addr` points to `len` bytes, or is null.
pub unsafe fn bind(fd: RawFd, addr: *const libc::sockaddr, len: u32) -> Result<(), Errno> {
    let socket = table::get(fd)?;
    if !matches!(socket.phase(), Phase::Idle | Phase::Datagram) {
        return Err(Errno::INVAL);
    }
    if socket.is_verbs() {
        // SAFETY: by the contract.
        return unsafe { verbs::bind(socket, addr, len) };
    }
    // SAFETY: by the contract.
    check(unsafe { kernel::bind(fd, addr, len) }).map(drop)
}

pub fn listen(fd: RawFd, backlog: i32) -> Result<(), Errno> {
    let socket = table::get(fd)?;
    if !matches!(socket.phase(), Phase::Idle | Phase::Listening) {
        return Err(if socket.phase() == Phase::Datagram {
            Errno::OPNOTSUPP
        } else {
            Errno::INVAL
        });
    }
    if socket.is_verbs() {
        return verbs::listen(socket, backlog);
    }
    let value = core::ptr::from_ref(&DEFER);
    let option = libc::TCP_DEFER_ACCEPT;
    // SAFETY: the option is an int.
    check(unsafe {
        kernel::setsockopt(fd, libc::IPPROTO_TCP, option, value.cast(), size_of::<i32>() as u32)
    })?;
    // SAFETY: no pointers.
    check(unsafe { kernel::listen(fd, backlog) })?;
    socket.set_phase(Phase::Listening);
    Ok(())
}

/// The next connection whose peer speaks our protocol.
///
/// # Safety
/// As `accept`: null, or an address of `*len` bytes.
pub unsafe fn accept(fd: RawFd, addr: *mut libc::sockaddr, len: *mut u32) -> Result<RawFd, Errno> {
    let listener = table::get(fd)?;
    match listener.phase() {
        Phase::Listening => {}
        Phase::Datagram => return Err(Errno::OPNOTSUPP),
        _ => return Err(Errno::INVAL),
    }
    if listener.is_verbs() {
        let socket = verbs::accept(listener)?;
        if !addr.is_null() && !len.is_null() {
            // SAFETY: by the contract.
            unsafe { socket.name(true, addr, len)? };
        }
        return Ok(socket.raw());
    }
    // SAFETY: by the contract, here and below.
    let room = if len.is_null() { 0 } else { unsafe { len.read() } };
    let start = Instant::now();
    loop {
        listener.bear_with_strangers(start)?;
        if !len.is_null() {
            // SAFETY: as above. The call below changes it also for connections that are then
            // refused.
            unsafe { len.write(room) };
        }
        // SAFETY: as above.
        let fd = check(unsafe { kernel::accept4(fd, addr, len, libc::SOCK_CLOEXEC) })?;
        match take_in(listener, fd) {
            Ok(fd) => return Ok(fd),
            // Out of our means, which is for the application to know; else not one of us: the next.
            Err(e @ (Errno::MFILE | Errno::NFILE | Errno::NOMEM | Errno::NOBUFS)) => return Err(e),
            Err(_) => {}
        }
    }
}

/// The next connection, of our protocol or plain TCP, and whether it is ours.
///
/// # Safety
/// As `accept`.
pub unsafe fn accept_either(
    fd: RawFd,
    addr: *mut libc::sockaddr,
    len: *mut u32,
) -> Result<(RawFd, bool), Errno> {
    let listener = table::get(fd)?;
    if listener.phase() != Phase::Listening {
        return Err(Errno::INVAL);
    }
    // SAFETY: by the contract, here and below.
    let room = if len.is_null() { 0 } else { unsafe { len.read() } };
    let start = Instant::now();
    loop {
        listener.bear_with_strangers(start)?;
        if !len.is_null() {
            // SAFETY: as above.
            unsafe { len.write(room) };
        }
        // SAFETY: as above.
        let fd = check(unsafe { kernel::accept4(fd, addr, len, libc::SOCK_CLOEXEC) })?;
        // SAFETY: new, and nobody else's.
        if !meet::has_request(unsafe { BorrowedFd::borrow_raw(fd) }) {
            return Ok((fd, false));
        }
        match take_in(listener, fd) {
            Ok(fd) => return Ok((fd, true)),
            // As above.
            Err(e @ (Errno::MFILE | Errno::NFILE | Errno::NOMEM | Errno::NOBUFS)) => return Err(e),
            Err(_) => {}
        }
    }
}

fn take_in(listener: &Socket, fd: RawFd) -> Result<RawFd, Errno> {
    let socket = Socket::create(fd, listener.domain, Phase::Accepting);
    // SAFETY: new, and nobody else's.
    let guard = unsafe { OwnedFd::from_raw_fd(fd) };
    let socket = socket?;
    // Like a kernel socket of `rsocket`, it stays open over exec, where nothing can be done with
    // it.
    let _ = rustix::io::fcntl_setfd(&guard, rustix::io::FdFlags::empty());
    socket.inherit(listener);
    // Its memory is given back: whoever connects and is refused, as often as it likes, would else
    // take a mapping of this process each time, until there are no more.
    take_in_as(socket, fd).inspect_err(|_| table::release(socket))?;
    socket.show(census::enter(Some(guard.as_fd())));
    Ok(guard.into_raw_fd())
}

/// Answers the peer, and makes the socket known by its number.
fn take_in_as(socket: &'static Socket, fd: RawFd) -> Result<(), Errno> {
    let answer = Answer::send(socket.kernel(), socket.config())?;
    // SAFETY: nobody else knows the socket yet.
    unsafe { *socket.meeting.get() = Meeting::Answer(answer) };
    table::insert(fd, socket).inspect_err(|e| socket.give_up(*e))
}

/// # Safety
/// `addr` points to `len` bytes, or is null.
pub unsafe fn connect(fd: RawFd, addr: *const libc::sockaddr, len: u32) -> Result<(), Errno> {
    let socket = table::get(fd)?;
    let start = Instant::now();
    match socket.phase() {
        // SAFETY: by the contract.
        Phase::Datagram => return check(unsafe { kernel::connect(fd, addr, len) }).map(drop),
        Phase::Idle => {}
        Phase::Streaming => return Err(Errno::ISCONN),
        Phase::Connecting | Phase::Requested | Phase::Accepting => {
            return match socket.advance(socket.wait_to_connect(start)) {
                Err(Errno::AGAIN) => Err(Errno::ALREADY),
                other => other,
            };
        }
        Phase::Listening => return Err(Errno::INVAL),
        Phase::Failed => socket.start_anew()?,
        Phase::Closed => return Err(Errno::BADF),
    }
    {
        let _held = socket.setup.lock().map_err(|_| Errno::AGAIN)?;
        if socket.phase() != Phase::Idle {
            return Err(Errno::ALREADY);
        }
        if socket.is_verbs() {
            // SAFETY: by the contract, and under `setup`.
            unsafe { verbs::connect(socket, addr, len)? };
        } else {
            // SAFETY: by the contract. The kernel's socket is nonblocking if the application wants
            // it so.
            match check(unsafe { kernel::connect(fd, addr, len) }) {
                // Interrupted, it goes on by itself, as POSIX has it.
                Ok(_) | Err(Errno::INPROGRESS) => socket.set_phase(Phase::Connecting),
                Err(Errno::INTR) => {
                    socket.set_phase(Phase::Connecting);
                    return Err(Errno::INTR);
                }
                Err(e) => return Err(e),
            }
        }
    }
    match socket.advance(socket.wait_to_connect(start)) {
        Err(Errno::AGAIN) => Err(Errno::INPROGRESS),
        other => other,
    }
}

pub fn shutdown(fd: RawFd, how: i32) -> Result<(), Errno> {
    let how = match how {
        libc::SHUT_RD => How::Read,
        libc::SHUT_WR => How::Write,
        libc::SHUT_RDWR => How::Both,
        _ => return Err(Errno::INVAL),
    };
    let socket = table::get(fd)?;
    if socket.phase() == Phase::Accepting {
        // The peer cannot be told before it has introduced itself; it does so at once.
        match socket.advance(Wait::of(!socket.is_nonblocking())) {
            Err(Errno::AGAIN) => {
                if socket.ends_once_begun(how) {
                    return Ok(());
                }
            }
            done => done?,
        }
    }
    match socket.phase() {
        Phase::Streaming => socket.streaming().map_or(Ok(()), |stream| stream.shutdown(how)),
        // Of a listener, too: who waits in an accept gets EINVAL, as from TCP.
        Phase::Listening if socket.is_verbs() => Err(Errno::NOTCONN),
        Phase::Datagram | Phase::Listening => {
            // SAFETY: no pointers.
            check(unsafe { kernel::shutdown(fd, how as i32) }).map(drop)
        }
        _ => Err(Errno::NOTCONN),
    }
}

/// Ends the socket, for the last process that has it also the connection. Data sent before still
/// arrives.
pub fn close(fd: RawFd) -> Result<(), Errno> {
    let socket = table::remove(fd).ok_or(Errno::BADF)?;
    let last = socket.is_last();
    if last && socket.phase() == Phase::Accepting {
        let _ = socket.advance(Wait::Not);
    }
    if let Some(stream) = socket.streaming() {
        // In front of the end, behind which nobody waits for a peer that is writing; and also where a
        // child goes on with the connection: a buffer is the memory of the process that has mapped it,
        // which will use it for other things.
        if last || stream.endpoint.was_met_here() {
            stream.unmap_all();
        }
        if last {
            let _ = stream.shutdown(How::Both);
            stream.quiesce();
        }
        stream.endpoint.close(last);
    } else if let Ok(_held) = socket.setup.lock() {
        if last && !socket.is_elsewhere() { socket.give_up(Errno::BADF) } else { socket.leave() }
    }
    if last {
        socket.set_phase(Phase::Closed);
        verbs::close(socket);
        census::leave(socket.row());
    }
    socket.release_private();
    // Each process that has the listener has a descriptor of it, and closes it once.
    hidden::close(socket.beacon.load(Ordering::Relaxed));
    // SAFETY: the kernel's socket under our number, which the application gives up.
    unsafe { kernel::close(fd) };
    table::release(socket);
    Ok(())
}

impl Socket {
    /// EAGAIN for a call that does not wait, once strangers have cost it more than one of them may:
    /// who goes on connecting would never let it return.
    fn bear_with_strangers(&self, since: Instant) -> Result<(), Errno> {
        const PATIENCE: Duration = Duration::from_millis(200);
        if self.is_nonblocking() && since.elapsed() >= PATIENCE {
            Err(Errno::AGAIN)
        } else {
            Ok(())
        }
    }

    pub(super) fn inherit(&self, listener: &Self) {
        let (to, from) = (&self.options, &listener.options);
        for (to, from) in [
            (&to.sq, &from.sq),
            (&to.rq, &from.rq),
            (&to.sbuf, &from.sbuf),
            (&to.rbuf, &from.rbuf),
            (&to.inline, &from.inline),
            (&to.iomaps, &from.iomaps),
        ] {
            to.store(from.load(Ordering::Relaxed), Ordering::Relaxed);
        }
        for (to, from) in to.limits.iter().zip(&from.limits) {
            to.store(from.load(Ordering::Relaxed), Ordering::Relaxed);
        }
    }

    /// This process's mapping of it: others have their own.
    fn release_private(&self) {
        let private = self.private.load(Ordering::Relaxed);
        if !private.is_null() && table::is_here(self.begun.load(Ordering::Relaxed)) {
            table::unmap_later(private, self.private_len.load(Ordering::Relaxed) as usize);
        }
    }
}
