//! The bar: memory that machines share, and what they agree on in it without a lock, for a guest
//! may vanish at any instruction.
//!
//! ```text
//! | header | guests | members | blocks | heap ... |
//! ```
//!
//! The heap is divided into blocks, and each block has two words. `owner` says whose it is: the
//! member, and a number of the *extent*, which is a run of blocks with the same owner word. `user`,
//! of an extent's first block, says which member has attached it. Every change is one
//! compare-exchange from what was seen, so that whoever is cut off leaves a state from which
//! anybody goes on. An extent that its owner has given up, or that a dead member owned, is free
//! only once nobody has it attached: whoever may still write to it keeps it.
//!
//! All of it may be changed by any guest at any time. Indexes are computed from what is checked,
//! never taken.
#![allow(unsafe_code)]

mod blocks;

use super::BarError;
use crate::Errno;
use crate::loopback::random;
use core::sync::atomic::{AtomicI32, AtomicU64, Ordering::*};
use rustix::fd::{BorrowedFd, RawFd};
use rustix::fs::{FileType, fstat, fstatfs};
use shm::Segment;
use shm::segment::PAGE;

/// `SHORTWB1`: the layout is part of it.
const MAGIC: u64 = u64::from_be_bytes(*b"SHORTWB1");
/// PCI bars are powers of two, and nothing useful fits into less.
const SMALLEST: u64 = 1 << 20;
const LARGEST: u64 = 1 << 40;
const SYSFS_MAGIC: i64 = 0x6265_6572;

/// Guests of a bar.
pub const GUESTS: u32 = 64;
/// Processes (with what they forked) of all guests together.
pub const MEMBERS: u32 = 1024;
const BLOCKS: u32 = 1 << BLOCK_BITS;
const BLOCK_BITS: u32 = 12;
const SMALLEST_BLOCK: u64 = 16 << 10;

const GUEST_AT: usize = PAGE;
const GUEST_LEN: usize = 64;
const MEMBER_AT: usize = GUEST_AT + GUESTS as usize * GUEST_LEN;
const MEMBER_LEN: usize = 32;
const BLOCK_AT: usize = MEMBER_AT + MEMBERS as usize * MEMBER_LEN;
const BLOCK_LEN: usize = 16;
const TABLE: usize = BLOCK_AT + BLOCKS as usize * BLOCK_LEN;
const _: () = assert!(TABLE.is_multiple_of(PAGE));

/// Offsets of the header's words.
mod word {
    pub const MAGIC: usize = 0;
    pub const SIZE: usize = 8;
    pub const ID: usize = 16;
    pub const SECRET: usize = 24;
}

const ID_BITS: u32 = 40;
const ID: u64 = (1 << ID_BITS) - 1;
/// Of an extent, in its owner word above the member.
const SERIAL_BITS: u32 = 23;
/// Its owner has given it up.
const LEFT: u64 = 1 << 63;

/// A process in the table of members, and what it forked.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Member {
    /// Index plus one, and 24 random bits.
    pub id: u64,
    /// Second half of its GID.
    pub gid: u64,
}

impl Member {
    /// Place in the table of members of who has this id; `u32::MAX` if its low 16 bits are 0, as
    /// nobody's are.
    pub const fn index(id: u64) -> u32 {
        (id as u32 & 0xffff).wrapping_sub(1)
    }
}

/// Blocks in a row of one owner.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Extent {
    pub first: u32,
    pub owner: u64,
}

impl Extent {
    /// 40 bits by which a peer finds it; never 0.
    pub const fn name(self) -> u64 {
        (self.first as u64) << SERIAL_BITS | self.owner >> ID_BITS
    }

    const fn split(name: u64) -> (u32, u64) {
        ((name >> SERIAL_BITS) as u32, name & ((1 << SERIAL_BITS) - 1))
    }
}

/// A bar in use.
pub struct Bar {
    table: Segment,
    fd: AtomicI32,
    file: (u64, u64),
    len: u64,
    block: u64,
    blocks: u32,
    id: u64,
}

fn borrow<'a>(fd: RawFd) -> BorrowedFd<'a> {
    // SAFETY: for one system call; a closed number is answered with EBADF. Never -1, which `open`
    // refuses.
    unsafe { BorrowedFd::borrow_raw(fd) }
}

