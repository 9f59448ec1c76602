//! The connection table: what a process knows of its connections, shared with what it forks as far
//! as they share connections, and readable by `shortwire ss`.
//!
//! Its slots lie in files, memfds named `shortwire-table`, kept open as high hidden descriptors, so
//! that a reader of the same user finds them as `/proc/PID/fd/N` and nothing is left when the last
//! process ends, however it ends. A process never makes a connection in a file that another one has
//! (`slots`): who has a connection in its memory has, or had, its descriptor. The first file is the
//! family's, of a process and all that it forks: the counters and the rows of link groups in it are
//! everybody's, and only shown. Slots are type-stable: a `Conn` is reused but never unmapped, so a
//! late reader sees another connection at worst.
#![allow(unsafe_code)]

mod own;
mod slots;
mod waits;

use alloc::vec::Vec;
use core::sync::atomic::{AtomicBool, AtomicPtr, AtomicU32, AtomicU64, Ordering};

use rustix::mm::{MapFlags, ProtFlags};

use crate::census::{self, ROWS, Row};
use crate::conn::Conn;
use crate::kind::Kind;
use crate::stats::Stats;
use crate::{off, sys};

pub use crate::conn::WAITS;
pub use own::Own;
pub use slots::{
    after_fork_child, after_fork_parent, before_fork, hidden_fds, is_here, is_mapped,
    keep_for_exec, undo_exec,
};

/// First eight bytes of a file.
pub const MAGIC: u64 = u64::from_le_bytes(*b"SHORTWIR");
/// Layout version; readers refuse any other.
pub const VERSION: u32 = 16;
/// Where the rows of link groups begin.
pub const GROUPS_AT: usize = size_of::<Header>();
/// Where the first connection slot begins.
pub const SLOTS_AT: usize = (GROUPS_AT + ROWS * size_of::<Row>()).next_multiple_of(LARGEST_PAGE);
/// The largest pages that a kernel may have here: slots are mapped at whole ones of them.
pub const LARGEST_PAGE: usize = if cfg!(target_arch = "aarch64") { 1 << 16 } else { 4096 };
/// Slots of a file, and places of a process: connections that it can have under observation.
pub const CAPACITY: u32 = 1 << 17;

/// The first page of a file.
#[repr(C, align(4096))]
pub struct Header {
    /// `MAGIC`, stored last.
    pub magic: AtomicU64,
    /// `VERSION`.
    pub version: AtomicU32,
    /// `size_of::<Conn>()` of the writer.
    pub conn_size: AtomicU32,
    /// Slots of the file from this one on were never used.
    pub high_water: AtomicU32,
    /// Of a first file: process that made it, and its effective user.
    pub creator: AtomicU32,
    /// See `creator`.
    pub uid: AtomicU32,
    /// 1: the first file of its family. Of the others what follows is zero.
    pub first: AtomicU32,
    /// Devices that were taken away, a bit for each (`Kind::bit`), and `OFF` and `DRAIN`: the one
    /// word that others write (`shortwire devices --remove`, `shortwire off`). It counts only where
    /// the file's mode says the same (`mode_of`).
    pub removed: AtomicU32,
    /// Nothing: each call looks at the word above, and what follows is counted in all the time.
    pub apart: [AtomicU32; 5],
    /// Of a first file: what its library was built from (`release::build`), 0 if that is not known.
    pub build: AtomicU64,
    /// Sums over all connections of the family. What a living one has counted of bytes, calls and
    /// wake-ups is added when it ends.
    pub stats: Stats,
    /// How much of them was given to what is kept of the user's programs (`kept`).
    pub given: Stats,
    /// When lines of the log were written.
    pub log: crate::log::Places,
}

/// No connection begins an upgrade any more.
pub const OFF: u32 = 1 << 8;
/// Beside `OFF`: connections go back to TCP.
pub const DRAIN: u32 = 1 << 9;

/// What a file's header says of it.
#[derive(Clone, Copy)]
struct Head {
    high_water: u32,
    first: bool,
}

