//! sendfile and splice: from files and pipes straight into the ring, and out of it.
#![allow(unsafe_code)]

use core::ffi::{c_int, c_uint};
use core::sync::atomic::Ordering::*;

use libc::{off_t, size_t, ssize_t};
use smc::conn::{Got, Sent};
use smc::{meet, sys, witness};

use super::io::{after_op, settle};
use crate::wait::{self, Stay};
use crate::{fail, fds, next};

/// Reads from `fd` into memory: at `*off` and moving it, or at the file's own position.
fn fill(fd: c_int, off: &mut Option<&mut off_t>, dst: *mut u8, len: usize) -> Result<usize, i32> {
    // SAFETY: `dst` has `len` bytes: a part of the ring, or of a staging buffer.
    let r = unsafe {
        match off {
            Some(o) => sys::syscall(libc::SYS_pread64, fd as usize, dst as usize, len, **o as usize, 0, 0),
            None => sys::syscall(libc::SYS_read, fd as usize, dst as usize, len, 0, 0, 0),
        }
    };
    if r == -(libc::EINVAL as isize) && sys::fcntl(fd, libc::F_GETFL, 0) & libc::O_DIRECT as isize != 0 {
        return fill_directly(fd, off, dst, len);
    }
    if r < 0 {
        return Err(-r as i32);
    }
    if let Some(o) = off {
        **o += r as off_t;
    }
    Ok(r as usize)
}

/// A file opened with O_DIRECT, which gives only whole blocks, to aligned memory: staged.
#[cold]
fn fill_directly(fd: c_int, off: &mut Option<&mut off_t>, dst: *mut u8, len: usize) -> Result<usize, i32> {
    const BLOCK: usize = 4096;
    #[repr(align(4096))]
    struct Stage([u8; 16 * BLOCK]);
    let mut stage = Stage([0; _]);
    let at = match off {
        Some(o) => **o,
        None => sys::lseek(fd, 0, libc::SEEK_CUR)?,
    };
    let ahead = at as usize % BLOCK;
    let n = (ahead + len).next_multiple_of(BLOCK).min(stage.0.len());
    let from = at as usize - ahead;
    // SAFETY: the stage has `n` bytes.
    let r = unsafe { sys::syscall(libc::SYS_pread64, fd as usize, stage.0.as_mut_ptr() as usize, n, from, 0, 0) };
    if r < 0 {
        return Err(-r as i32);
    }
    let got = (r as usize).saturating_sub(ahead).min(len);
    // SAFETY: `dst` has `len` bytes.
    unsafe { core::ptr::copy_nonoverlapping(stage.0.as_ptr().wrapping_add(ahead), dst, got) };
    match off {
        Some(o) => **o += got as off_t,
        None => drop(sys::lseek(fd, got as off_t, libc::SEEK_CUR)?),
    }
    Ok(got)
}

