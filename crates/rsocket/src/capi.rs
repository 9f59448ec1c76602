//! The C interface: the names and semantics of `rdma/rsocket.h`. Errors are -1 and errno.
#![allow(unsafe_code)]

mod resolve;
mod transfer;

pub use resolve::*;
pub use transfer::*;

use crate::poll::Selected;
use crate::{poll, set, socket, table};
use core::ffi::{c_int, c_long, c_ulong, c_void};
use core::ptr::null;
use libc::{fd_set, nfds_t, pollfd, sigset_t, sockaddr, socklen_t, timeval};
use shm::Errno;
use std::time::{Duration, Instant};

fn set_errno(e: Errno) {
    // SAFETY: it has no obligation.
    let place = unsafe { libc::__errno_location() };
    // SAFETY: the thread's own errno.
    unsafe { *place = e.raw_os_error() };
}

fn status(result: Result<(), Errno>) -> c_int {
    number(result.map(|()| 0))
}

fn number(result: Result<c_int, Errno>) -> c_int {
    result.unwrap_or_else(|e| {
        set_errno(e);
        -1
    })
}

/// A new rsocket, as `socket` makes one: a descriptor that only the calls of this interface know
/// how to use.
#[unsafe(no_mangle)]
pub extern "C" fn rsocket(domain: c_int, kind: c_int, protocol: c_int) -> c_int {
    number(socket::open(domain, kind, protocol))
}

/// # Safety
/// As `bind`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rbind(fd: c_int, addr: *const sockaddr, len: socklen_t) -> c_int {
    // SAFETY: the caller's obligation, as for the function of the kernel; so in this whole file.
    status(unsafe { socket::bind(fd, addr, len) })
}

/// As `listen`: connections arrive at `raccept` from now on.
#[unsafe(no_mangle)]
pub extern "C" fn rlisten(fd: c_int, backlog: c_int) -> c_int {
    let done = socket::listen(fd, backlog);
    set::changed(fd);
    status(done)
}

/// # Safety
/// As `accept`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn raccept(fd: c_int, addr: *mut sockaddr, len: *mut socklen_t) -> c_int {
    let (addr, len) = if addr.is_null() || len.is_null() {
        (core::ptr::null_mut(), core::ptr::null_mut())
    } else {
        (addr, len)
    };
    // SAFETY: as above.
    number(unsafe { socket::accept(fd, addr, len) })
}

/// # Safety
/// As `connect`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rconnect(fd: c_int, addr: *const sockaddr, len: socklen_t) -> c_int {
    // SAFETY: as above.
    let done = unsafe { socket::connect(fd, addr, len) };
    set::changed(fd);
    status(done)
}

/// As `shutdown`. What was sent before still arrives.
#[unsafe(no_mangle)]
pub extern "C" fn rshutdown(fd: c_int, how: c_int) -> c_int {
    status(socket::shutdown(fd, how))
}

/// As `close`; the connection ends when the last descriptor of it does. Also of `repoll_create`.
#[unsafe(no_mangle)]
pub extern "C" fn rclose(fd: c_int) -> c_int {
    status(set::close_any(fd))
}

/// # Safety
/// As `getpeername`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rgetpeername(
    fd: c_int,
    addr: *mut sockaddr,
    len: *mut socklen_t,
) -> c_int {
    // SAFETY: as above.
    unsafe { name(fd, true, addr, len) }
}

/// # Safety
/// As `getsockname`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rgetsockname(
    fd: c_int,
    addr: *mut sockaddr,
    len: *mut socklen_t,
) -> c_int {
    // SAFETY: as above.
    unsafe { name(fd, false, addr, len) }
}

/// # Safety
/// As `getsockname`.
unsafe fn name(fd: c_int, peer: bool, addr: *mut sockaddr, len: *mut socklen_t) -> c_int {
    status(table::get(fd).and_then(|socket| {
        if addr.is_null() || len.is_null() {
            return Err(Errno::FAULT);
        }
        // SAFETY: as above.
        unsafe { socket.name(peer, addr, len) }
    }))
}

/// # Safety
/// `value` is readable for `len` bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rsetsockopt(
    fd: c_int,
    level: c_int,
    option: c_int,
    value: *const c_void,
    len: socklen_t,
) -> c_int {
    status(table::get(fd).and_then(|socket| {
        if value.is_null() {
            return Err(Errno::FAULT);
        }
        // SAFETY: as above; not changed during the call.
        let value = unsafe { core::slice::from_raw_parts(value.cast::<u8>(), len as usize) };
        socket.set_option(level, option, value)
    }))
}

