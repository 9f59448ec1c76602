//! The bar that this guest shares with others: which it is, who of this guest uses it, and who of
//! them still lives.
//!
//! A process that uses the bar holds a lock on the byte of its number in the bar's file, on an open
//! file description that its fork children inherit. The kernel takes the lock back when the last of
//! them has ended, however it ended: until then rings that they inherited may be written to. Of
//! another guest's processes only the broker can tell (`broker.rs`).
#![allow(unsafe_code)]

use core::cell::UnsafeCell;
use core::ffi::CStr;
use core::fmt;
use core::sync::atomic::{AtomicBool, AtomicI32, AtomicU32, AtomicU64, Ordering::*};

use dibs::Ivshmem;
use dibs::ivshmem::{Bar, BarError, Member};

use crate::{hidden, sys};

/// The ivshmem device of this process, once `is_available` has opened it.
pub static IVSHMEM: Ivshmem = Ivshmem::new().calling(in_use, reclaim);

const LONGEST: usize = 255;
/// Vendor and device of ivshmem.
const ID: (&[u8], &[u8]) = (b"0x1af4", b"0x1110");
const DEVICES: &[u8] = b"/sys/bus/pci/devices";
/// When a bar that could not be used is looked at again.
const AGAIN: u64 = 1_000_000_000;
/// Where there is no device there will be none.
const NEVER: u64 = u64::MAX;
/// Forks of a process that used the bar, one below the other.
const INHERITED: usize = 16;

/// Why there is no bar to be used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unavailable {
    /// Switched off.
    Off,
    /// No PCI device 1af4:1110.
    NoDevice,
    /// More than one.
    Several,
    /// It cannot be opened: an errno.
    Open(i32),
    /// It cannot be used.
    Bar(BarError),
    /// No broker of this guest, in this network namespace, has said so in the bar.
    NoBroker,
    /// All places in it are taken.
    Full,
}

impl fmt::Display for Unavailable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Unavailable::Off => f.write_str("switched off"),
            Unavailable::NoDevice => f.write_str("no PCI device 1af4:1110"),
            Unavailable::Several => {
                f.write_str("several PCI devices 1af4:1110: name one with --ivshmem")
            }
            Unavailable::Open(libc::EACCES | libc::EPERM) => {
                f.write_str("no right to open the bar")
            }
            Unavailable::Open(libc::ENOENT) => f.write_str("no such file"),
            Unavailable::Open(libc::EISDIR) => f.write_str("the bar is a directory"),
            Unavailable::Open(errno) => write!(f, "the bar cannot be opened (errno {errno})"),
            Unavailable::Bar(why) => why.fmt(f),
            Unavailable::NoBroker => f.write_str("no broker runs here: start `shortwire broker`"),
            Unavailable::Full => f.write_str("all places in the bar are taken"),
        }
    }
}

struct Path(UnsafeCell<[u8; LONGEST + 1]>);
// SAFETY: written once, while the library is loaded and before any other thread of ours reads.
unsafe impl Sync for Path {}
static PATH: Path = Path(UnsafeCell::new([0; LONGEST + 1]));

static FD: AtomicI32 = AtomicI32::new(-1);
/// The place in the bar is, or was, used for a connection.
static USED: AtomicBool = AtomicBool::new(false);
/// Descriptors with the locks of ancestors whose rings this process has inherited.
static KEPT: [AtomicI32; INHERITED] = [const { AtomicI32::new(-1) }; INHERITED];
static LOOKED: AtomicU64 = AtomicU64::new(0);
static OPENING: AtomicU32 = AtomicU32::new(0);

/// A resource2 in sysfs or a file; `off`.
pub fn set(path: &[u8]) {
    // SAFETY: see `Path`.
    let bytes = unsafe { &mut *PATH.0.get() };
    if path.len() <= LONGEST && (path.starts_with(b"/") || path == b"off") {
        *bytes = [0; LONGEST + 1];
        bytes[..path.len()].copy_from_slice(path);
    }
}

