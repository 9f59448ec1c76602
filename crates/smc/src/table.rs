//! The connection table: memory shared by a process and its fork children, and readable by `shortwire ss`.
//!
//! It lives in a memfd named `shortwire-table`, kept open as a high hidden descriptor, so that a reader of the same
//! user finds it as `/proc/PID/fd/N` and nothing is left when the last process ends, however it ends.
//! Slots are type-stable: a `Conn` is reused but never unmapped, so a late reader sees another connection at worst.
#![allow(unsafe_code)]

use core::sync::atomic::{AtomicPtr, AtomicU32, AtomicU64, Ordering};

use rustix::mm::{MapFlags, ProtFlags};

use crate::census::{self, ROWS, Row};
use crate::conn::Conn;
use crate::kind::Kind;
use crate::stats::Stats;
use crate::sys;

/// First eight bytes of the table.
pub const MAGIC: u64 = u64::from_le_bytes(*b"SHORTWIR");
/// Layout version; readers refuse any other.
pub const VERSION: u32 = 14;
/// Where the rows of link groups begin.
pub const GROUPS_AT: usize = size_of::<Header>();
/// Where the first connection slot begins.
pub const SLOTS_AT: usize = GROUPS_AT + ROWS * size_of::<Row>();
/// Slots in the table: connections that one fork family can have under observation.
pub const CAPACITY: u32 = 1 << 17;
pub use crate::conn::WAITS;

/// The first page of the table.
#[repr(C, align(4096))]
pub struct Header {
    /// `MAGIC`, stored last.
    pub magic: AtomicU64,
    /// `VERSION`.
    pub version: AtomicU32,
    /// `size_of::<Conn>()` of the writer.
    pub conn_size: AtomicU32,
    /// Slots below this index have been used at some time.
    pub high_water: AtomicU32,
    /// Process that made the table, and its effective user.
    pub creator: AtomicU32,
    /// See `creator`.
    pub uid: AtomicU32,
    /// Devices that were taken away, a bit for each (`Kind::bit`): the one word that others write (`shortwire devices --remove`).
    pub removed: AtomicU32,
    /// Free list: tag << 32 | slot index + 1.
    free: AtomicU64,
    /// References that are under way to another process, in all slots together.
    pub travelling: AtomicU32,
    /// Wait numbers in use, one bit each.
    waits: [AtomicU64; WAITS / 64],
    /// Sums over all connections, living and gone.
    pub stats: Stats,
}

static TABLE: AtomicPtr<Header> = AtomicPtr::new(core::ptr::null_mut());
static TABLE_FD: AtomicU32 = AtomicU32::new(u32::MAX);

/// Bytes of a whole table.
pub const fn len() -> usize {
    SLOTS_AT + CAPACITY as usize * size_of::<Conn>()
}

/// The family's table, made at the first use; None when there is no memory for it.
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

/// Whether the family has a table yet.
pub fn exists() -> bool {
    !TABLE.load(Ordering::Acquire).is_null()
}

/// Whether a device was taken away from this process and what it forked.
pub fn is_removed(kind: Kind) -> bool {
    exists() && get().is_some_and(|table| table.removed.load(Ordering::Relaxed) & kind.bit() != 0)
}

/// The hidden descriptor of the table, if there is one.
pub fn hidden_fd() -> Option<i32> {
    let fd = TABLE_FD.load(Ordering::Relaxed);
    (fd != u32::MAX).then_some(fd as i32)
}

/// Takes on the table that this process had before its exec, if its descriptor `fd` is still open.
pub fn adopt(fd: i32) -> Option<&'static Header> {
    let base = map(fd);
    if base.is_null() {
        return None;
    }
    // SAFETY: mapped above; a table of another layout is only looked at, not used.
    let table = unsafe { &*base };
    let ours = table.magic.load(Ordering::Acquire) == MAGIC
        && table.version.load(Ordering::Relaxed) == VERSION
        && table.conn_size.load(Ordering::Relaxed) as usize == size_of::<Conn>();
    if !ours || TABLE.compare_exchange(core::ptr::null_mut(), base, Ordering::AcqRel, Ordering::Acquire).is_err() {
        // SAFETY: nobody else has seen this mapping.
        unsafe { sys::give_back(base.cast(), len()) };
        return None;
    }
    sys::fcntl(fd, libc::F_SETFD, libc::FD_CLOEXEC as usize);
    TABLE_FD.store(fd as u32, Ordering::Relaxed);
    crate::hidden::remember(fd);
    census::begin_anew(table.groups());
    Some(table)
}

impl Header {
    /// The live connection whose socket has this inode.
    pub fn by_inode(&self, inode: u32) -> Option<u32> {
        let used = self.high_water.load(Ordering::Relaxed).min(CAPACITY);
        (0..used).find(|&i| {
            let c = self.conn(i);
            c.gen_.load(Ordering::Acquire) & 1 == 1 && c.inode.load(Ordering::Relaxed) == inode
        })
    }
}

