//! Descriptors and files.
#![allow(unsafe_code)]

use alloc::format;
use core::ffi::{CStr, c_int};
use core::ops::Range;

use super::raw::syscall;
use super::{Errno, poll_for};

/// `close(fd)`.
pub fn close(fd: c_int) -> isize {
    // SAFETY: closing a number has no memory effects.
    unsafe { syscall(libc::SYS_close, fd as usize, 0, 0, 0, 0, 0) }
}

/// `fcntl(fd, cmd, arg)` with an integer argument.
pub fn fcntl(fd: c_int, cmd: c_int, arg: usize) -> isize {
    // SAFETY: only called with commands that take integers.
    unsafe { syscall(libc::SYS_fcntl, fd as usize, cmd as usize, arg, 0, 0, 0) }
}

/// Whether the open file description is in nonblocking mode.
pub fn is_nonblocking(fd: c_int) -> bool {
    let flags = fcntl(fd, libc::F_GETFL, 0);
    flags >= 0 && flags as c_int & libc::O_NONBLOCK != 0
}

/// One above the highest descriptor that can be open: the size of the kernel's table, of which it
/// tells in /proc.
pub fn descriptor_table_size() -> c_int {
    const USUAL: c_int = 1024;
    let Ok(file) = rustix::fs::open(
        c"/proc/self/status",
        rustix::fs::OFlags::CLOEXEC,
        rustix::fs::Mode::empty(),
    ) else {
        return USUAL;
    };
    let mut text = [0u8; 2048];
    let n = rustix::io::read(&file, &mut text).unwrap_or(0);
    let lines = text[..n].split(|&b| b == b'\n');
    let size =
        lines.filter_map(|line| line.strip_prefix(b"FDSize:")).next().map(<[u8]>::trim_ascii);
    size.and_then(|digits| core::str::from_utf8(digits).ok()?.parse().ok()).unwrap_or(USUAL)
}

/// How many numbers `open_among` looks at at once.
pub const LOOK: c_int = 256;

/// Which of at most `LOOK` numbers are open descriptors, at one system call: all of them where poll
/// refuses, as with a limit on descriptors that was lowered, so that none is missed.
pub fn open_among(numbers: Range<c_int>) -> impl DoubleEndedIterator<Item = c_int> {
    let mut look = [libc::pollfd { fd: -1, events: 0, revents: 0 }; LOOK as usize];
    let count = numbers.len();
    for (number, look) in numbers.zip(&mut look) {
        look.fd = number;
    }
    poll_for(&mut look[..count], 0);
    let open = move |look: &libc::pollfd| look.fd >= 0 && look.revents & libc::POLLNVAL == 0;
    look.into_iter().filter(open).map(|look| look.fd)
}

/// The open descriptors from `from` on. The kernel's table is large where few are open, as ours lie
/// high up: a system call for each of its numbers would take milliseconds.
pub fn open_descriptors(from: c_int) -> impl Iterator<Item = c_int> {
    let end = descriptor_table_size();
    let look = move |at: c_int| open_among(at..at.saturating_add(LOOK).min(end));
    (from..end).step_by(LOOK as usize).flat_map(look)
}

/// The position of a file after it was moved; an errno where that fails.
pub fn lseek(fd: c_int, by: i64, whence: c_int) -> Result<i64, i32> {
    // SAFETY: integers only.
    let r = unsafe { syscall(libc::SYS_lseek, fd as usize, by as usize, whence as usize, 0, 0, 0) };
    if r < 0 { Err(-r as i32) } else { Ok(r as i64) }
}

/// `ioctl(fd, req)` that yields one int.
pub fn ioctl_int(fd: c_int, req: u64) -> Result<c_int, Errno> {
    let mut v: c_int = 0;
    // SAFETY: the requests used write one int.
    let r = unsafe {
        syscall(libc::SYS_ioctl, fd as usize, req as usize, &raw mut v as usize, 0, 0, 0)
    };
    if r < 0 { Err(-r as Errno) } else { Ok(v) }
}

/// Inode of a socket, as `ss` and /proc show it; None for anything else.
pub fn socket_inode(fd: i32) -> Option<u32> {
    socket_of(fd).map(|(inode, _)| inode)
}

/// Inode and owner of a socket.
pub(crate) fn socket_of(fd: i32) -> Option<(u32, u32)> {
    let st = stat(fd).filter(|st| st.st_mode & libc::S_IFMT == libc::S_IFSOCK)?;
    Some((st.st_ino as u32, st.st_uid))
}

/// A new descriptor for the socket with this inode, if this process has one. Looks at all that are
/// open: for rare events.
pub fn another_descriptor_of(inode: u32) -> Option<c_int> {
    let is = |fd| socket_inode(fd) == Some(inode);
    open_descriptors(0).filter(|&fd| is(fd)).find_map(|fd| {
        let own = fcntl(fd, libc::F_DUPFD_CLOEXEC, 0) as c_int;
        if own < 0 || is(own) {
            return (own >= 0).then_some(own);
        }
        // The application closed that number meanwhile, and has something else there.
        close(own);
        None
    })
}

