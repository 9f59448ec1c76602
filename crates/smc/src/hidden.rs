//! Descriptors of our own, kept out of the application's way.
//!
//! They sit high in the descriptor table, so that the numbers which the application gets stay what
//! they would be without us, and the preload layer knows their numbers, so that a loop over `close`
//! leaves them alone.

use alloc::vec::Vec;
use core::ffi::CStr;
use core::sync::atomic::{AtomicI32, AtomicU32, AtomicU64, Ordering::Relaxed};

use crate::sys;

/// Hidden descriptors at most, if the process may have many.
pub const MAX: usize = 1024;

/// Descriptors and one, 0: a free place; above them how often the place was taken.
static FDS: [AtomicU64; MAX] = [const { AtomicU64::new(0) }; MAX];
const FD: u64 = u32::MAX as u64;
static COUNT: AtomicU32 = AtomicU32::new(0);
/// No hidden descriptor is below this one.
static LOWEST: AtomicI32 = AtomicI32::new(i32::MAX);
/// And none was ever above this one. Programs close all numbers that they may have, up to a million.
static HIGHEST: AtomicI32 = AtomicI32::new(-1);

/// Where parked descriptors begin under the present descriptor limit.
fn base() -> Option<usize> {
    let (limit, _) = sys::descriptor_limit()?;
    // Not at the very top: programs size tables by the limit, and a lower number costs the kernel a
    // smaller table.
    let usable = limit.min(65_536);
    (usable > 64).then_some((usable - usable / 8) as usize)
}

/// Files of the table left open over an exec: where one is among the first descriptors from `base`
/// on, others may be behind it.
pub fn find_tables() -> Vec<i32> {
    const FIRST: i32 = 8;
    let Some(base) = base() else { return Vec::new() };
    let base = base as i32;
    // Every program that starts asks here, and most have nothing open there: a look into /proc for
    // each number would make each start longer. A sandbox that is kept over exec allows fcntl.
    let is_open = |fd: &i32| sys::fcntl(*fd, libc::F_GETFD, 0) >= 0;
    let first = (base..base + FIRST).filter(is_open);
    let mut found: Vec<i32> = first.filter(|&fd| is_table(fd)).collect();
    if !found.is_empty() {
        let ours = sys::open_descriptors(base + FIRST).take_while(|&fd| fd < base + MAX as i32);
        found.extend(ours.filter(|&fd| is_table(fd)));
    }
    found
}

/// Whether it is a memfd with the name of our table, as /proc shows it.
fn is_table(fd: i32) -> bool {
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
    let target =
        CStr::from_bytes_until_nul(&path).ok().and_then(|path| sys::readlink(path, &mut link));
    target.is_some_and(|target| target.starts_with(b"/memfd:shortwire-table"))
}

/// Moves `fd` to a high number and remembers it. On failure `fd` stays where it is, remembered all
/// the same.
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
    HIGHEST.fetch_max(fd, Relaxed);
    let takes = |word: u64| (number(word) < 0).then(|| (word | FD).wrapping_add(1) | word_of(fd));
    if FDS.iter().any(|slot| slot.fetch_update(Relaxed, Relaxed, takes).is_ok()) {
        COUNT.fetch_add(1, Relaxed);
    }
}

/// A descriptor of ours wherever it is moved. Its number may be the application's as soon as that
/// asks for it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Handle {
    slot: u32,
    serial: u32,
}

/// The handle of a parked descriptor; None if there was no place to note it in.
pub fn handle(fd: i32) -> Option<Handle> {
    let words = FDS.iter().map(|slot| slot.load(Relaxed)).enumerate();
    let (slot, word) = words.into_iter().find(|(_, word)| fd >= 0 && number(*word) == fd)?;
    Some(Handle { slot: slot as u32, serial: (word >> 32) as u32 })
}

impl Handle {
    /// In one word, which is not 0.
    pub fn pack(self) -> u64 {
        u64::from(self.serial) << 32 | u64::from(self.slot)
    }