impl Bar {
    /// Maps the table of a bar, whose descriptor stays the caller's and must stay open. `format`:
    /// it may be new.
    pub fn open(fd: RawFd, format: bool) -> Result<Bar, BarError> {
        if fd < 0 {
            return Err(BarError::Os(Errno::BADF));
        }
        let stat = fstat(borrow(fd)).map_err(BarError::Os)?;
        if FileType::from_raw_mode(stat.st_mode) != FileType::RegularFile {
            return Err(BarError::NotMemory);
        }
        // A file can be cut short by whoever may write to it, which kills who has it mapped. A bar
        // cannot.
        let is_bar = fstatfs(borrow(fd)).map_err(BarError::Os)?.f_type as i64 == SYSFS_MAGIC;
        let trusted = stat.st_uid == 0 || stat.st_uid == rustix::process::geteuid().as_raw();
        if !is_bar && (!trusted || stat.st_mode & 0o022 != 0) {
            return Err(BarError::Unsafe);
        }
        let len = stat.st_size as u64;
        if !(SMALLEST..=LARGEST).contains(&len) || !len.is_power_of_two() {
            return Err(BarError::Size(len));
        }
        let table = Segment::of_part(fd, 0, TABLE).map_err(BarError::Os)?;
        let block = SMALLEST_BLOCK.max(len / u64::from(BLOCKS));
        let heap = (TABLE as u64).next_multiple_of(block);
        let blocks = ((len - heap) / block) as u32;
        let file = (stat.st_dev, stat.st_ino);
        let mut bar = Bar { table, fd: AtomicI32::new(fd), file, len, block, blocks, id: 0 };
        if format {
            bar.format()?;
        }
        // SYNC: magic. In front of the looks at the others; pairs with `format`.
        match bar.word(word::MAGIC).load(Acquire) {
            MAGIC => {}
            0 => return Err(BarError::New),
            _ => return Err(BarError::Foreign),
        }
        let told = bar.word(word::SIZE).load(Acquire);
        if told != len {
            return Err(BarError::OtherSize { told, len });
        }
        bar.id = bar.word(word::ID).load(Acquire);
        if bar.id == 0 || bar.secret().contains(&0) {
            return Err(BarError::Foreign);
        }
        Ok(bar)
    }

    /// Whoever comes first decides on each word, and all others find it decided.
    fn format(&self) -> Result<(), BarError> {
        // SYNC: magic. Behind the magic come words of guests: who finds one of those finds the magic when it
        // looks again. Pairs with the exchange below, which every guest has seen.
        let zero = |at: usize| self.word(at).load(Acquire) == 0;
        if zero(word::MAGIC) {
            // But for the words that another may be deciding on at this moment.
            let rest = word::SECRET + 16;
            let size = self.word(word::SIZE).load(Relaxed);
            if !(rest..TABLE).step_by(8).all(zero) && zero(word::MAGIC)
                || size != 0 && size != self.len
            {
                return Err(BarError::Foreign);
            }
        }
        let [id, size] = [random::words()[0] | 1, self.len];
        let [a, b] = random::words();
        for (at, value) in [
            (word::SIZE, size),
            (word::ID, id),
            (word::SECRET, a | 1),
            (word::SECRET + 8, b | 1),
            (word::MAGIC, MAGIC),
        ] {
            // SYNC: magic. Last, so that who finds it finds the others; pairs with `open`.
            let _ = self.word(at).compare_exchange(0, value, AcqRel, Acquire);
        }
        Ok(())
    }

    /// `at` is a constant or computed from a checked index.
    fn word(&self, at: usize) -> &AtomicU64 {
        debug_assert!(at + 8 <= TABLE);
        // SAFETY: within the table, which is mapped as long as `self`; atomics may be shared with
        // anybody.
        unsafe { &*self.table.base().wrapping_add(at).cast() }
    }

    /// First half of the GIDs of all that share it; never 0.
    pub fn id(&self) -> u64 {
        self.id
    }

    /// What only they know.
    pub fn secret(&self) -> [u64; 2] {
        [word::SECRET, word::SECRET + 8].map(|at| self.word(at).load(Acquire))
    }

    /// Bytes of the whole bar.
    pub fn size(&self) -> u64 {
        self.len
    }

    /// Bytes of an extent of so many blocks.
    pub fn bytes(&self, blocks: u32) -> u64 {
        u64::from(blocks) * self.block
    }

    /// Its descriptor had to move.
    pub fn moved(&self, from: RawFd, to: RawFd) {
        let _ = self.fd.compare_exchange(from, to, Relaxed, Relaxed);
    }

    /// Where an extent begins in the bar.
    pub fn offset(&self, extent: Extent) -> u64 {
        (TABLE as u64).next_multiple_of(self.block) + self.bytes(extent.first)
    }

    /// Its descriptor; None if there is none any more, or its number stands for another file.
    pub fn fd(&self) -> Option<RawFd> {
        let fd = self.fd.load(Relaxed);
        let intact = fd >= 0 && fstat(borrow(fd)).is_ok_and(|s| (s.st_dev, s.st_ino) == self.file);
        intact.then_some(fd)
    }

