//! The devices that SMC-D may go by, and this process's one of each kind.

use core::sync::atomic::{AtomicU32, Ordering::Relaxed};

pub use dibs::ism::{PARTITIONS, chid_of};
use dibs::{Ism, Loopback, Verbs};

use crate::clc::{Device, Gid};
use crate::{bar, hidden};

/// The loopback device of this process.
pub static LOOPBACK: Loopback = Loopback::new();
/// Its ism device.
pub static ISM: Ism = Ism::new();
/// Its verbs device, once somebody has opened it.
pub static VERBS: Verbs = Verbs::new().parking(hidden::park);

/// One of them.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u8)]
pub enum Kind {
    /// No copy between sender and receiver.
    Loopback = 1,
    /// Copies into the other process.
    Ism = 2,
    /// No copy, also between virtual machines that share a bar.
    Ivshmem = 3,
    /// Writes by RDMA.
    Verbs = 4,
}

/// Counts forks behind which this process has made link groups.
static GENERATION: AtomicU32 = AtomicU32::new(0);

/// To peers this process is another one in each generation: what they have in common with it is not
/// used in later ones.
pub fn generation() -> u32 {
    GENERATION.load(Relaxed)
}

/// Begins another generation.
pub(crate) fn begin_generation() {
    GENERATION.fetch_add(1, Relaxed);
}

impl Kind {
    /// All of them.
    pub const ALL: [Kind; 4] = [Kind::Loopback, Kind::Ism, Kind::Ivshmem, Kind::Verbs];

    /// In `table::Header::removed`.
    pub const fn bit(self) -> u32 {
        1 << self as u32
    }

    /// As `--prefer` calls it.
    pub const fn name(self) -> &'static str {
        match self {
            Kind::Loopback => "loopback",
            Kind::Ism => "ism",
            Kind::Ivshmem => "ivshmem",
            Kind::Verbs => "verbs",
        }
    }

    /// This process's one.
    pub fn device(self) -> &'static dyn dibs::Device {
        match self {
            Kind::Loopback => &LOOPBACK,
            Kind::Ism => &ISM,
            Kind::Ivshmem => &bar::IVSHMEM,
            Kind::Verbs => &VERBS,
        }
    }

    /// Its fabric.
    pub fn chid(self) -> u16 {
        self.device().chid()
    }

    /// The device with such a fabric, in whichever partition.
    pub fn of_chid(chid: u16) -> Option<Kind> {
        match chid {
            dibs::LOOPBACK_CHID => Some(Kind::Loopback),
            dibs::IVSHMEM_CHID => Some(Kind::Ivshmem),
            dibs::VERBS_CHID | dibs::VERBS_SOFTWARE_CHID => Some(Kind::Verbs),
            _ => (0..PARTITIONS).any(|partition| chid_of(partition) == chid).then_some(Kind::Ism),
        }
    }

    /// Whether a device of that GID is in this one's partition.
    pub fn is_beside(self, gid: Gid) -> bool {
        self != Kind::Ism || ISM.is_beside(gid)
    }

    /// Its GID in this process.
    pub fn gid(self) -> Gid {
        self.gid_at(generation())
    }

    /// What that was, or will be, in a generation.
    pub fn gid_at(self, generation: u32) -> Gid {
        let own = self.device().gid();
        if self.has_generations() { Gid::new(own.hi, own.lo ^ u64::from(generation)) } else { own }
    }

    /// The generation, up to the present one, in which it is this process's.
    pub fn generation_of(self, gid: Gid) -> Option<u32> {
        let own = self.device().gid();
        let since = if self.has_generations() { generation() } else { 0 };
        let is_own = gid.hi == own.hi && gid.lo ^ own.lo <= u64::from(since);
        is_own.then_some((gid.lo ^ own.lo) as u32)
    }

    /// Whether its memory is shared with fork children, who are to have no part in what comes
    /// later. Over the others connections are not kept apart (ivshmem), or not shared (verbs).
    pub(crate) fn has_generations(self) -> bool {
        matches!(self, Kind::Loopback | Kind::Ism)
    }

    /// As a message names it.
    pub fn entry(self) -> Device {
        self.entry_at(generation())
    }

    /// The same, in a generation.
    pub fn entry_at(self, generation: u32) -> Device {
        Device { gid: self.gid_at(generation), chid: self.chid() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::conn::path;

    /// What of a new kind the compiler does not ask for, because it reads a number or a name.
    #[test]
    fn every_kind_is_found_by_what_names_it() {
        for (at, kind) in Kind::ALL.into_iter().enumerate() {
            assert_eq!(kind as usize, at + 1);
            assert_eq!(Kind::of_chid(kind.chid()), Some(kind));
            assert_eq!(path::kind(path::of(kind, false)), kind);
            assert_eq!(crate::setting::device(kind.name().as_bytes()), Some(kind));
            assert!(
                crate::config::Config::new().prefer().any(|preferred| preferred == kind),
                "{kind:?}"
            );
        }
    }
}
