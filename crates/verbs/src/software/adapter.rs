//! The adapter of a process: one mapping with all that there is of it. Its first part is read by
//! peers.
#![allow(unsafe_code)]

use super::post::Completions;
use crate::abi::{Context, Device, Mr, Qp};
use core::cell::UnsafeCell;
use core::mem::offset_of;
use core::ptr::null_mut;
use core::sync::atomic::{AtomicPtr, AtomicU32, AtomicU64, Ordering::*};
use rustix::mm::{MapFlags, ProtFlags, mmap_anonymous};
use shm::FastLock;

/// Memory regions of a process.
pub const MOST_REGIONS: usize = 1 << 14;
/// Queue pairs of a process, and as many completion queues.
pub const MOST_PAIRS: usize = 1 << 10;

/// What stands at the front of a GID: the software adapter's, in this layout of what peers read.
const PREFIX: [u8; 4] = [0xfd, b's', b'w', 1];

/// Where an adapter is found. A GID says just that.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Address {
    pub pid: i32,
    pub base: u64,
}

impl Address {
    pub fn gid(self) -> [u8; 16] {
        let mut gid = [0; 16];
        gid[..4].copy_from_slice(&PREFIX);
        gid[4..8].copy_from_slice(&self.pid.to_be_bytes());
        gid[8..].copy_from_slice(&self.base.to_be_bytes());
        gid
    }

    pub fn of(gid: [u8; 16]) -> Option<Self> {
        let (prefix, rest) = gid.split_first_chunk()?;
        let (pid, base) = rest.split_first_chunk()?;
        let base = u64::from_be_bytes(base.try_into().ok()?);
        let there = Self { pid: i32::from_be_bytes(*pid), base };
        (*prefix == PREFIX && base.is_multiple_of(8) && base < 1 << 56).then_some(there)
    }
}

/// A memory region, as peers see it.
#[repr(C)]
#[derive(Default)]
pub struct Region {
    /// 0: none.
    pub key: AtomicU32,
    pub access: AtomicU32,
    pub addr: AtomicU64,
    pub len: AtomicU64,
}

/// A queue pair, as peers see it.
#[repr(C)]
#[derive(Default)]
pub struct Pair {
    /// 0: none.
    pub qpn: AtomicU32,
    pub state: AtomicU32,
    pub dest_qpn: AtomicU32,
    /// The first packet's number, in which both ends must agree.
    pub psn: AtomicU32,
}

/// Values of a [`Region`] or a [`Pair`] that were read.
#[repr(C)]
#[derive(Clone, Copy, Default)]
pub struct Looked {
    pub proof: u64,
    /// `qpn`, `state`, `dest_qpn`, `psn`.
    pub pair: [u32; 4],
    /// `key`, `access`.
    pub region: [u32; 2],
    pub addr: u64,
    pub len: u64,
}

/// A queue pair, as its owner has it.
#[repr(C)]
pub struct SoftQp {
    pub qp: UnsafeCell<Qp>,
    /// Guards what follows.
    pub lock: FastLock<false>,
    pub far: UnsafeCell<(Address, u64)>,
    pub all_signaled: AtomicU32,
}

#[repr(C)]
pub struct Adapter {
    /// Random, never 0: by it the process is told from another one that has its number later.
    pub proof: AtomicU64,
    pub pairs: [Pair; MOST_PAIRS],
    pub regions: [Region; MOST_REGIONS],
    // What follows is nobody else's.
    pub pid: AtomicU32,
    /// Guards which pairs, queues and regions there are.
    pub lock: FastLock<false>,
    pub device: UnsafeCell<Device>,
    pub context: UnsafeCell<Context>,
    pub mrs: [UnsafeCell<Mr>; MOST_REGIONS],
    pub qps: [SoftQp; MOST_PAIRS],
    pub cqs: [Completions; MOST_PAIRS],
    pub generation: AtomicU32,
}

// SAFETY: what is in cells is guarded by the locks, or written before anybody knows of it.
unsafe impl Sync for Adapter {}

static ADAPTER: AtomicPtr<Adapter> = AtomicPtr::new(null_mut());

pub fn own_pid() -> u32 {
    rustix::process::getpid().as_raw_nonzero().get() as u32
}