static TABLE: AtomicPtr<Header> = AtomicPtr::new(core::ptr::null_mut());
/// Devices of which the first file's mode has shown that they were taken away.
static REMOVED: AtomicU32 = AtomicU32::new(0);

/// Bytes of a whole file.
pub const fn len() -> usize {
    SLOTS_AT + CAPACITY as usize * size_of::<Conn>()
}

/// The process's table, made at the first use; None when there is no memory for it.
pub fn get() -> Option<&'static Header> {
    let p = TABLE.load(Ordering::Acquire);
    if !p.is_null() {
        // SAFETY: published once below, never unmapped.
        return Some(unsafe { &*p });
    }
    make()
}

/// The index of a slot; out of range for a `Conn` that is not in the table.
#[inline]
pub fn index_of(conn: &Conn) -> usize {
    let slots = TABLE.load(Ordering::Relaxed) as usize + SLOTS_AT;
    (conn as *const Conn as usize).wrapping_sub(slots) / size_of::<Conn>()
}

/// What this process notes for itself of the connection that lies, or has a part, at this address.
#[inline]
pub fn own_at(address: *const ()) -> &'static Own {
    let slots = TABLE.load(Ordering::Relaxed) as usize + SLOTS_AT;
    let index = (address as usize).wrapping_sub(slots) / size_of::<Conn>();
    // Without a table every address is out of range.
    if index < CAPACITY as usize { slots::own(index as u32) } else { &own::NOBODYS }
}

/// Whether the process has a table yet.
pub fn exists() -> bool {
    !TABLE.load(Ordering::Acquire).is_null()
}

/// The mode of a first file of which these devices were taken away. The kernel lets only its owner
/// and root set it, and none of the family who has given up that user.
pub const fn mode_of(removed: u32) -> u32 {
    // The four bits of `Kind::bit`, as those by which others read and write.
    let off = if removed & OFF != 0 { STICKY } else { 0 };
    0o600 | off | (removed >> 1 & 0b11) << 1 | (removed >> 1 & 0b1100) << 2
}

/// The bit of a mode that means nothing for files, by which one tells that it is switched off. (Of a
/// memfd the bits for execution may be sealed.)
const STICKY: u32 = 0o1000;

/// It was switched off when the table was made, of which there is no file to say so.
static OFF_WITHOUT_FILE: AtomicBool = AtomicBool::new(false);

/// Whether this process and what it forked are switched off.
pub fn is_off() -> bool {
    word() & OFF != 0 && (mode() & STICKY != 0 || OFF_WITHOUT_FILE.load(Ordering::Relaxed))
}

/// Whether connections are to go back to TCP: a look that is cheap, and `is_draining` has to
/// confirm.
#[inline(always)]
pub fn may_drain() -> bool {
    word() & DRAIN != 0
}

/// Whether a device may have been taken away, or connections may have to go back to TCP: calls that
/// look for neither leave them to those that do. `OFF` by itself changes no connection that there is.
#[inline(always)]
pub fn may_have_changed() -> bool {
    word() & !OFF != 0
}

/// Whether connections are to go back to TCP.
#[cold]
pub fn is_draining() -> bool {
    may_drain() && is_off()
}

#[inline(always)]
fn word() -> u32 {
    let table = TABLE.load(Ordering::Acquire);
    // SAFETY: null, or published once and never unmapped.
    unsafe { table.as_ref() }.map_or(0, |table| table.removed.load(Ordering::Relaxed))
}

/// Of the first file.
fn mode() -> u32 {
    slots::first_fd().and_then(sys::stat).map_or(0, |st| st.st_mode)
}

/// Whether a device was taken away from this process and what it forked.
pub fn is_removed(kind: Kind) -> bool {
    exists()
        && get().is_some_and(|table| {
            table.removed.load(Ordering::Relaxed) & kind.bit() != 0 && is_proven(kind)
        })
}