/// Opens the bar that was named, or else the only one that there is.
pub fn open() -> Result<i32, Unavailable> {
    // SAFETY: see `Path`.
    let named = unsafe { &*PATH.0.get() };
    if named.starts_with(b"off\0") {
        return Err(Unavailable::Off);
    }
    let found;
    let path = match named[0] {
        0 => {
            found = only_device()?;
            &found
        }
        _ => named,
    };
    let r = open_file(path, libc::O_RDWR | libc::O_NONBLOCK);
    if r < 0 { Err(Unavailable::Open(-r)) } else { Ok(r) }
}

/// `path` ends with a NUL.
fn open_file(path: &[u8], flags: i32) -> i32 {
    CStr::from_bytes_until_nul(path).map_or(-libc::ENAMETOOLONG, |path| sys::open(path, flags, 0))
}

fn path_of(parts: [&[u8]; 4]) -> [u8; LONGEST + 1] {
    let mut path = [0; LONGEST + 1];
    path[..LONGEST].iter_mut().zip(parts.into_iter().flatten()).for_each(|(to, from)| *to = *from);
    path
}

fn only_device() -> Result<[u8; LONGEST + 1], Unavailable> {
    let dir = open_file(&path_of([DEVICES, b"", b"", b""]), libc::O_RDONLY | libc::O_DIRECTORY);
    if dir < 0 {
        return Err(Unavailable::NoDevice);
    }
    let is = |name: &[u8], file: &[u8], wanted: &[u8]| {
        let mut text = [0u8; 8];
        let fd = open_file(&path_of([DEVICES, b"/", name, file]), libc::O_RDONLY);
        let n = sys::read(fd, &mut text);
        sys::close(fd);
        n >= 6 && text.starts_with(wanted)
    };
    let mut found = Err(Unavailable::NoDevice);
    crate::directory::entries(dir, |name| {
        if is(name, b"/vendor", ID.0) && is(name, b"/device", ID.1) {
            found = match found {
                Err(Unavailable::NoDevice) => Ok(path_of([DEVICES, b"/", name, b"/resource2"])),
                _ => Err(Unavailable::Several),
            };
        }
    });
    sys::close(dir);
    found
}

/// This guest, or this network namespace of it, since it was started; never 0.
pub fn guest_id() -> u64 {
    let mut boot = [0u8; 36];
    let fd = sys::open(c"/proc/sys/kernel/random/boot_id", libc::O_RDONLY, 0);
    sys::read(fd, &mut boot);
    let namespace = sys::stat_path(c"/proc/self/ns/net", 0).map_or(0, |st| st.st_ino);
    sys::close(fd);
    crate::hash::keyed([0; 2], &[&boot, &namespace.to_ne_bytes()]).max(1)
}

fn lock_request(fd: i32, command: i32, kind: i32, at: u32) -> Option<libc::flock> {
    // SAFETY: all-zero is a valid flock.
    let mut lock: libc::flock = unsafe { core::mem::zeroed() };
    lock.l_type = kind as i16;
    lock.l_whence = libc::SEEK_SET as i16;
    (lock.l_start, lock.l_len) = (i64::from(at), 1);
    (sys::fcntl(fd, command, &raw mut lock as usize) == 0).then_some(lock)
}

fn hold(fd: i32, at: u32, on: bool) -> bool {
    lock_request(fd, libc::F_OFD_SETLK, if on { libc::F_WRLCK } else { libc::F_UNLCK }, at)
        .is_some()
}

/// Whether some process of this guest but this one has the place `at`. Doubts count as yes.
pub fn is_held(fd: i32, at: u32) -> bool {
    lock_request(fd, libc::F_OFD_GETLK, libc::F_WRLCK, at)
        .is_none_or(|lock| lock.l_type != libc::F_UNLCK as i16)
}

/// Whether a program started from here could use a bar now.
pub fn look() -> Result<(), Unavailable> {
    let fd = open()?;
    let bar = Bar::open(fd, false).map_err(Unavailable::Bar);
    let told = bar.and_then(|bar| broker_of(&bar).map(drop));
    sys::close(fd);
    told
}