/// # Safety
/// `value` is writable for `*len` bytes, and `len` for one number.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rgetsockopt(
    fd: c_int,
    level: c_int,
    option: c_int,
    value: *mut c_void,
    len: *mut socklen_t,
) -> c_int {
    status(table::get(fd).and_then(|socket| {
        if value.is_null() || len.is_null() {
            return Err(Errno::FAULT);
        }
        // SAFETY: as above.
        let room = unsafe { len.read() };
        // A caller's buffer may be uninitialised, so that no reference to it is made.
        let mut bytes = [0u8; 128];
        let n = socket.get_option(level, option, &mut bytes[..(room as usize).min(128)])?;
        // SAFETY: no more than there is room for.
        unsafe { value.cast::<u8>().copy_from_nonoverlapping(bytes.as_ptr(), n) };
        // SAFETY: as above.
        unsafe { len.write(n as socklen_t) };
        Ok(())
    }))
}

/// Variadic in C; every command that is supported has a number or nothing as its third argument.
#[unsafe(no_mangle)]
pub extern "C" fn rfcntl(fd: c_int, command: c_int, argument: c_long) -> c_int {
    number(table::get(fd).and_then(|socket| socket.fcntl(command, argument)))
}

/// # Safety
/// As `poll`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rpoll(fds: *mut pollfd, count: nfds_t, timeout: c_int) -> c_int {
    // SAFETY: as above.
    unsafe { rpoll_under(null(), fds, count, timeout) }
}

/// [`rpoll`] with a mask of signals for its sleep, as `ppoll`; null: the thread's. Not for C.
///
/// # Safety
/// As `ppoll`.
pub unsafe fn rpoll_under(
    mask: *const sigset_t,
    fds: *mut pollfd,
    count: nfds_t,
    timeout: c_int,
) -> c_int {
    let timeout = u64::try_from(timeout).ok().map(Duration::from_millis);
    if fds.is_null() && count != 0 {
        return number(Err(Errno::FAULT));
    }
    let fds = if count == 0 {
        &mut []
    } else {
        // SAFETY: as above.
        unsafe { core::slice::from_raw_parts_mut(fds, count as usize) }
    };
    // SAFETY: as above.
    let mask = unsafe { mask.as_ref() };
    number(poll::poll_under(mask, fds, timeout).map(|n| n as c_int))
}

/// # Safety
/// As `select`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rselect(
    count: c_int,
    read: *mut fd_set,
    write: *mut fd_set,
    except: *mut fd_set,
    timeout: *mut timeval,
) -> c_int {
    // SAFETY: as above.
    unsafe { rselect_under(null(), count, [read, write, except], timeout) }
}