#[cold]
fn is_proven(kind: Kind) -> bool {
    if REMOVED.load(Ordering::Relaxed) & kind.bit() == 0 {
        let mode = mode();
        let proven = Kind::ALL
            .into_iter()
            .map(Kind::bit)
            .filter(|bit| mode & mode_of(*bit) & 0o66 != 0)
            .sum();
        REMOVED.store(proven, Ordering::Relaxed);
    }
    REMOVED.load(Ordering::Relaxed) & kind.bit() != 0
}

/// Takes on files of the table that this process had before its exec, those of the descriptors
/// `fds` that are such.
pub fn adopt(fds: impl Iterator<Item = i32>) -> Option<&'static Header> {
    let (firsts, others): (Vec<_>, Vec<_>) =
        fds.filter_map(|fd| Some((fd, head_of(fd)?))).partition(|(_, head)| head.first);
    let &(fd, head) = firsts.first()?;
    let base = map(fd);
    if base.is_null() {
        return None;
    }
    if !slots::begin()
        || TABLE
            .compare_exchange(core::ptr::null_mut(), base, Ordering::AcqRel, Ordering::Acquire)
            .is_err()
    {
        // SAFETY: nobody else has seen this mapping.
        unsafe { sys::give_back(base.cast(), len()) };
        return None;
    }
    slots::adopt_first(fd, head.high_water);
    others.iter().for_each(|&(fd, head)| slots::adopt(fd, head.high_water));
    // SAFETY: mapped above.
    let table = unsafe { &*base };
    census::begin_anew(table.groups());
    Some(table)
}

/// What stands at the beginning of a file of our layout.
fn head_of(fd: i32) -> Option<Head> {
    let mut words = [0u32; 8];
    let bytes = size_of_val(&words);
    // SAFETY: writable for that many bytes.
    let read = unsafe { sys::read_into(fd, words.as_mut_ptr().cast(), bytes, Some(0)) };
    let ours = [MAGIC as u32, (MAGIC >> 32) as u32, VERSION, size_of::<Conn>() as u32];
    (read == bytes as isize && words[..4] == ours)
        .then(|| Head { high_water: words[4], first: words[7] == 1 })
}

/// Whether a file of the table's length may be made: beyond RLIMIT_FSIZE it would kill the program
/// by SIGXFSZ.
fn may_be_long() -> bool {
    rustix::process::getrlimit(rustix::process::Resource::Fsize)
        .current
        .is_none_or(|most| len() as u64 <= most)
}

#[cold]
fn make() -> Option<&'static Header> {
    if !slots::begin() {
        return None;
    }
    let fd = sys::memfd(c"shortwire-table");
    let made = fd >= 0 && may_be_long() && sys::set_len(fd, len()) == 0;
    let base = if made { map(fd) } else { core::ptr::null_mut() };
    // Without a memfd (seccomp, no descriptors) the table still works; only `ss` cannot see it.
    let base = if base.is_null() { sys::reserve(len(), true).cast::<Header>() } else { base };
    if base.is_null() {
        if fd >= 0 {
            sys::close(fd);
        }
        return None;
    }
    sys::set_mode(fd, mode_of(0));
    // In front of the mark of a complete table: who finds that and comes again, to say that a device
    // is gone, finds the file under the same number.
    let fd = if fd >= 0 { crate::hidden::park(fd) } else { fd };
    // SAFETY: fresh zeroed memory of the right size and alignment; zero is a valid Header.
    let table = unsafe { &*base };
    table.version.store(VERSION, Ordering::Relaxed);
    table.conn_size.store(size_of::<Conn>() as u32, Ordering::Relaxed);
    table.creator.store(sys::getpid(), Ordering::Relaxed);
    table.uid.store(rustix::process::geteuid().as_raw(), Ordering::Relaxed);
    table.build.store(crate::release::build(), Ordering::Relaxed);
    table.first.store(1, Ordering::Relaxed);
    table.magic.store(MAGIC, Ordering::Release);
    if TABLE
        .compare_exchange(core::ptr::null_mut(), base, Ordering::AcqRel, Ordering::Acquire)
        .is_err()
    {
        // SAFETY: nobody else has seen this mapping.
        unsafe { sys::give_back(base.cast(), len()) };
        if fd >= 0 {
            crate::hidden::forget(fd);
            sys::close(fd);
        }
    } else {
        if fd >= 0 {
            slots::first_is(fd);
        }
        // From here on whoever switches off finds the table. Who has done so before has left a file.
        if off::is_for_all() || off::is_for(rustix::process::geteuid().as_raw()) {
            match slots::first_fd() {
                Some(fd) => _ = sys::set_mode(fd, mode_of(OFF)),
                None => OFF_WITHOUT_FILE.store(true, Ordering::Relaxed),
            }
            table.removed.store(OFF, Ordering::Relaxed);
        }
    }
    get()
}