/// `openat` of a NUL-terminated path, close-on-exec; a descriptor or a negative errno.
pub fn open(path: &CStr, flags: c_int, mode: u32) -> c_int {
    open_at(libc::AT_FDCWD, path, flags, mode)
}

/// The same, from a folder on.
pub fn open_at(folder: c_int, path: &CStr, flags: c_int, mode: u32) -> c_int {
    let flags = (flags | libc::O_CLOEXEC) as usize;
    // SAFETY: a NUL-terminated path.
    let r = unsafe {
        syscall(
            libc::SYS_openat,
            folder as usize,
            path.as_ptr() as usize,
            flags,
            mode as usize,
            0,
            0,
        )
    };
    r as c_int
}

/// `read(fd)`: a count, or a negative errno.
pub fn read(fd: c_int, to: &mut [u8]) -> isize {
    // SAFETY: a live buffer.
    unsafe { read_into(fd, to.as_mut_ptr(), to.len(), None) }
}

/// `read(fd)`, or `pread(fd)` at a place of the file.
///
/// # Safety
/// `to` must be writable for `len` bytes.
pub unsafe fn read_into(fd: c_int, to: *mut u8, len: usize, at: Option<i64>) -> isize {
    let (call, at) = match at {
        Some(at) => (libc::SYS_pread64, at as usize),
        None => (libc::SYS_read, 0),
    };
    // SAFETY: forwarded.
    unsafe { syscall(call, fd as usize, to as usize, len, at, 0, 0) }
}

/// `write(fd)`: a count, or a negative errno.
pub fn write(fd: c_int, from: &[u8]) -> isize {
    // SAFETY: a live buffer.
    unsafe { write_from(fd, from.as_ptr(), from.len()) }
}

/// The same.
///
/// # Safety
/// `from` must be readable for `len` bytes.
pub unsafe fn write_from(fd: c_int, from: *const u8, len: usize) -> isize {
    // SAFETY: forwarded.
    unsafe { syscall(libc::SYS_write, fd as usize, from as usize, len, 0, 0, 0) }
}

/// `pwrite(fd)`: a count, or a negative errno.
pub fn write_at(fd: c_int, from: &[u8], at: usize) -> isize {
    // SAFETY: a live buffer.
    unsafe {
        syscall(libc::SYS_pwrite64, fd as usize, from.as_ptr() as usize, from.len(), at, 0, 0)
    }
}

/// `fchmod(fd)`.
pub fn set_mode(fd: c_int, mode: u32) -> isize {
    // SAFETY: integers only.
    unsafe { syscall(libc::SYS_fchmod, fd as usize, mode as usize, 0, 0, 0, 0) }
}

/// `pipe2`, nonblocking and close-on-exec: the ends to read from and to write to.
pub fn pipe() -> Result<[c_int; 2], Errno> {
    let mut ends = [-1; 2];
    let flags = libc::O_NONBLOCK | libc::O_CLOEXEC;
    // SAFETY: the kernel writes two ints.
    let r =
        unsafe { syscall(libc::SYS_pipe2, ends.as_mut_ptr() as usize, flags as usize, 0, 0, 0, 0) };
    if r < 0 { Err(-r as Errno) } else { Ok(ends) }
}

/// `fstat(fd)`.
pub fn stat(fd: c_int) -> Option<libc::stat> {
    // SAFETY: all-zero is a valid stat.
    let mut st: libc::stat = unsafe { core::mem::zeroed() };
    // SAFETY: `st` is live.
    let r = unsafe { syscall(libc::SYS_fstat, fd as usize, &raw mut st as usize, 0, 0, 0, 0) };
    (r == 0).then_some(st)
}

/// `stat` of a NUL-terminated path; with AT_SYMLINK_NOFOLLOW in `flags` of a link itself.
pub fn stat_path(path: &CStr, flags: c_int) -> Option<libc::stat> {
    stat_at(libc::AT_FDCWD, path, flags)
}

/// The same, from a folder on.
pub fn stat_at(folder: c_int, path: &CStr, flags: c_int) -> Option<libc::stat> {
    let (folder, path) = (folder as usize, path.as_ptr() as usize);
    // SAFETY: all-zero is a valid stat.
    let mut st: libc::stat = unsafe { core::mem::zeroed() };
    // SAFETY: a NUL-terminated path, and `st` is live.
    let r = unsafe {
        syscall(libc::SYS_newfstatat, folder, path, &raw mut st as usize, flags as usize, 0, 0)
    };
    (r == 0).then_some(st)
}

/// The kind of a file, as in st_mode; 0 of none.
pub fn kind_of(fd: c_int) -> u32 {
    stat(fd).map_or(0, |st| st.st_mode & libc::S_IFMT)
}

