//! What is set, as values that other modules read. `setting` reads it from the environment that
//! `shortwire run` composes.
#![allow(unsafe_code)]

use core::cell::UnsafeCell;
use core::sync::atomic::{
    AtomicBool, AtomicU32, AtomicU64,
    Ordering::{Relaxed, SeqCst},
};

use crate::clc::Eid;
use crate::kind::Kind;

/// Who may be at the other end of a link group.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u32)]
pub enum PeerPolicy {
    /// Nobody: every connection stays TCP.
    Off = 0,
    /// Processes of our own user only.
    SameUid = 1,
    /// Also other users, when the kernel's socket table says that the other end of this very
    /// connection is theirs.
    Verified = 2,
}

/// What a program that uses io_uring gets.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u32)]
pub enum IoUring {
    /// A look at what it submits: connections that are named there stay TCP.
    Look = 0,
    /// Its rings; all its connections stay TCP.
    Stay = 1,
    /// ENOSYS, so that it falls back to calls we see.
    Deny = 2,
}

/// The settings of this process.
pub struct Config {
    /// Sends plus receives before a connection begins its upgrade (K).
    pub after: AtomicU32,
    /// Bytes that count as having done K operations.
    pub after_bytes: AtomicU64,
    /// Size of a receive buffer (DMB), header included, 2^(14+n); 0: by how many there are.
    pub dmb_size: AtomicU32,
    /// Bytes that the receive buffers of this process may take together; 0: a quarter of the memory
    /// that it may have.
    pub max_memory: AtomicU64,
    /// Bytes that the receive buffers of all of the user's processes with this setting may take
    /// together; 0: no such limit.
    pub max_memory_user: AtomicU64,
    /// Longest busy wait before sleeping, in nanoseconds.
    pub spin_ns: AtomicU32,
    policy: AtomicU32,
    /// Devices in the order of preference, one in each byte from the lowest on (a `Kind`, 0 ends
    /// the list).
    prefer: AtomicU32,
    /// Move data through the device's `move_data` even where memory could be attached.
    pub copy: AtomicBool,
    /// Ask for a checksum over what a device copies.
    pub integrity: AtomicBool,
    /// Whether an end is taken for the peer that shows the connection's port (`meet::port`).
    pub port_proof: AtomicBool,
    /// The system EID is proposed and accepted.
    pub seid: AtomicBool,
    io_uring: AtomicU32,
    /// Take over the system calls that a Go program makes past its C library.
    pub go: AtomicBool,
    /// Start programs that load no library through the artefact that maps them.
    pub raw: AtomicBool,
}

/// Beside a policy that is not in force for now.
const PAUSED: u32 = 1 << 8;

/// Loopback first: it reaches whatever ism reaches, and with one copy less. So does ivshmem, which
/// has less memory. Verbs last: on one machine its way is the longest.
const DEFAULT_PREFER: u32 = Kind::Loopback as u32
    | (Kind::Ivshmem as u32) << 8
    | (Kind::Ism as u32) << 16
    | (Kind::Verbs as u32) << 24;
// A fifth device needs a wider word, here and in `set_prefer`.
const _: () = assert!(Kind::ALL.len() <= size_of::<u32>());

/// The one instance.
pub static CONFIG: Config = Config::new();

impl Config {
    pub(crate) const fn new() -> Self {
        Self {
            after: AtomicU32::new(8),
            after_bytes: AtomicU64::new(64 << 10),
            dmb_size: AtomicU32::new(0),
            max_memory: AtomicU64::new(0),
            max_memory_user: AtomicU64::new(0),
            spin_ns: AtomicU32::new(20_000),
            policy: AtomicU32::new(PeerPolicy::Verified as u32),
            prefer: AtomicU32::new(DEFAULT_PREFER),
            copy: AtomicBool::new(false),
            integrity: AtomicBool::new(false),
            port_proof: AtomicBool::new(false),
            seid: AtomicBool::new(true),
            io_uring: AtomicU32::new(IoUring::Look as u32),
            go: AtomicBool::new(true),
            raw: AtomicBool::new(false),
        }
    }

    /// The peer policy in force.
    pub fn policy(&self) -> PeerPolicy {
        match self.policy.load(Relaxed) {
            1 => PeerPolicy::SameUid,
            2 => PeerPolicy::Verified,
            // Off, or beside `PAUSED`.
            _ => PeerPolicy::Off,
        }
    }

    /// The devices to use, in the order of preference.
    pub fn prefer(&self) -> impl Iterator<Item = Kind> + use<> {
        let list = self.prefer.load(Relaxed).to_le_bytes();
        list.into_iter().map_while(|code| Kind::ALL.into_iter().find(|kind| *kind as u8 == code))
    }

    /// Whether the user chose them.
    pub fn was_told_devices(&self) -> bool {
        self.prefer.load(Relaxed) != DEFAULT_PREFER
    }

    /// Sets them, the preferred one first; none: the usual ones.
    pub(crate) fn set_prefer(&self, kinds: impl Iterator<Item = Kind>) {
        let mut list = [0u8; 4];
        let mut n = 0;
        for kind in kinds {
            if !list.contains(&(kind as u8)) {
                list[n] = kind as u8;
                n += 1;
            }
        }
        self.prefer.store(if n == 0 { DEFAULT_PREFER } else { u32::from_le_bytes(list) }, Relaxed);
    }