/// [`rselect`] with a mask of signals for its sleep, as `pselect`; null: the thread's. Not for C.
///
/// # Safety
/// As `pselect`.
pub unsafe fn rselect_under(
    mask: *const sigset_t,
    count: c_int,
    [read, write, except]: [*mut fd_set; 3],
    timeout: *mut timeval,
) -> c_int {
    if count < 0 {
        return number(Err(Errno::INVAL));
    }
    // Programs with more than FD_SETSIZE descriptors make larger sets.
    let bits = c_long::BITS as c_int;
    let place = |set: *mut fd_set, fd: c_int| {
        (set.cast::<c_ulong>().wrapping_add((fd / bits) as usize), 1 << (fd % bits))
    };
    let has = |set, fd| {
        let (word, bit) = place(set, fd);
        // SAFETY: as above: null, or a set of `count` bits.
        !set.is_null() && unsafe { word.read_unaligned() } & bit != 0
    };
    let wanted = |fd| {
        let events = [
            (has(read, fd), libc::POLLIN),
            (has(write, fd), libc::POLLOUT),
            (has(except, fd), libc::POLLPRI),
        ];
        events.iter().filter(|e| e.0).fold(0, |all, e| all | e.1)
    };
    let mut fds: Vec<pollfd> = (0..count)
        .map(|fd| pollfd { fd, events: wanted(fd), revents: 0 })
        .filter(|e| e.events != 0)
        .collect();
    // SAFETY: as above.
    let limit =
        unsafe { timeout.as_ref() }.map(|t| (u64::try_from(t.tv_sec), u32::try_from(t.tv_usec)));
    let limit = match limit {
        None => None,
        Some((Ok(seconds), Ok(micros @ ..1_000_000))) => {
            Some(Duration::new(seconds, micros * 1000))
        }
        Some(_) => return number(Err(Errno::INVAL)),
    };
    // SAFETY: as above.
    let mask = unsafe { mask.as_ref() };
    let end = limit.and_then(|limit| Instant::now().checked_add(limit));
    loop {
        let left = end.map(|end| end.saturating_duration_since(Instant::now()));
        match poll::poll_under(mask, &mut fds, left) {
            Err(e) => return number(Err(e)),
            Ok(0) => break,
            Ok(_) => {}
        }
        // An end is nothing exceptional: who asks for that alone goes on waiting.
        let in_vain = |entry: &&mut pollfd| {
            entry.events == libc::POLLPRI
                && entry.revents & !(libc::POLLHUP | libc::POLLERR) == 0
                && entry.revents != 0
        };
        fds.iter_mut().filter(in_vain).for_each(|entry| (entry.fd, entry.revents) = (!entry.fd, 0));
        if fds.iter().any(|entry| entry.revents != 0) {
            break;
        }
    }
    fds.iter_mut().filter(|entry| entry.fd < 0).for_each(|entry| entry.fd = !entry.fd);
    if fds.iter().any(|e| e.revents & libc::POLLNVAL != 0) {
        return number(Err(Errno::BADF));
    }
    let mut total = 0;
    let mut report = |set: *mut fd_set, event: i16, which: fn(&Selected) -> bool| {
        for entry in fds.iter().filter(|e| e.events & event != 0) {
            if which(&Selected::of(entry.revents)) {
                total += 1;
            } else {
                let (word, bit) = place(set, entry.fd);
                // SAFETY: as above.
                let kept = unsafe { word.read_unaligned() } & !bit;
                // SAFETY: as above; the bit was set in it.
                unsafe { word.write_unaligned(kept) };
            }
        }
    };
    report(read, libc::POLLIN, |s| s.readable);
    report(write, libc::POLLOUT, |s| s.writable);
    report(except, libc::POLLPRI, |s| s.exceptional);
    total
}

/// As `epoll_create1`: a set of rsockets and other descriptors to wait for, closed by `rclose`.
#[unsafe(no_mangle)]
pub extern "C" fn repoll_create(flags: c_int) -> c_int {
    number(set::create(flags))
}

/// # Safety
/// As `epoll_ctl`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn repoll_ctl(
    set: c_int,
    operation: c_int,
    fd: c_int,
    event: *mut libc::epoll_event,
) -> c_int {
    let asked = || {
        if event.is_null() {
            return Err(Errno::FAULT);
        }
        // SAFETY: as above.
        let event = unsafe { event.read_unaligned() };
        Ok((event.events, event.u64))
    };
    status(set::find(set).and_then(|set| match operation {
        libc::EPOLL_CTL_ADD => asked().and_then(|(events, data)| set.add(fd, events, data)),
        libc::EPOLL_CTL_MOD => asked().and_then(|(events, data)| set.modify(fd, events, data)),
        libc::EPOLL_CTL_DEL => set.remove(fd),
        _ => Err(Errno::INVAL),
    }))
}

/// # Safety
/// As `epoll_wait`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn repoll_wait(
    set: c_int,
    events: *mut libc::epoll_event,
    count: c_int,
    timeout: c_int,
) -> c_int {
    // SAFETY: as above.
    unsafe { repoll_wait_under(null(), set, events, count, timeout) }
}

/// [`repoll_wait`] with a mask of signals for its sleep, as `epoll_pwait`; null: the thread's. Not for
/// C.
///
/// # Safety
/// As `epoll_pwait`.
pub unsafe fn repoll_wait_under(
    mask: *const sigset_t,
    set: c_int,
    events: *mut libc::epoll_event,
    count: c_int,
    timeout: c_int,
) -> c_int {
    let timeout = u64::try_from(timeout).ok().map(Duration::from_millis);
    let count = match usize::try_from(count) {
        Ok(count @ 1..) => count,
        _ => return number(Err(Errno::INVAL)),
    };
    if events.is_null() {
        return number(Err(Errno::FAULT));
    }
    // SAFETY: as above.
    let out = unsafe { core::slice::from_raw_parts_mut(events, count) };
    // SAFETY: as above.
    let mask = unsafe { mask.as_ref() };
    number(set::find(set).and_then(|set| set.wait(out, timeout, mask)).map(|n| n as c_int))
}