/// How many descriptors lie unread on a Unix socket; None if the kernel does not tell.
pub fn descriptors_on(fd: c_int) -> Option<u32> {
    let path = format!("/proc/self/fdinfo/{fd}");
    let file =
        rustix::fs::open(path, rustix::fs::OFlags::CLOEXEC, rustix::fs::Mode::empty()).ok()?;
    let mut text = [0; 512];
    let n = rustix::io::read(&file, &mut text[..]).ok()?;
    let text = core::str::from_utf8(&text[..n]).ok()?;
    text.lines().find_map(|line| line.strip_prefix("scm_fds:"))?.trim().parse().ok()
}

/// The kind of the file system that a descriptor is in, by its magic number.
pub fn file_system_of(fd: c_int) -> Option<i64> {
    // SAFETY: all-zero is a valid statfs.
    let mut fs: libc::statfs = unsafe { core::mem::zeroed() };
    // SAFETY: `fs` is live.
    let r = unsafe { syscall(libc::SYS_fstatfs, fd as usize, &raw mut fs as usize, 0, 0, 0, 0) };
    #[allow(clippy::unnecessary_cast, reason = "its type differs between architectures")]
    (r == 0).then_some(fs.f_type as i64)
}

/// `unlink` of a NUL-terminated path.
pub fn unlink(path: &CStr) -> isize {
    // SAFETY: a NUL-terminated path.
    unsafe {
        syscall(libc::SYS_unlinkat, libc::AT_FDCWD as usize, path.as_ptr() as usize, 0, 0, 0, 0)
    }
}

/// `readlink` of a NUL-terminated path: how many bytes of `to` it filled.
pub fn readlink<'a>(path: &CStr, to: &'a mut [u8]) -> Option<&'a [u8]> {
    let (at, len) = (to.as_mut_ptr() as usize, to.len());
    // SAFETY: a NUL-terminated path and a live buffer.
    let r = unsafe {
        syscall(
            libc::SYS_readlinkat,
            libc::AT_FDCWD as usize,
            path.as_ptr() as usize,
            at,
            len,
            0,
            0,
        )
    };
    to.get(..usize::try_from(r).ok()?)
}

/// The link in /proc that names what a descriptor is of, NUL-terminated.
pub fn link_of_descriptor(fd: c_int) -> [u8; 32] {
    const HEAD: &[u8] = b"/proc/self/fd/";
    let mut path = [0u8; 32];
    path[..HEAD.len()].copy_from_slice(HEAD);
    let mut digits = [0u8; 10];
    let (mut n, mut rest) = (0, fd.unsigned_abs());
    while n == 0 || rest > 0 {
        digits[n] = b'0' + (rest % 10) as u8;
        (n, rest) = (n + 1, rest / 10);
    }
    for (place, digit) in path[HEAD.len()..].iter_mut().zip(digits[..n].iter().rev()) {
        *place = *digit;
    }
    path
}

/// `getdents64`: records of a folder, whose layout is the kernel's; a count of bytes, 0 at the end.
pub fn read_folder(fd: c_int, records: &mut [u64]) -> isize {
    let (at, len) = (records.as_mut_ptr() as usize, size_of_val(records));
    // SAFETY: a live buffer.
    unsafe { syscall(libc::SYS_getdents64, fd as usize, at, len, 0, 0, 0) }
}

/// `memfd_create` with MFD_CLOEXEC; a descriptor or a negative errno.
pub fn memfd(name: &CStr) -> c_int {
    // SAFETY: a NUL-terminated name.
    let r = unsafe {
        syscall(
            libc::SYS_memfd_create,
            name.as_ptr() as usize,
            libc::MFD_CLOEXEC as usize,
            0,
            0,
            0,
            0,
        )
    };
    r as c_int
}

/// `fallocate(fd, 0, 0, len)`.
pub fn allocate(fd: c_int, len: usize) -> isize {
    // SAFETY: integers only.
    unsafe { syscall(libc::SYS_fallocate, fd as usize, 0, 0, len, 0, 0) }
}

/// `ftruncate(fd, len)`.
pub fn set_len(fd: c_int, len: usize) -> isize {
    // SAFETY: integers only.
    unsafe { syscall(libc::SYS_ftruncate, fd as usize, len, 0, 0, 0, 0) }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Far apart, so that they are looked at by several calls.
    #[test]
    fn descriptors_that_are_open() {
        let low = memfd(c"open");
        // Not where segments of other tests are put as soon as it is free.
        let high = fcntl(low, libc::F_DUPFD_CLOEXEC, 3 * LOOK as usize + 101) as c_int;
        assert!(low >= 0 && high > 3 * LOOK, "{low} {high}");
        let found = |fd| open_descriptors(0).filter(|&open| open == fd).count();
        assert_eq!([low, high].map(found), [1, 1]);
        assert_eq!(open_descriptors(high).next(), Some(high));
        close(high);
        assert_eq!(found(high), 0);
        assert_eq!(open_among(low..low + 1).next_back(), Some(low));
        close(low);
    }
}