/// The hidden descriptor had to move.
pub(crate) fn moved_fd(from: i32, to: i32) {
    let _ = TABLE_FD.compare_exchange(from as u32, to as u32, Ordering::Relaxed, Ordering::Relaxed);
}

#[cold]
fn make() -> Option<&'static Header> {
    let name = c"shortwire-table";
    let fd = sys::memfd(name);
    let base = if fd >= 0 {
        let sized = || sys::set_len(fd, len()) == 0;
        // Beyond RLIMIT_FSIZE it would kill the program by SIGXFSZ.
        let most = rustix::process::getrlimit(rustix::process::Resource::Fsize).current;
        if most.is_none_or(|most| len() as u64 <= most) && sized() { map(fd) } else { core::ptr::null_mut() }
    } else {
        core::ptr::null_mut()
    };
    // Without a memfd (seccomp, no descriptors) the table still works; only `ss` cannot see it.
    let base = if base.is_null() { sys::reserve(len(), true).cast::<Header>() } else { base };
    if base.is_null() {
        if fd >= 0 {
            sys::close(fd);
        }
        return None;
    }
    // SAFETY: fresh zeroed memory of the right size and alignment; zero is a valid Header.
    let table = unsafe { &*base };
    table.version.store(VERSION, Ordering::Relaxed);
    table.conn_size.store(size_of::<Conn>() as u32, Ordering::Relaxed);
    table.creator.store(sys::getpid(), Ordering::Relaxed);
    table.uid.store(rustix::process::geteuid().as_raw(), Ordering::Relaxed);
    table.waits[0].store(1, Ordering::Relaxed);
    table.magic.store(MAGIC, Ordering::Release);
    if TABLE.compare_exchange(core::ptr::null_mut(), base, Ordering::AcqRel, Ordering::Acquire).is_err() {
        // SAFETY: nobody else has seen this mapping.
        unsafe { sys::give_back(base.cast(), len()) };
        if fd >= 0 {
            sys::close(fd);
        }
    } else if fd >= 0 {
        TABLE_FD.store(crate::hidden::park(fd) as u32, Ordering::Relaxed);
    }
    get()
}

fn map(fd: i32) -> *mut Header {
    let prot = ProtFlags::READ | ProtFlags::WRITE;
    shm::address::map(len(), prot, MapFlags::SHARED, Some((fd, 0))).map_or(core::ptr::null_mut(), <*mut _>::cast)
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
        // SAFETY: index is below CAPACITY, the mapping has that many slots, and zero is a valid Conn.
        unsafe { &*slots.add(index as usize) }
    }

    /// Takes a free slot.
    pub fn alloc(&self) -> Option<u32> {
        // The tag in the upper half makes a stale head fail its exchange (ABA).
        let mut head = self.free.load(Ordering::Acquire);
        loop {
            let index = head as u32;
            if index == 0 {
                break;
            }
            let next = self.conn(index - 1).next_free.load(Ordering::Relaxed);
            let tagged = ((head >> 32).wrapping_add(1) << 32) | u64::from(next);
            match self.free.compare_exchange_weak(head, tagged, Ordering::AcqRel, Ordering::Acquire) {
                Ok(_) => return Some(index - 1),
                Err(now) => head = now,
            }
        }
        let index = self.high_water.fetch_add(1, Ordering::Relaxed);
        if index >= CAPACITY {
            self.high_water.fetch_sub(1, Ordering::Relaxed);
            return None;
        }
        Some(index)
    }

    /// Gives a slot back.
    pub fn free(&self, index: u32) {
        let mut head = self.free.load(Ordering::Acquire);
        loop {
            self.conn(index).next_free.store(head as u32, Ordering::Relaxed);
            let tagged = ((head >> 32).wrapping_add(1) << 32) | u64::from(index + 1);
            match self.free.compare_exchange_weak(head, tagged, Ordering::AcqRel, Ordering::Acquire) {
                Ok(_) => return,
                Err(now) => head = now,
            }
        }
    }

    /// Takes a wait number, 1..WAITS; 0 when all are taken.
    pub fn take_wait(&self) -> u32 {
        for (i, word) in self.waits.iter().enumerate() {
            let mut bits = word.load(Ordering::Relaxed);
            while bits != u64::MAX {
                let bit = bits.trailing_ones();
                match word.compare_exchange_weak(bits, bits | 1 << bit, Ordering::AcqRel, Ordering::Relaxed) {
                    Ok(_) => return i as u32 * 64 + bit,
                    Err(now) => bits = now,
                }
            }
        }
        0
    }

    /// Gives a wait number back.
    pub fn free_wait(&self, wait: u32) {
        if wait != 0 {
            self.waits[wait as usize / 64].fetch_and(!(1 << (wait % 64)), Ordering::AcqRel);
        }
    }
}