    /// Sets with whom memory is shared.
    pub(crate) fn set_policy(&self, policy: PeerPolicy) {
        self.policy.store(policy as u32, Relaxed);
    }

    /// Size of the next receive buffer in a process that has `live` of them. A few large ones carry
    /// streams as far as TCP does while the reader waits for a processor (its windows grow to some
    /// MiB); rings of many connections, each gone round in turn, are to stay in the caches
    /// together. Where memory is limited none is larger than a 64th of that, so that the first ones do
    /// not keep all others on TCP.
    pub fn buffer_size(&self, live: u32) -> u32 {
        let given = self.dmb_size.load(Relaxed);
        if given != 0 {
            return given;
        }
        let usual = match live {
            0..4 => 4u32 << 20,
            4..16 => 1 << 20,
            16..128 => 256 << 10,
            128.. => 64 << 10,
        };
        let most = u32::try_from(self.max_bytes() / 64).unwrap_or(u32::MAX).max(64 << 10);
        usual.min(1 << most.ilog2())
    }

    /// How many receive buffers of `len` bytes this process may have.
    pub fn max_buffers(&self, len: u32) -> u32 {
        (self.max_bytes() / u64::from(len)).min(u64::from(u32::MAX)) as u32
    }

    /// How many bytes of receive buffers this process may have.
    pub fn max_bytes(&self) -> u64 {
        let mut most = self.max_memory.load(Relaxed);
        if most == 0 {
            most = crate::memory::available() / 4;
            self.max_memory.store(most.max(1), Relaxed);
        }
        most
    }

    /// From now on every connection stays TCP.
    pub fn disable(&self) {
        self.set_policy(PeerPolicy::Off);
    }

    /// Connections stay TCP until `resume`.
    pub fn pause(&self) {
        // SYNC: proven. In front of the look whether it is needed still.
        self.policy.fetch_or(PAUSED, SeqCst);
    }

    /// Connections are upgraded again, unless that is off.
    pub fn resume(&self) {
        // SYNC: proven. Behind the word that says that nobody needs to pause.
        self.policy.fetch_and(!PAUSED, SeqCst);
    }

    /// What a program that uses io_uring gets.
    pub fn io_uring(&self) -> IoUring {
        match self.io_uring.load(Relaxed) {
            0 => IoUring::Look,
            1 => IoUring::Stay,
            _ => IoUring::Deny,
        }
    }

    /// Sets it.
    pub(crate) fn set_io_uring(&self, mode: IoUring) {
        self.io_uring.store(mode as u32, Relaxed);
    }
}

struct Ueids(UnsafeCell<([Eid; 4], usize)>);
// SAFETY: written once, while the library is loaded and before any other thread of ours reads.
unsafe impl Sync for Ueids {}
static UEIDS: Ueids = Ueids(UnsafeCell::new(([Eid([0; 32]); 4], 0)));

/// The user-defined EIDs, at most four.
pub fn ueids() -> &'static [Eid] {
    // SAFETY: see `Ueids`.
    let (names, n) = unsafe { &*UEIDS.0.get() };
    &names[..*n]
}

/// The system EID, unless it is switched off.
pub fn seid() -> Option<Eid> {
    CONFIG.seid.load(Relaxed).then_some(Eid::LOOPBACK_SEID)
}

/// Sets them; further ones do not count. While the library is loaded.
pub(crate) fn set_ueids(eids: impl Iterator<Item = Eid>) {
    // SAFETY: see `Ueids`.
    let (names, n) = unsafe { &mut *UEIDS.0.get() };
    *n = names.iter_mut().zip(eids).map(|(name, eid)| *name = eid).count();
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pause_ends_with_what_was_before_it() {
        let config = Config::new();
        config.pause();
        assert_eq!(config.policy(), PeerPolicy::Off);
        config.resume();
        assert_eq!(config.policy(), PeerPolicy::Verified);
        config.pause();
        config.disable();
        config.resume();
        assert_eq!(config.policy(), PeerPolicy::Off);
    }

    #[test]
    fn many_buffers_are_small_ones_unless_a_size_is_given() {
        let config = Config::new();
        let size = |live| config.buffer_size(live);
        assert_eq!(
            [0, 4, 16, 128, u32::MAX].map(size),
            [4 << 20, 1 << 20, 256 << 10, 64 << 10, 64 << 10]
        );
        config.dmb_size.store(128 << 10, Relaxed);
        assert_eq!([0, 5000].map(size), [128 << 10; 2]);
        // A limit, of a small container for example, is shared by 64 of them at least.
        let small = Config::new();
        for (limit, first) in [(16u64 << 20, 256 << 10), (65 << 20, 1 << 20), (1 << 20, 64 << 10)] {
            small.max_memory.store(limit, Relaxed);
            assert_eq!([0, 128].map(|live| small.buffer_size(live)), [first, 64 << 10]);
        }
    }
}