/// The kind of a file, as in st_mode.
fn kind_of(fd: c_int) -> u32 {
    // SAFETY: all-zero is a valid stat, and the kernel fills in a live local.
    unsafe {
        let mut st: libc::stat = core::mem::zeroed();
        sys::syscall(libc::SYS_fstat, fd as usize, &raw mut st as usize, 0, 0, 0, 0);
        st.st_mode & libc::S_IFMT
    }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn sendfile(out: c_int, input: c_int, off: *mut off_t, n: size_t) -> ssize_t {
    let Some((index, c)) = fds::conn_of(out) else {
        // Out of a connection it goes into a pipe only, and would take doorbells along.
        if fds::conn_of(input).is_some() && off.is_null() && kind_of(out) == libc::S_IFIFO {
            let flags = if sys::is_nonblocking(out) { libc::SPLICE_F_NONBLOCK } else { 0 };
            // SAFETY: no pointers.
            return unsafe { splice(input, core::ptr::null_mut(), out, core::ptr::null_mut(), n, flags) };
        }
        // SAFETY: here and below: the caller's obligations are libc's and are forwarded.
        return unsafe { next::sendfile(out, input, off, n) };
    };
    settle(index, c, out);
    if !c.sends_on_ring() {
        while !c.flush_takeback(out) {
            if let Err(e) = wait::for_space(&mut Stay::new(c, out), false, false) {
                return fail(e);
            }
        }
        if c.enter_kernel_send() {
            let stake = meet::stake(c, out, n, 0);
            let now = stake.as_ref().map_or(n, |stake| stake.len());
            let r = unsafe { next::sendfile(out, input, off, now) };
            c.leave_kernel_send();
            let staked = stake.is_some();
            if let Some(stake) = stake {
                stake.settle(r);
            }
            if r > 0 {
                witness::sent(c, out, None, r as usize);
                after_op(index, c, out, r as usize);
            }
            if staked && r > 0 {
                let rest = unsafe { sendfile(out, input, off, n - r as usize) };
                return r + rest.max(0);
            }
            return r;
        }
    }
    // The kernel refuses whatever is not a file, and says how.
    if !matches!(kind_of(input), libc::S_IFREG | libc::S_IFBLK) || (!off.is_null() && crate::faulty(off)) {
        return unsafe { next::sendfile(out, input, off, n) };
    }
    let mut at = unsafe { off.as_mut() };
    let want = n.min(0x7fff_f000);
    let mut done = 0usize;
    let mut stay = Stay::new(c, out);
    while done < want {
        match c.send_from(stay.fd(), want - done, |dst, len| fill(input, &mut at, dst, len)) {
            // End of the file.
            Sent::Bytes(0) => break,
            Sent::Bytes(k) => done += k,
            Sent::Full => match wait::for_space(&mut stay, false, done > 0) {
                Ok(()) => {}
                Err(_) if done > 0 => break,
                Err(e) => return fail(e),
            },
            Sent::Kernel if done > 0 => break,
            Sent::Kernel => {
                c.sends_past_ring();
                return unsafe { next::sendfile(out, input, off, n) };
            }
            Sent::Err(_) | Sent::Held if done > 0 => break,
            Sent::Held => return fail(libc::EAGAIN),
            Sent::Err(e) => return fail(e),
        }
    }
    done as ssize_t
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn sendfile64(out: c_int, input: c_int, off: *mut off_t, n: size_t) -> ssize_t {
    unsafe { sendfile(out, input, off, n) }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn splice(i: c_int, io: *mut i64, o: c_int, oo: *mut i64, n: size_t, flags: c_uint) -> ssize_t {
    let plain = || unsafe { next::splice(i, io, o, oo, n, flags) };
    let nonblock = flags & libc::SPLICE_F_NONBLOCK != 0;
    // What the kernel refuses, it refuses before a byte moves.
    let odd = || n == 0 || flags > 0xf || !io.is_null() || !oo.is_null();
    if let Some((index, c)) = fds::conn_of(o) {
        settle(index, c, o);
        if !c.sends_on_ring() {
            if !c.enter_kernel_send() {
                return unsafe { splice(i, io, o, oo, n, flags) };
            }
            let r = plain();
            c.leave_kernel_send();
            if r > 0 {
                witness::sent(c, o, None, r as usize);
                after_op(index, c, o, r as usize);
            }
            return r;
        }
        if odd() || kind_of(i) != libc::S_IFIFO {
            return plain();
        }
        count_splice();
        return into_ring(c, i, o, n, nonblock, plain);
    }
    if let Some((index, c)) = fds::conn_of(i) {
        if odd() || kind_of(o) != libc::S_IFIFO {
            return plain();
        }
        if settle(index, c, i) {
            count_splice();
            return out_of_ring(c, i, o, n, nonblock, plain);
        }
        if !c.enter_kernel_recv() {
            return if nonblock || sys::is_nonblocking(i) {
                fail(libc::EAGAIN)
            } else {
                unsafe { splice(i, io, o, oo, n, flags) }
            };
        }
        // What a splice moves can't be cut afterwards, so it may not run into the peer's switch: only what has arrived
        // is taken, which was payload when it was counted.
        // One that sleeps in the kernel must not have an upgrade begin around it.
        let held = !c.is_exposed() && c.hold_upgrade();
        let there = sys::ioctl_int(i, libc::FIONREAD).unwrap_or(0).max(0) as usize;
        let r = match there {
            _ if held || c.receives_are_back() => Some(plain()),
            _ if c.switch_due() => None,
            0 if sys::poll_now(i, libc::POLLRDHUP) != 0 => Some(plain()),
            0 => None,
            k => Some(unsafe { next::splice(i, io, o, oo, n.min(k), flags) }),
        };
        if held {
            c.release_upgrade();
        }
        c.leave_kernel_recv(i, r.unwrap_or(0).max(0) as usize, false);
        return match r {
            Some(r) => {
                if r > 0 {
                    witness::came(c, i, None, r as usize);
                    after_op(index, c, i, r as usize);
                }
                r
            }
            None => match wait_readable(i, nonblock) {
                Ok(()) => unsafe { splice(i, io, o, oo, n, flags) },
                Err(e) => fail(e),
            },
        };
    }
    plain()
}

fn count_splice() {
    if let Some(t) = smc::table::get() {
        t.stats.splice.fetch_add(1, Relaxed);
    }
}

fn wait_readable(fd: c_int, nonblock: bool) -> Result<(), i32> {
    if nonblock || sys::is_nonblocking(fd) {
        return Err(libc::EAGAIN);
    }
    let mut p = libc::pollfd { fd, events: libc::POLLIN, revents: 0 };
    // SAFETY: one live pollfd.
    if unsafe { next::poll(&raw mut p, 1, -1) } < 0 { Err(crate::errno()) } else { Ok(()) }
}

/// Pipe to connection.
fn into_ring(
    c: &smc::conn::Conn,
    pipe: c_int,
    fd: c_int,
    n: usize,
    nonblock: bool,
    plain: impl Fn() -> ssize_t,
) -> ssize_t {
    let mut stay = Stay::new(c, fd);
    loop {
        // Wait for the pipe first: a read of it under the connection's lock must not sleep.
        let there = sys::ioctl_int(pipe, libc::FIONREAD).unwrap_or(0).max(0) as usize;
        if there == 0 {
            let ev = sys::poll_now(pipe, libc::POLLIN);
            if ev & libc::POLLIN == 0 && ev & libc::POLLHUP != 0 {
                return 0;
            }
            if let Err(e) = wait_readable(pipe, nonblock) {
                return fail(e);
            }
            let there = sys::ioctl_int(pipe, libc::FIONREAD).unwrap_or(0);
            if there == 0 {
                return 0;
            }
            continue;
        }
        match c.send_from(stay.fd(), n.min(there), |dst, len| fill(pipe, &mut None, dst, len)) {
            Sent::Bytes(k) => return k as ssize_t,
            Sent::Full => {
                if let Err(e) = wait::for_space(&mut stay, nonblock, false) {
                    return fail(e);
                }
            }
            Sent::Kernel => {
                c.sends_past_ring();
                return plain();
            }
            Sent::Held => return fail(libc::EAGAIN),
            Sent::Err(e) => return fail(e),
        }
    }
}

/// Connection to pipe.
fn out_of_ring(
    c: &smc::conn::Conn,
    fd: c_int,
    pipe: c_int,
    n: usize,
    nonblock: bool,
    plain: impl Fn() -> ssize_t,
) -> ssize_t {
    let mut stay = Stay::new(c, fd);
    loop {
        if sys::poll_now(pipe, libc::POLLOUT) & (libc::POLLOUT | libc::POLLERR) == 0 {
            if nonblock {
                return fail(libc::EAGAIN);
            }
            let mut p = libc::pollfd { fd: pipe, events: libc::POLLOUT, revents: 0 };
            // SAFETY: one live pollfd.
            if unsafe { next::poll(&raw mut p, 1, -1) } < 0 {
                return -1;
            }
        }
        // A write of at most PIPE_BUF to a writable pipe never sleeps; more is written only as far as there is room,
        // which a nonblocking write would tell, but the pipe's mode is the application's.
        let got = c.recv_into(stay.fd(), n.min(libc::PIPE_BUF), false, |src, len| {
            // SAFETY: `src` has `len` bytes.
            let r = unsafe { sys::syscall(libc::SYS_write, pipe as usize, src as usize, len, 0, 0, 0) };
            if r < 0 { Err(-r as i32) } else { Ok(r as usize) }
        });
        match got {
            Got::Bytes(k) => return k as ssize_t,
            Got::Eof => return 0,
            Got::Kernel => return plain(),
            Got::Err(e) => return fail(e),
            // SPLICE_F_NONBLOCK is about the pipe; of the socket its own O_NONBLOCK decides.
            Got::Empty => match wait::for_data(&mut stay, false) {
                Ok(None) => {}
                Ok(Some(Got::Err(e))) => return fail(e),
                Ok(Some(_)) => return 0,
                Err(e) => return fail(e),
            },
        }
    }
}
