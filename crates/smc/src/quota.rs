//! What the processes of a user have of receive buffers together, for those that are to keep to a
//! common limit.
//!
//! Each has a place in a small file in `$SHORTWIRE_RUN_DIR` or /dev/shm and holds a record lock on
//! it. The kernel takes the lock back when the process ends, however it ends, and what stands at a
//! place without a lock does not count any more. The file stays.
#![allow(unsafe_code)]

use core::ffi::CStr;
use core::sync::atomic::{AtomicI32, AtomicPtr, AtomicU32, AtomicU64, Ordering::*};

use crate::config::CONFIG;
use crate::{hidden, run_dir, sys};

/// Processes of one user that can have buffers under the limit at a time.
const PLACES: usize = 2048;
const LEN: usize = PLACES * size_of::<AtomicU64>();
const NOWHERE: u32 = u32::MAX;

type Places = [AtomicU64; PLACES];

static SHEET: AtomicPtr<Places> = AtomicPtr::new(core::ptr::null_mut());
static FD: AtomicI32 = AtomicI32::new(-1);
static PLACE: AtomicU32 = AtomicU32::new(NOWHERE);

/// Whether this process may have `bytes` in all; noted if so. Callers take turns.
pub fn admit(bytes: u64) -> bool {
    let most = CONFIG.max_memory_user.load(Relaxed);
    if most == 0 {
        return true;
    }
    let Some(own) = place() else { return false };
    let sheet = sheet();
    let before = sheet[own].swap(bytes, SeqCst);
    // SYNC: quota. Noted before the others are looked at: of two that ask for the last of it at most
    // one gets it.
    let others =
        (0..PLACES).filter(|&at| at != own).fold(0u64, |sum, at| match sheet[at].load(SeqCst) {
            n if n == 0 || is_free(at) => sum,
            n => sum.saturating_add(n),
        });
    let fits = others.saturating_add(bytes) <= most;
    if !fits {
        sheet[own].store(before, SeqCst);
    }
    fits
}

/// Notes what this process has.
pub fn note(bytes: u64) {
    let own = PLACE.load(Relaxed);
    if own != NOWHERE {
        sheet()[own as usize].store(bytes, SeqCst);
    }
}

/// Record locks and hidden descriptors are the parent's.
pub(crate) fn after_fork_child() {
    PLACE.store(NOWHERE, Relaxed);
    FD.store(-1, Relaxed);
}

/// The hidden descriptor had to move.
pub(crate) fn moved_fd(from: i32, to: i32) {
    let _ = FD.compare_exchange(from, to, Relaxed, Relaxed);
}

fn sheet() -> &'static Places {
    // SAFETY: callers have a place, which is had after the mapping, and that is never unmapped.
    unsafe { &*SHEET.load(Acquire) }
}

/// The place of this process. Its lock is renewed: a descriptor of ours that makes way for one of
/// the application takes it along.
fn place() -> Option<usize> {
    if FD.load(Relaxed) < 0 || SHEET.load(Relaxed).is_null() {
        open()?;
    }
    let own = PLACE.load(Relaxed);
    if own != NOWHERE && lock(own as usize) {
        return Some(own as usize);
    }
    let at = (0..PLACES).find(|&at| lock(at))?;
    sheet()[at].store(0, SeqCst);
    PLACE.store(at as u32, Relaxed);
    Some(at)
}

fn request(command: i32, at: usize) -> Option<libc::flock> {
    // SAFETY: all-zero is a valid flock.
    let mut lock: libc::flock = unsafe { core::mem::zeroed() };
    lock.l_type = libc::F_WRLCK as i16;
    lock.l_whence = libc::SEEK_SET as i16;
    (lock.l_start, lock.l_len) = (at as i64, 1);
    (sys::fcntl(FD.load(Relaxed), command, &raw mut lock as usize) == 0).then_some(lock)
}

fn lock(at: usize) -> bool {
    request(libc::F_SETLK, at).is_some()
}

/// Whether nobody else holds the place. Doubts count as no.
fn is_free(at: usize) -> bool {
    request(libc::F_GETLK, at).is_some_and(|lock| lock.l_type == libc::F_UNLCK as i16)
}

fn open() -> Option<()> {
    let uid = rustix::process::geteuid().as_raw();
    let path = run_dir::path(b"shortwire-memory-", uid);
    let flags = libc::O_RDWR | libc::O_CREAT | libc::O_NOFOLLOW | libc::O_NONBLOCK;
    let fd = sys::open(CStr::from_bytes_until_nul(&path).ok()?, flags, 0o600);
    if fd < 0 {
        return None;
    }
    // The directory is everybody's: another user may have been there first.
    let ours = sys::stat(fd).is_some_and(|st| (st.st_uid, st.st_mode) == (uid, libc::S_IFREG | 0o600))
        // Every page is there: the first touch cannot fail.
        && sys::allocate(fd, LEN) == 0;
    let sheet = match SHEET.load(Acquire) {
        _ if !ours => core::ptr::null_mut(),
        p if !p.is_null() => p,
        _ => sys::map_file(fd, LEN).cast(),
    };
    if sheet.is_null() {
        sys::close(fd);
        return None;
    }
    SHEET.store(sheet, Release);
    FD.store(hidden::park(fd), Relaxed);
    Some(())
}