/// Place of this guest in the bar, which a broker has given it.
fn broker_of(bar: &Bar) -> Result<u32, Unavailable> {
    let guest = bar.find_guest(guest_id()).ok_or(Unavailable::NoBroker)?;
    bar.pulse(guest).filter(|&(_, _, rests)| !rests).map(|_| guest).ok_or(Unavailable::NoBroker)
}

fn join() -> Result<(), Unavailable> {
    let fd = hidden::park(open()?);
    let joined = Bar::open(fd, false).map_err(Unavailable::Bar).and_then(|bar| {
        let guest = broker_of(&bar)?;
        let member = bar.join(guest, |at, on| hold(fd, at, on)).ok_or(Unavailable::Full)?;
        FD.store(fd, Relaxed);
        IVSHMEM.open(bar, member);
        Ok(())
    });
    joined.inspect_err(|_| hidden::close(fd))
}

/// Whether this process has the bar, or gets it now.
pub fn is_available() -> bool {
    if FD.load(Relaxed) >= 0 {
        return IVSHMEM.is_open();
    }
    let now = sys::coarse_ns();
    let looked = LOOKED.load(Relaxed);
    let kept = KEPT.iter().all(|fd| fd.load(Relaxed) >= 0);
    if looked == NEVER
        || kept
        || looked != 0 && now.wrapping_sub(looked) < AGAIN
        || !hidden::room()
        || OPENING.swap(1, Acquire) != 0
    {
        return false;
    }
    LOOKED.store(now.max(1), Relaxed);
    let is_new = FD.load(Relaxed) < 0;
    let joined = if is_new { join() } else { Ok(()) };
    if joined == Err(Unavailable::NoDevice) {
        LOOKED.store(NEVER, Relaxed);
    }
    OPENING.store(0, Release);
    joined.is_ok()
}

/// First half of the GIDs of those who share the bar; 0 without one.
pub fn id() -> u64 {
    IVSHMEM.with_bar(|bar, _| bar.id()).unwrap_or(0)
}

/// The secret of those who share it.
pub fn secret() -> Option<[u64; 2]> {
    IVSHMEM.with_bar(|bar, _| bar.secret())
}

/// A buffer is about to be made or attached.
pub(crate) fn in_use() {
    USED.store(true, Relaxed);
}

/// Whether there is so little room in it that nothing may be kept for later.
pub(crate) fn is_short() -> bool {
    IVSHMEM.with_bar(|bar, _| bar.is_short()).unwrap_or(false)
}

/// Frees what ended processes of this guest have left. What one of another guest had attached is
/// freed by both.
pub(crate) fn reclaim() {
    let fd = FD.load(Relaxed);
    IVSHMEM.with_bar(|bar, own| {
        let guest = bar.guest_of(own.id);
        bar.reclaim(|id| {
            id != own.id && bar.guest_of(id) == guest && !is_held(fd, Member::index(id))
        })
    });
}

/// The hidden descriptor had to move.
pub(crate) fn moved_fd(from: i32, to: i32) {
    for fd in KEPT.iter().chain([&FD]) {
        let _ = fd.compare_exchange(from, to, Relaxed, Relaxed);
    }
    IVSHMEM.with_bar(|bar, _| bar.moved(from, to));
}

/// In a fork child: whether a hidden descriptor of its parent's stays open.
pub(crate) fn keeps(fd: i32) -> bool {
    KEPT.iter().any(|kept| kept.load(Relaxed) == fd) || fd == FD.load(Relaxed) && USED.load(Relaxed)
}

/// In a fork child: it is another member. The parent's place is held as long as the rings that it
/// made may be used here.
pub(crate) fn after_fork_child() {
    let fd = FD.swap(-1, Relaxed);
    if fd >= 0 && USED.swap(false, Relaxed) {
        let _ = KEPT.iter().any(|kept| kept.compare_exchange(-1, fd, Relaxed, Relaxed).is_ok());
    }
    LOOKED.store(0, Relaxed);
    OPENING.store(0, Relaxed);
}