impl Adapter {
    /// This process's; a fork child makes one of its own. None without memory.
    pub fn get() -> Option<&'static Adapter> {
        let known = ADAPTER.load(Acquire);
        // SAFETY: never unmapped; all of it may be zero.
        if let Some(adapter) = unsafe { known.as_ref() }
            && crate::is_in_memory_of(adapter.pid.load(Relaxed) as i32)
        {
            return Some(adapter);
        }
        let (prot, flags) =
            (ProtFlags::READ | ProtFlags::WRITE, MapFlags::PRIVATE | MapFlags::NORESERVE);
        // SAFETY: new memory at an address of the kernel's choice.
        let fresh = unsafe { mmap_anonymous(null_mut(), size_of::<Adapter>(), prot, flags) }
            .ok()?
            .cast::<Adapter>();
        // SAFETY: just mapped; all of it may be zero.
        let adapter = unsafe { &*fresh };
        adapter.pid.store(own_pid(), Relaxed);
        adapter.proof.store(random() | 1, Relaxed);
        super::ibv::set_up(adapter);
        match ADAPTER.compare_exchange(known, fresh, AcqRel, Acquire) {
            Ok(_) => Some(adapter),
            Err(other) => {
                // SAFETY: mapped above, and nobody knows of it.
                let _ = unsafe { rustix::mm::munmap(fresh.cast(), size_of::<Adapter>()) };
                // SAFETY: another thread's, of this process, which is never unmapped.
                unsafe { other.as_ref() }
            }
        }
    }

    pub fn address(&self) -> Address {
        Address { pid: self.pid.load(Relaxed) as i32, base: core::ptr::from_ref(self) as u64 }
    }

    /// A number with `index` in its lower part that is not in use, and not soon again.
    pub fn number(&self, index: usize, most: usize, bits: u32) -> u32 {
        let turn =
            self.generation.fetch_add(1, Relaxed) % (1 << (bits - most.trailing_zeros())).max(2);
        turn.max(1) << most.trailing_zeros() | index as u32
    }

    pub fn pair(&self, qpn: u32) -> &Pair {
        &self.pairs[qpn as usize % MOST_PAIRS]
    }

    /// Whether `key` opens these bytes to the adapter itself.
    pub fn is_within(&self, key: u32, addr: u64, len: u64, access: i32) -> bool {
        let region = &self.regions[key as usize % MOST_REGIONS];
        let seen = Looked {
            region: [region.key.load(Acquire), region.access.load(Relaxed)],
            addr: region.addr.load(Relaxed),
            len: region.len.load(Relaxed),
            ..Looked::default()
        };
        seen.opens(key, addr, len, access)
    }
}

// SAFETY: words alone; no padding, by the assertion below.
unsafe impl crate::far::Plain for Looked {}

impl Looked {
    /// Where the three parts lie in an adapter at `base`, and how long they are.
    pub fn places(base: u64, qpn: u32, key: u32) -> [(u64, usize); 3] {
        let pair = offset_of!(Adapter, pairs) + qpn as usize % MOST_PAIRS * size_of::<Pair>();
        let region =
            offset_of!(Adapter, regions) + key as usize % MOST_REGIONS * size_of::<Region>();
        [
            (base, 8),
            (base + pair as u64, size_of::<Pair>()),
            (base + region as u64, size_of::<Region>()),
        ]
    }

    pub fn opens(&self, key: u32, addr: u64, len: u64, access: i32) -> bool {
        let end = addr.checked_add(len);
        key != 0
            && self.region[0] == key
            && self.region[1] as i32 & access == access
            && addr >= self.addr
            && end.is_some_and(|end| end <= self.addr.saturating_add(self.len))
    }
}

const _: () = {
    assert!(size_of::<Looked>() == 8 + size_of::<Pair>() + size_of::<Region>());
    assert!(offset_of!(Looked, region) == 8 + size_of::<Pair>() && offset_of!(Region, addr) == 8);
};

pub fn random() -> u64 {
    let mut word = [0; 8];
    // Without random numbers proofs are weaker; what they tell apart are processes of one user.
    let _ = rustix::rand::getrandom(&mut word, rustix::rand::GetRandomFlags::empty());
    u64::from_ne_bytes(word)
}
