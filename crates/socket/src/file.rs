//! sendfile and splice: from files and pipes straight into the ring, and out of it.
#![allow(unsafe_code)]

use core::sync::atomic::Ordering::*;

use libc::off_t;
use smc::conn::{Got, Sent};
use smc::{meet, sys, witness};

use crate::epoll;
use crate::fds::{self, Port, drain};
use crate::kernel::poll_one;
use crate::settle::{after_op, settle};
use crate::transmit::{failed, send_what_was_deferred};
use crate::wait::{self, Ahead, Stay};
use crate::{fail, faulty};

/// Reads from `fd` into memory: at `*off` and moving it, or at the file's own position.
fn fill(fd: i32, off: &mut Option<&mut off_t>, dst: *mut u8, len: usize) -> Result<usize, i32> {
    // SAFETY: `dst` has `len` bytes: a part of the ring, or of a staging buffer.
    let r = unsafe { sys::read_into(fd, dst, len, off.as_deref().copied()) };
    if r == -(libc::EINVAL as isize)
        && sys::fcntl(fd, libc::F_GETFL, 0) & libc::O_DIRECT as isize != 0
    {
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
fn fill_directly(
    fd: i32,
    off: &mut Option<&mut off_t>,
    dst: *mut u8,
    len: usize,
) -> Result<usize, i32> {
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
    let r = unsafe { sys::read_into(fd, stage.0.as_mut_ptr(), n, Some(from as off_t)) };
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

/// What is no file and can be sent from all the same, since Linux 6.0 (/dev/zero, /dev/urandom): what
/// the kernel gives of it goes through a pipe. To read it instead would be to send from devices that
/// the kernel does not send from.
struct Device {
    pipe: [i32; 2],
}

impl Device {
    /// The error where the kernel refuses, which is `call`'s of nothing: of more it would put
    /// something into its own stream, where that would pass for doorbells.
    #[cold]
    fn new(input: i32, call: &dyn Fn(usize) -> isize) -> Result<Self, isize> {
        match call(0) {
            // The ring's lock is not held over a sleep.
            0 if sys::poll_now(input, libc::POLLIN) & libc::POLLIN == 0 => Err(fail(libc::EINVAL)),
            0 => Ok(Self { pipe: sys::pipe().map_err(fail)? }),
            refused => Err(refused),
        }
    }

    fn fill(
        &self,
        fd: i32,
        off: &mut Option<&mut off_t>,
        dst: *mut u8,
        len: usize,
    ) -> Result<usize, i32> {
        // As much as a pipe holds for sure.
        const MOST: usize = 4096;
        let [from, to] = self.pipe;
        let place = off.as_deref_mut().map_or(0, |o| core::ptr::from_mut(o) as usize);
        // SAFETY: the place is null or live.
        let n = unsafe {
            sys::by_number(libc::SYS_sendfile, to as usize, fd as usize, place, len.min(MOST), 0, 0)
        };
        if n <= 0 {
            return if n < 0 { Err(-n as i32) } else { Ok(0) };
        }
        // SAFETY: `dst` has `len` bytes.
        let r = unsafe { sys::read_into(from, dst, n as usize, None) };
        if r < 0 { Err(-r as i32) } else { Ok(r as usize) }
    }
}

impl Drop for Device {
    fn drop(&mut self) {
        for end in self.pipe {
            sys::close(end);
        }
    }
}

/// sendfile; `call` is the front's, for at most so many bytes. `splice` is the front's, see there.
///
/// # Safety
/// `off` must be what the application gives to sendfile.
pub unsafe fn sendfile(
    out: i32,
    input: i32,
    off: *mut off_t,
    n: usize,
    call: &dyn Fn(usize) -> isize,
    splice: &dyn Fn(u32, usize) -> isize,
) -> isize {
    // SAFETY: the caller's obligation.
    let r = unsafe { sendfile_own(out, input, off, n, call, splice) };
    fds::port(out).into_iter().for_each(send_what_was_deferred);
    r
}

unsafe fn sendfile_own(
    out: i32,
    input: i32,
    off: *mut off_t,
    n: usize,
    call: &dyn Fn(usize) -> isize,
    splice: &dyn Fn(u32, usize) -> isize,
) -> isize {
    let Some(port) = fds::port(out) else {
        // Out of a connection it goes into a pipe only, and would take doorbells along.
        if fds::port(input).is_some() && off.is_null() && sys::kind_of(out) == libc::S_IFIFO {
            let flags = if sys::is_nonblocking(out) { libc::SPLICE_F_NONBLOCK } else { 0 };
            let null = core::ptr::null();
            return self::splice(input, null, out, null, n, flags, |n| splice(flags, n));
        }
        return call(n);
    };
    let c = port.conn;
    loop {
        settle(port);
        if c.sends_on_ring() {
            break;
        }
        if let Err(e) = wait::for_order(port, false) {
            return fail(e);
        }
        if c.enter_kernel_send() {
            let stake = meet::stake(c, out, n, 0);
            let now = stake.as_ref().map_or(n, |stake| stake.len());
            let stay = Stay::new(port);
            let r = call(now);
            if stay.is_gone() {
                // The end of a stake lets go of the upgrade, which is another connection's by now.
                core::mem::forget(stake);
                return r;
            }
            c.leave_kernel_send();
            let staked = stake.is_some();
            if let Some(stake) = stake {
                stake.settle(r);
            }
            if r > 0 {
                witness::sent(c, out, None, r as usize);
                after_op(port, r as usize);
            }
            if staked && r > 0 {
                // SAFETY: the caller's obligation.
                let rest = unsafe { sendfile_own(out, input, off, n - r as usize, call, splice) };
                return r + rest.max(0);
            }
            return r;
        }
    }
    let kind = sys::kind_of(input);
    if kind == libc::S_IFDIR || (!off.is_null() && faulty(off)) {
        return call(n);
    }
    let mut device = None;
    if !matches!(kind, libc::S_IFREG | libc::S_IFBLK) {
        match Device::new(input, call) {
            Ok(it) => device = Some(it),
            Err(refused) => return refused,
        }
    }
    // SAFETY: the caller's obligation.
    let mut at = unsafe { off.as_mut() };
    let want = n.min(0x7fff_f000);
    let mut done = 0usize;
    let mut stay = Stay::new(port);
    while done < want {
        let from = |dst, len| match &device {
            None => fill(input, &mut at, dst, len),
            Some(device) => device.fill(input, &mut at, dst, len),
        };
        match c.send_from(stay.fd(), want - done, from) {
            // End of the file.
            Sent::Bytes(0) => break,
            Sent::Bytes(k) => done += k,
            Sent::Full => match wait::for_space(&mut stay, false, done > 0) {
                Ok(()) => {}
                Err(_) if done > 0 => break,
                Err(e) => return fail(e),
            },
            Sent::Kernel if c.sends_are_back() => {
                epoll::on_reverted(port.index);
                if done > 0 {
                    break;
                }
                // Not at once: what lies unread in the ring goes there first.
                // SAFETY: the caller's obligation.
                return unsafe { sendfile_own(out, input, off, n, call, splice) };
            }
            Sent::Kernel if done > 0 => break,
            Sent::Kernel => {
                c.sends_past_ring();
                return call(n);
            }
            Sent::Err(_) | Sent::Held if done > 0 => break,
            Sent::Held => return fail(libc::EAGAIN),
            Sent::Err(e) => return failed(c, e),
        }
    }
    done as isize
}

/// splice; `call` is the front's, for at most so many bytes.
pub fn splice(
    i: i32,
    io: *const i64,
    o: i32,
    oo: *const i64,
    n: usize,
    flags: u32,
    call: impl Fn(usize) -> isize,
) -> isize {
    let nonblock = flags & libc::SPLICE_F_NONBLOCK != 0;
    // What the kernel refuses, it refuses before a byte moves.
    let odd = || n == 0 || flags > 0xf || !io.is_null() || !oo.is_null();
    if let Some(port) = fds::port(o) {
        if let Some(r) = into_kernel(port, nonblock, || call(n)) {
            return r;
        }
        if odd() || sys::kind_of(i) != libc::S_IFIFO {
            return call(n);
        }
        count_splice();
        let r = into_ring(port, i, n, nonblock, || call(n));
        send_what_was_deferred(port);
        return r;
    }
    let Some(port) = fds::port(i).filter(|_| !odd() && sys::kind_of(o) == libc::S_IFIFO) else {
        return call(n);
    };
    let mut stay = Stay::new(port);
    loop {
        if settle(port) {
            count_splice();
            match out_of_ring(port, o, n, nonblock) {
                Some(r) => return r,
                None => epoll::on_reverted(port.index),
            }
            continue;
        }
        match wait::for_owed(&mut stay, nonblock) {
            Ok(Ahead::Clear | Ahead::Owed) => {}
            Ok(Ahead::Again) => continue,
            Err(e) => return fail(e),
        }
        if stay.is_over() {
            // In another thread, while this one waited: the number may be another's by now.
            return fail(libc::EBADF);
        }
        if port.conn.enter_kernel_recv() {
            if let Some(r) = out_of_kernel(port, n, &call) {
                return r;
            }
            if let Err(e) = wait_readable(i, nonblock) {
                return fail(e);
            }
        } else if nonblock || sys::is_nonblocking(i) {
            return fail(libc::EAGAIN);
        }
    }
}

/// Pipe to the kernel's stream; None where sends are not the kernel's.
fn into_kernel(port: Port, nonblock: bool, plain: impl Fn() -> isize) -> Option<isize> {
    let c = port.conn;
    loop {
        settle(port);
        if c.sends_on_ring() {
            return None;
        }
        if let Err(e) = wait::for_order(port, nonblock) {
            return Some(fail(e));
        }
        if c.enter_kernel_send() {
            break;
        }
    }
    let stay = Stay::new(port);
    let r = plain();
    if stay.is_gone() {
        return Some(r);
    }
    c.leave_kernel_send();
    if r > 0 {
        witness::sent(c, port.fd, None, r as usize);
        after_op(port, r as usize);
    }
    Some(r)
}

/// The kernel's stream to a pipe, once inside `enter_kernel_recv`; None when there is nothing to
/// take yet. What a splice moves can't be cut afterwards, so it may not run into the peer's switch:
/// only what has arrived is taken, which was payload when it was counted.
fn out_of_kernel(port: Port, n: usize, call: impl Fn(usize) -> isize) -> Option<isize> {
    let Port { conn: c, fd, .. } = port;
    // One that sleeps in the kernel must not have an upgrade begin around it.
    let (stay, held) = (Stay::new(port), c.hold_unexposed());
    let there = sys::ioctl_int(fd, libc::FIONREAD).unwrap_or(0).max(0) as usize;
    let r = match there {
        _ if held || c.receives_are_back() => Some(call(n)),
        _ if c.switch_due() => None,
        0 if sys::poll_now(fd, libc::POLLRDHUP) != 0 => Some(call(n)),
        0 => None,
        k => Some(call(n.min(k))),
    };
    if stay.is_gone() {
        return r;
    }
    if held {
        c.release_upgrade();
    }
    c.leave_kernel_recv(fd, r.unwrap_or(0).max(0) as usize, false);
    if let Some(r @ 1..) = r {
        witness::came(c, fd, None, r as usize);
        after_op(port, r as usize);
    }
    r
}

fn count_splice() {
    if let Some(t) = smc::table::get() {
        t.stats.splice.fetch_add(1, Relaxed);
    }
}

fn wait_readable(fd: i32, nonblock: bool) -> Result<(), i32> {
    if nonblock || sys::is_nonblocking(fd) {
        return Err(libc::EAGAIN);
    }
    poll_one(fd, libc::POLLIN, None).map(drop)
}

/// Pipe to connection.
fn into_ring(port: Port, pipe: i32, n: usize, nonblock: bool, plain: impl Fn() -> isize) -> isize {
    let c = port.conn;
    let mut stay = Stay::new(port);
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
            Sent::Bytes(k) => {
                if k < n.min(there) {
                    // As in the kernel, where a count that is short means that there is no more
                    // room: its end is an edge.
                    c.arm_space();
                    if c.has_space() {
                        // It came in front of the arm, so nobody rings for it, and who waits for it
                        // in another thread sleeps on.
                        epoll::on_more_room(port.index);
                    }
                }
                return k as isize;
            }
            Sent::Full => {
                if let Err(e) = wait::for_space(&mut stay, nonblock, false) {
                    return fail(e);
                }
            }
            Sent::Kernel if c.sends_are_back() => {
                epoll::on_reverted(port.index);
                if let Some(r) = into_kernel(port, nonblock, &plain) {
                    return r;
                }
            }
            Sent::Kernel => {
                c.sends_past_ring();
                return plain();
            }
            Sent::Held => return fail(libc::EAGAIN),
            Sent::Err(e) => return failed(c, e),
        }
    }
}

/// Whether nobody reads a pipe: the program has SIGPIPE then. Asked with a pipe that is empty and stays so:
/// a reader that comes meanwhile finds nothing in its own.
#[cold]
fn has_no_reader(pipe: i32) -> bool {
    let Ok([empty, end]) = sys::pipe() else { return false };
    sys::close(end);
    let (from, to, flags) = (empty as usize, pipe as usize, libc::SPLICE_F_NONBLOCK as usize);
    // SAFETY: integers and null.
    let r = unsafe { sys::by_number(libc::SYS_splice, from, 0, to, 0, 1, flags) };
    sys::close(empty);
    r == -(libc::EPIPE as isize)
}

/// Connection to pipe; None once receives are the kernel's again.
fn out_of_ring(port: Port, pipe: i32, n: usize, nonblock: bool) -> Option<isize> {
    let c = port.conn;
    let mut stay = Stay::new(port);
    loop {
        let room = sys::poll_now(pipe, libc::POLLOUT);
        // The kernel refuses both before it looks at the connection, which may never have anything.
        if room & libc::POLLERR != 0 && has_no_reader(pipe) {
            return Some(fail(libc::EPIPE));
        }
        if room & (libc::POLLOUT | libc::POLLERR) == 0 {
            if sys::fcntl(pipe, libc::F_GETFL, 0) & libc::O_ACCMODE as isize == 0 {
                return Some(fail(libc::EBADF));
            }
            if nonblock {
                return Some(fail(libc::EAGAIN));
            }
            if let Err(e) = poll_one(pipe, libc::POLLOUT, None) {
                return Some(fail(e));
            }
        }
        drain::look_for_changes(c);
        // A write of at most PIPE_BUF to a writable pipe never sleeps; more is written only as far
        // as there is room, which a nonblocking write would tell, but the pipe's mode is the
        // application's.
        let got = c.recv_into(stay.fd(), n.min(libc::PIPE_BUF), false, |src, len| {
            // SAFETY: `src` has `len` bytes.
            let r = unsafe { sys::write_from(pipe, src, len) };
            if r < 0 { Err(-r as i32) } else { Ok(r as usize) }
        });
        match got {
            Got::Bytes(k) => return Some(k as isize),
            Got::Eof => return Some(0),
            Got::Kernel => return None,
            Got::Held => return Some(fail(libc::EAGAIN)),
            Got::Err(e) => return Some(fail(e.errno())),
            // SPLICE_F_NONBLOCK is about the pipe; of the socket its own O_NONBLOCK decides.
            Got::Empty => match wait::for_data(&mut stay, false) {
                Ok(None) => {}
                Ok(Some(Got::Err(e))) => return Some(fail(e.errno())),
                Ok(Some(_)) => return Some(0),
                Err(e) => return Some(fail(e)),
            },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tests::{close, port, recv, send, serial, upgraded};
    use smc::conn::Pieces;

    fn memfd(content: &[u8]) -> i32 {
        let fd = sys::memfd(c"x");
        assert_eq!(sys::write(fd, content), content.len() as isize);
        fd
    }

    fn pipe() -> [i32; 2] {
        let mut ends = [0; 2];
        // SAFETY: two ints.
        assert_eq!(unsafe { libc::pipe(ends.as_mut_ptr()) }, 0);
        ends
    }

    fn spliced(from: i32, to: i32, n: usize) -> isize {
        splice(from, core::ptr::null(), to, core::ptr::null(), n, 0, |_| panic!("it is upgraded"))
    }

    /// As the kernel has it, in front of a wait for bytes that may never come.
    #[test]
    fn a_pipe_that_cannot_be_written_is_refused() {
        let _turn = serial();
        let (pair, [read, write]) = (upgraded(), pipe());
        assert_eq!(spliced(pair.0, read, 5), -(libc::EBADF as isize));
        // The signal of it is ignored by Rust's runtime.
        sys::close(read);
        assert_eq!(spliced(pair.0, write, 5), -(libc::EPIPE as isize));
        sys::close(write);
    }

    #[test]
    fn a_file_goes_into_the_ring_from_its_place_on() {
        let _turn = serial();
        let (pair, file) = (upgraded(), memfd(b"0123456789"));
        let mut at = 4;
        let refused: &dyn Fn(usize) -> isize = &|_| panic!("it is upgraded");
        // SAFETY: a live offset.
        let r =
            unsafe { sendfile(pair.0, file, &raw mut at, 4, refused, &|_, _| panic!("no pipe")) };
        assert_eq!((r, at), (4, 8));
        assert_eq!(recv(pair.1, 9, 0), Ok(b"4567".to_vec()));
        // SAFETY: a live offset.
        let r =
            unsafe { sendfile(pair.0, file, &raw mut at, 100, refused, &|_, _| panic!("no pipe")) };
        assert_eq!((r, at), (2, 10));
        assert_eq!(recv(pair.1, 9, 0), Ok(b"89".to_vec()));
        sys::close(file);
    }

    /// A signal handler has sent in the middle of the call.
    #[test]
    fn what_a_handler_sends_follows_at_once() {
        let _turn = serial();
        let (pair, file, [from, to]) = (upgraded(), memfd(b"file "), pipe());
        assert_eq!(sys::write(to, b"pipe "), 5);
        let refused: &dyn Fn(usize) -> isize = &|_| panic!("it is upgraded");
        let handler = || {
            let said = b"handler ";
            let iov = [libc::iovec { iov_base: said.as_ptr().cast_mut().cast(), iov_len: 8 }];
            assert_eq!(crate::deferred::keep(port(pair.0).index, &mut Pieces::new(&iov)), 8);
        };
        handler();
        // SAFETY: no offset.
        let r = unsafe {
            sendfile(pair.0, file, core::ptr::null_mut(), 5, refused, &|_, _| panic!("no pipe"))
        };
        assert_eq!(r, 0, "the file's place is its end");
        handler();
        assert_eq!(spliced(from, pair.0, 5), 5);
        assert_eq!(recv(pair.1, 64, 0), Ok(b"handler pipe handler ".to_vec()));
        [file, from, to].into_iter().for_each(|fd| _ = sys::close(fd));
    }

    #[test]
    fn a_pipe_goes_into_the_ring_and_out_of_it() {
        let _turn = serial();
        let (pair, [from, to]) = (upgraded(), pipe());
        send(pair.0, b"through a pipe", 0);
        assert_eq!(spliced(pair.1, to, 100), 14);
        assert_eq!(spliced(from, pair.1, 9), 9);
        assert_eq!(recv(pair.0, 100, 0), Ok(b"through a".to_vec()));
        close(from);
        close(to);
    }
}
