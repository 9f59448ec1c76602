//! Descriptors of our own, kept out of the application's way.
//!
//! They sit high in the descriptor table, so that the numbers which the application gets stay what they would be
//! without us, and the preload layer knows their numbers, so that a loop over `close` leaves them alone.

use core::ffi::CStr;
use core::sync::atomic::{AtomicI32, AtomicU32, Ordering::Relaxed};

use crate::sys;

/// Hidden descriptors at most, if the process may have many.
pub const MAX: usize = 1024;

static FDS: [AtomicI32; MAX] = [const { AtomicI32::new(0) }; MAX];
static COUNT: AtomicU32 = AtomicU32::new(0);
/// No hidden descriptor is below this one.
static LOWEST: AtomicI32 = AtomicI32::new(i32::MAX);

/// Where parked descriptors begin under the present descriptor limit.
fn base() -> Option<usize> {
    let (limit, _) = sys::descriptor_limit()?;
    // Not at the very top: programs size tables by the limit, and a lower number costs the kernel a smaller table.
    let usable = limit.min(65_536);
    (usable > 64).then_some((usable - usable / 8) as usize)
}

/// A table left open over an exec: the first descriptors from `base` on are looked at.
pub fn find_table() -> Option<i32> {
    let base = base()? as i32;
    (base..base + 8).find(|&fd| {
        // A memfd with the name of our table, as /proc shows it.
        let mut path = *b"/proc/self/fd/\0\0\0\0\0\0\0\0\0\0";
        let mut digits = [0u8; 10];
        let (mut n, mut at) = (fd, digits.len());
        while n > 0 {
            at -= 1;
            digits[at] = b'0' + (n % 10) as u8;
            n /= 10;
        }
        path[14..14 + digits.len() - at].copy_from_slice(&digits[at..]);
        let mut link = [0u8; 32];
        let target = CStr::from_bytes_until_nul(&path).ok().and_then(|path| sys::readlink(path, &mut link));
        target.is_some_and(|target| target.starts_with(b"/memfd:shortwire-table"))
    })
}

/// Moves `fd` to a high number and remembers it. On failure `fd` stays where it is, remembered all the same.
pub fn park(fd: i32) -> i32 {
    let mut at = fd;
    if let Some(base) = base() {
        let moved = sys::fcntl(fd, libc::F_DUPFD_CLOEXEC, base);
        if moved >= 0 {
            sys::close(fd);
            at = moved as i32;
        }
    }
    remember(at);
    at
}

/// Notes a descriptor as ours.
pub fn remember(fd: i32) {
    LOWEST.fetch_min(fd, Relaxed);
    for slot in &FDS {
        if slot.compare_exchange(0, fd + 1, Relaxed, Relaxed).is_ok() {
            COUNT.fetch_add(1, Relaxed);
            return;
        }
    }
}

/// Whether another hidden descriptor may be made: a quarter of what the process may have.
pub fn room() -> bool {
    const SPARE: usize = 8;
    let most = sys::descriptor_limit().map_or(0, |(limit, _)| (limit as usize / 4).min(MAX));
    COUNT.load(Relaxed) as usize + SPARE < most
}

/// Whether another hidden descriptor may be made that stays for long, perhaps in vain: half of the room is kept for handshakes,
/// whose descriptors come and go.
pub fn room_to_stay() -> bool {
    (COUNT.load(Relaxed) as usize) < most_to_stay()
}

/// Whether those of another bell may be made: there is a way without.
pub fn room_for_bells() -> bool {
    (COUNT.load(Relaxed) as usize) < most_to_stay() / 4 * 3
}

/// The same of a bell between users: whoever comes as many processes shall not take the room of all others.
pub fn room_for_bells_of_strangers() -> bool {
    (COUNT.load(Relaxed) as usize) < most_to_stay() / 2
}

/// An eighth of what the process may have: from `base` on.
fn most_to_stay() -> usize {
    sys::descriptor_limit().map_or(0, |(limit, _)| (limit as usize / 8).min(MAX / 2))
}

/// Whether `fd` is one of ours.
#[inline]
pub fn contains(fd: i32) -> bool {
    fd >= LOWEST.load(Relaxed) && FDS.iter().any(|s| s.load(Relaxed) == fd + 1)
}

/// Closes a parked descriptor.
pub fn close(fd: i32) {
    // One above it stands for a free slot.
    if fd < 0 {
        return;
    }
    for slot in &FDS {
        if slot.compare_exchange(fd + 1, 0, Relaxed, Relaxed).is_ok() {
            COUNT.fetch_sub(1, Relaxed);
            sys::close(fd);
            return;
        }
    }
}

/// A number is ours no more: the program has closed it past us, or there is another file of its own.
pub fn forget(fd: i32) {
    if FDS.iter().any(|slot| fd >= 0 && slot.compare_exchange(fd + 1, 0, Relaxed, Relaxed).is_ok()) {
        COUNT.fetch_sub(1, Relaxed);
    }
}

/// All parked descriptors.
pub fn all() -> impl Iterator<Item = i32> {
    FDS.iter().map(|s| s.load(Relaxed) - 1).filter(|fd| *fd >= 0)
}

/// The application wants this number: moves a descriptor of ours out of its way. The new number, below 0 if there is none.
pub(crate) fn give_way(fd: i32) -> Option<i32> {
    let slot = FDS.iter().find(|slot| slot.load(Relaxed) == fd + 1)?;
    // Always to a higher number, so LOWEST holds.
    let moved = sys::fcntl(fd, libc::F_DUPFD_CLOEXEC, fd as usize + 1) as i32;
    slot.store(moved.max(-1) + 1, Relaxed);
    Some(moved)
}

/// In a fork child: rendezvous channels are the parent's; the child keeps the descriptors that `keeps` names.
pub(crate) fn after_fork_child(keeps: impl Fn(i32) -> bool) {
    all().filter(|&fd| !keeps(fd)).for_each(close);
}
