//! The devices that SMC-D may go by, and this process's one of each kind.

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
        self.device().gid()
    }

    /// As a message names it.
    pub fn entry(self) -> Device {
        Device { gid: self.gid(), chid: self.chid() }
    }
}