fn map(fd: i32) -> *mut Header {
    let prot = ProtFlags::READ | ProtFlags::WRITE;
    shm::address::map(len(), prot, MapFlags::SHARED, Some((fd, 0)))
        .map_or(core::ptr::null_mut(), <*mut _>::cast)
}

/// A hidden descriptor had to move.
pub(crate) fn moved_fd(from: i32, to: i32) {
    slots::moved_fd(from, to);
}

impl Header {
    /// The rows of link groups.
    pub fn groups(&self) -> &[Row] {
        let rows = (self as *const Self as usize + GROUPS_AT) as *const Row;
        // SAFETY: the mapping has that many rows in front of the slots, and zero is a valid Row.
        unsafe { core::slice::from_raw_parts(rows, ROWS) }
    }

    /// The slot at `index`.
    pub fn conn(&self, index: u32) -> &Conn {
        debug_assert!(index < CAPACITY);
        let slots = (self as *const Self as usize + SLOTS_AT) as *const Conn;
        // SAFETY: index is below CAPACITY, that many slots are mapped, of one file or another, and
        // zero is a valid Conn.
        unsafe { &*slots.add(index as usize) }
    }

    /// The slots that this process uses, in turn; it may begin to use others, and cease to use
    /// these, meanwhile.
    pub fn here(&self) -> impl Iterator<Item = (u32, &Conn)> {
        (0..slots::used()).filter(|&index| is_here(index)).map(|index| (index, self.conn(index)))
    }

    /// Slots from this one on were never used here.
    pub fn used(&self) -> u32 {
        slots::used()
    }

    /// Takes a free slot, which no other process has; None in a signal handler that interrupted
    /// this.
    pub fn alloc(&self) -> Option<u32> {
        let (index, generation) = slots::alloc(self)?;
        self.conn(index).identity.gen_.store(generation, Ordering::Relaxed);
        Some(index)
    }

    /// Gives a slot back, whose connection has ended.
    pub fn free(&self, index: u32) {
        slots::free(index);
    }

    /// This process does not use a slot any more, and others do.
    pub fn leave(&self, index: u32) {
        slots::leave(index);
    }

    /// It does so after all, or again; false if it cannot, because the slot is not mapped here any
    /// more.
    pub fn enter(&self, index: u32) -> bool {
        slots::enter(index)
    }

    /// Takes a wait number, 1..WAITS; 0 when all are taken.
    pub fn take_wait(&self) -> u32 {
        waits::take()
    }

    /// Gives a wait number back.
    pub fn free_wait(&self, wait: u32) {
        waits::free(wait);
    }

    /// Takes a row of bits for a wait (`conn::announce`): its number plus one; 0 when all are taken.
    pub fn take_row(&self) -> u32 {
        waits::take_row()
    }

    /// Gives a row back.
    pub fn free_row(&self, row: u32) {
        waits::free_row(row);
    }

    /// The connection in a slot that is mapped here whose socket has this inode, and of which
    /// `which` holds.
    pub fn find(&self, inode: u32, which: impl Fn(u32, &Conn) -> bool) -> Option<u32> {
        (0..slots::used()).filter(|&index| slots::is_mapped(index)).find(|&index| {
            let c = self.conn(index);
            c.identity.gen_.load(Ordering::Acquire) & 1 == 1
                && c.identity.inode.load(Ordering::Relaxed) == inode
                && which(index, c)
        })
    }
}