    /// Makes the blocks of an extent addressable.
    pub fn map(&self, extent: Extent, blocks: u32) -> Result<Segment, Errno> {
        if u64::from(extent.first) + u64::from(blocks) > u64::from(self.blocks) {
            return Err(Errno::INVAL);
        }
        Segment::of_part(
            self.fd().ok_or(Errno::BADF)?,
            self.offset(extent),
            self.bytes(blocks) as usize,
        )
    }

    fn guest(&self, index: u32) -> Option<[&AtomicU64; 3]> {
        let at = GUEST_AT + index as usize * GUEST_LEN;
        (index < GUESTS).then(|| [at, at + 8, at + 16].map(|at| self.word(at)))
    }

    /// The place of a guest with this id.
    pub fn find_guest(&self, id: u64) -> Option<u32> {
        (0..GUESTS).find(|&at| self.guest(at).is_some_and(|g| g[0].load(SeqCst) == id))
    }

    /// A place for a guest; its old one if it has one.
    pub fn enter_guest(&self, id: u64) -> Option<u32> {
        self.find_guest(id).or_else(|| {
            (0..GUESTS).find(|&at| {
                self.guest(at).is_some_and(|g| g[0].compare_exchange(0, id, SeqCst, SeqCst).is_ok())
            })
        })
    }

    /// Says that the guest lives; the count so far.
    pub fn beat(&self, guest: u32) -> u64 {
        self.guest(guest).map_or(0, |g| {
            g[2].store(0, SeqCst);
            g[1].fetch_add(1, SeqCst)
        })
    }

    /// The guest lives, but nobody will say so any more.
    pub fn rest(&self, guest: u32) {
        if let Some(g) = self.guest(guest) {
            g[2].store(1, SeqCst);
        }
    }

    /// Id and count of a guest, and whether it rests; None where there is none.
    pub fn pulse(&self, guest: u32) -> Option<(u64, u64, bool)> {
        let [id, beat, rest] = self.guest(guest)?.map(|word| word.load(SeqCst));
        (id != 0).then_some((id, beat, rest != 0))
    }

    /// A guest is no more, and its members are gone.
    pub fn leave_guest(&self, guest: u32, id: u64) {
        if let Some(g) = self.guest(guest) {
            let _ = g[0].compare_exchange(id, 0, SeqCst, SeqCst);
        }
    }

    fn member(&self, index: u32) -> Option<[&AtomicU64; 2]> {
        let at = MEMBER_AT + index as usize * MEMBER_LEN;
        (index < MEMBERS).then(|| [at, at + 8].map(|at| self.word(at)))
    }

    /// A member of `guest`: `hold` takes what shows the guest that it lives, before others see it,
    /// and is asked to let go (false) if the place was taken meanwhile.
    pub fn join(&self, guest: u32, hold: impl Fn(u32, bool) -> bool) -> Option<Member> {
        for index in 0..MEMBERS {
            let [claim, gid] = self.member(index)?;
            if claim.load(SeqCst) != 0 || !hold(index, true) {
                continue;
            }
            let [nonce, fresh] = random::words();
            let id = u64::from(index + 1) | (nonce << 16 & ID);
            let word = id | u64::from(guest + 1) << ID_BITS;
            if claim.compare_exchange(0, word, SeqCst, SeqCst).is_ok() {
                // Random, and yet not another's: a clone of a guest may draw the same.
                let mut number = fresh | 1;
                while self.has_gid(number, index) {
                    number = number.wrapping_add(2);
                }
                gid.store(number, SeqCst);
                return Some(Member { id, gid: number });
            }
            hold(index, false);
        }
        None
    }

    fn has_gid(&self, gid: u64, but: u32) -> bool {
        (0..MEMBERS)
            .filter(|&at| at != but)
            .filter_map(|at| self.member(at))
            .any(|[claim, theirs]| claim.load(SeqCst) != 0 && theirs.load(SeqCst) == gid)
    }

    /// The members: id and guest.
    pub fn members(&self) -> impl Iterator<Item = (u64, u32)> + '_ {
        (0..MEMBERS).filter_map(|at| {
            let claim = self.member(at)?[0].load(SeqCst);
            let guest = (claim >> ID_BITS) as u32;
            (claim != 0).then(|| (claim & ID, guest.wrapping_sub(1)))
        })
    }

    /// The guest of the member with this id, if there is such a member.
    pub fn guest_of(&self, id: u64) -> Option<u32> {
        let claim = self.member(Member::index(id))?[0].load(SeqCst);
        (claim & ID == id && id != 0).then(|| ((claim >> ID_BITS) as u32).wrapping_sub(1))
    }

    /// Whether some member has this GID.
    pub fn knows(&self, gid: u64) -> bool {
        gid != 0 && self.has_gid(gid, MEMBERS)
    }
}