    /// Back from `pack`; None from 0 and from what is no handle.
    pub fn unpack(word: u64) -> Option<Handle> {
        let (slot, serial) = (word as u32, (word >> 32) as u32);
        (word != 0 && (slot as usize) < MAX).then_some(Handle { slot, serial })
    }

    /// Its number now; None if it was closed.
    pub fn descriptor(self) -> Option<i32> {
        let word = FDS[self.slot as usize].load(Relaxed);
        ((word >> 32) as u32 == self.serial && number(word) >= 0).then(|| number(word))
    }

    /// Closes it.
    pub fn close(self) {
        if let Some(fd) = self.descriptor() {
            close_at(&FDS[self.slot as usize], fd);
        }
    }
}

fn number(word: u64) -> i32 {
    word as u32 as i32 - 1
}

fn word_of(fd: i32) -> u64 {
    u64::from((fd + 1) as u32)
}

/// Makes a place free that has this descriptor.
fn free(slot: &AtomicU64, fd: i32) -> bool {
    let frees = |word| (number(word) == fd).then_some(word & !FD);
    let is_freed = fd >= 0 && slot.fetch_update(Relaxed, Relaxed, frees).is_ok();
    if is_freed {
        COUNT.fetch_sub(1, Relaxed);
    }
    is_freed
}

fn close_at(slot: &AtomicU64, fd: i32) -> bool {
    let is_freed = free(slot, fd);
    if is_freed {
        sys::close(fd);
    }
    is_freed
}

/// Whether another hidden descriptor may be made: a quarter of what the process may have.
pub fn room() -> bool {
    const SPARE: usize = 8;
    let most = sys::descriptor_limit().map_or(0, |(limit, _)| (limit as usize / 4).min(MAX));
    COUNT.load(Relaxed) as usize + SPARE < most
}

/// Whether another hidden descriptor may be made that stays for long, perhaps in vain: half of the
/// room is kept for handshakes, whose descriptors come and go.
pub fn room_to_stay() -> bool {
    (COUNT.load(Relaxed) as usize) < most_to_stay()
}

/// Whether those of another bell may be made: there is a way without.
pub fn room_for_bells() -> bool {
    (COUNT.load(Relaxed) as usize) < most_to_stay() / 4 * 3
}

/// The same of a bell between users: whoever comes as many processes shall not take the room of all
/// others.
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
    (LOWEST.load(Relaxed)..=HIGHEST.load(Relaxed)).contains(&fd)
        && FDS.iter().any(|slot| number(slot.load(Relaxed)) == fd)
}

/// Closes a parked descriptor.
pub fn close(fd: i32) {
    let _ = fd >= 0 && FDS.iter().any(|slot| close_at(slot, fd));
}

/// A number is ours no more: the program has closed it past us, or there is another file of its
/// own.
pub fn forget(fd: i32) {
    let _ = fd >= 0 && FDS.iter().any(|slot| free(slot, fd));
}

/// All parked descriptors.
pub fn all() -> impl Iterator<Item = i32> {
    FDS.iter().map(|slot| number(slot.load(Relaxed))).filter(|fd| *fd >= 0)
}

/// The application wants this number: moves a descriptor of ours out of its way. The new number,
/// below 0 if there is none.
pub(crate) fn give_way(fd: i32) -> Option<i32> {
    let slot = FDS.iter().find(|slot| number(slot.load(Relaxed)) == fd)?;
    // Always to a higher number, so LOWEST holds.
    let moved = (sys::fcntl(fd, libc::F_DUPFD_CLOEXEC, fd as usize + 1) as i32).max(-1);
    HIGHEST.fetch_max(moved, Relaxed);
    let moves = |word| (number(word) == fd).then_some(word & !FD | word_of(moved));
    if slot.fetch_update(Relaxed, Relaxed, moves).is_err() && moved >= 0 {
        // Another thread has closed it meanwhile.
        sys::close(moved);
    }
    Some(moved)
}

/// In a fork child: rendezvous channels are the parent's; the child keeps the descriptors that
/// `keeps` names.
pub(crate) fn after_fork_child(keeps: impl Fn(i32) -> bool) {
    all().filter(|&fd| !keeps(fd)).for_each(close);
}
