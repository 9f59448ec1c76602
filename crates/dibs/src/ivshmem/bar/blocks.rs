//! The heap: who has which blocks, and what becomes of those of the dead.

use super::{BLOCK_AT, BLOCK_LEN, BLOCKS, Bar, Extent, ID, ID_BITS, LEFT, Member, SERIAL_BITS};
use crate::loopback::random;
use core::sync::atomic::{AtomicU64, Ordering::*};

impl Bar {
    fn owner(&self, block: u32) -> &AtomicU64 {
        self.word(BLOCK_AT + block.min(BLOCKS - 1) as usize * BLOCK_LEN)
    }

    fn user(&self, block: u32) -> &AtomicU64 {
        self.word(BLOCK_AT + block.min(BLOCKS - 1) as usize * BLOCK_LEN + 8)
    }

    /// Blocks that are free.
    pub fn free_blocks(&self) -> u32 {
        (0..self.blocks).filter(|&b| self.owner(b).load(Relaxed) == 0).count() as u32
    }

    /// Whether less than half of it is free: then nothing is kept in it for later.
    pub fn is_short(&self) -> bool {
        self.free_blocks() < self.blocks / 2
    }

    /// Whether its owner has given it up, or was found dead.
    pub fn has_left(&self, extent: Extent) -> bool {
        self.owner(extent.first).load(SeqCst) != extent.owner
    }

    /// An extent of at least `bytes`, with how many blocks it has.
    pub fn take(&self, member: u64, bytes: u64) -> Option<(Extent, u32)> {
        let need = u32::try_from(bytes.div_ceil(self.block))
            .ok()
            .filter(|&n| n > 0 && n <= self.blocks)?;
        let serial = (random::words()[0] >> (64 - SERIAL_BITS)).max(1);
        let owner = member | serial << ID_BITS;
        let mut run = 0;
        for end in 1..=self.blocks {
            if self.owner(end - 1).load(Relaxed) != 0 {
                run = 0;
                continue;
            }
            run += 1;
            if run == need {
                let first = end - need;
                let taken = (first..end)
                    .take_while(|&b| {
                        self.owner(b).compare_exchange(0, owner, SeqCst, SeqCst).is_ok()
                    })
                    .count() as u32;
                if taken == need {
                    self.user(first).store(0, SeqCst);
                    return Some((Extent { first, owner }, need));
                }
                (first..first + taken).for_each(|b| _ = self.clear(b, owner));
                run = 0;
            }
        }
        None
    }

    fn clear(&self, block: u32, owner: u64) -> bool {
        self.owner(block).compare_exchange(owner, 0, SeqCst, SeqCst).is_ok()
    }

    /// Its owner needs it no more. It is free once nobody has it attached.
    pub fn give_up(&self, extent: Extent) {
        let Extent { first, owner } = extent;
        let _ = self.owner(first).compare_exchange(owner, owner | LEFT, SeqCst, SeqCst);
        // SYNC: extent. A user says so before it looks at the owner, and we look after we have
        // left.
        if self.user(first).load(SeqCst) == 0 {
            self.free(extent);
        }
    }

    /// Frees an extent. Several may do so at once without harm: an owner word is never used twice.
    fn free(&self, Extent { first, owner }: Extent) {
        let _ = (first + 1..self.blocks).take_while(|&b| self.clear(b, owner)).count();
        self.clear(first, owner | LEFT);
    }

    /// The extent of this name, for `member` to write to, if a member with `gid` owns it; with its
    /// blocks.
    pub fn attach(&self, name: u64, gid: u64, member: u64) -> Option<(Extent, u32)> {
        let (first, serial) = Extent::split(name);
        if first >= self.blocks {
            return None;
        }
        let owner = self.owner(first).load(SeqCst);
        let extent = Extent { first, owner };
        let [claim, theirs] = self.member(Member::index(owner & ID))?;
        let is_theirs =
            claim.load(SeqCst) & ID == owner & ID && theirs.load(SeqCst) == gid && gid != 0;
        if owner & LEFT != 0 || owner >> ID_BITS != serial || !is_theirs {
            return None;
        }
        self.user(first).compare_exchange(0, member, SeqCst, SeqCst).ok()?;
        // SYNC: extent.
        if self.owner(first).load(SeqCst) != owner {
            self.detach(extent, member);
            return None;
        }
        let blocks = 1
            + (first + 1..self.blocks).take_while(|&b| self.owner(b).load(SeqCst) == owner).count()
                as u32;
        Some((extent, blocks))
    }

    /// `member` writes to it no more.
    pub fn detach(&self, extent: Extent, member: u64) {
        let _ = self.user(extent.first).compare_exchange(member, 0, SeqCst, SeqCst);
        // SYNC: extent.
        if self.owner(extent.first).load(SeqCst) == extent.owner | LEFT {
            self.free(extent);
        }
    }

    /// Frees what dead members had, where no living one may still write; the number of extents that
    /// ended. `dead` is asked for ids, also of members that there are not.
    pub fn reclaim(&self, dead: impl Fn(u64) -> bool) -> u32 {
        let gone = |id: u64| self.guest_of(id).is_none() || dead(id);
        let mut ended = 0;
        let mut before = 0;
        for first in 0..self.blocks {
            let word = self.owner(first).load(SeqCst);
            let owner = word & !LEFT;
            if owner == 0 || owner == before {
                before = owner;
                continue;
            }
            before = owner;
            let user = self.user(first).load(SeqCst);
            if user != 0 && gone(user) {
                let _ = self.user(first).compare_exchange(user, 0, SeqCst, SeqCst);
            }
            if word & LEFT != 0 || gone(owner & ID) {
                self.give_up(Extent { first, owner });
                ended += u32::from(self.owner(first).load(SeqCst) != word | LEFT);
            }
        }
        for (id, _) in self.members().filter(|&(id, _)| dead(id)) {
            let named =
                |b: u32| self.owner(b).load(SeqCst) & ID == id || self.user(b).load(SeqCst) == id;
            if !(0..self.blocks).any(named)
                && let Some([claim, _]) = self.member(Member::index(id))
            {
                let seen = claim.load(SeqCst);
                if seen & ID == id {
                    let _ = claim.compare_exchange(seen, 0, SeqCst, SeqCst);
                }
            }
        }
        ended
    }
}
