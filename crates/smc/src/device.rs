//! The devices of this process, and which of them are offered to whom, in which order.

use core::sync::atomic::Ordering::Relaxed;

pub use dibs::ism::{PARTITIONS, chid_of};
pub use dibs::verbs::{Provider, Unavailable};
use dibs::{Ism, Ivshmem, Loopback, Verbs};

use crate::bar;
use crate::channel::Cred;
use crate::clc::{Device, Gid};
use crate::config::CONFIG;
use crate::{hidden, pnet, table};

/// The loopback device of this process.
pub static LOOPBACK: Loopback = Loopback::new();
/// Its ism device.
pub static ISM: Ism = Ism::new();
/// Its ivshmem device, once `bar` has opened it.
pub static IVSHMEM: Ivshmem = Ivshmem::new().calling(bar::in_use, bar::reclaim);
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

    /// Whether it was taken away from this process and what it forked.
    pub fn is_gone(self) -> bool {
        table::exists() && table::get().is_some_and(|t| t.removed.load(Relaxed) & self.bit() != 0)
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
            Kind::Ivshmem => &IVSHMEM,
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
    pub fn is_beside(self, gid: dibs::Gid) -> bool {
        self != Kind::Ism || ISM.is_beside(gid)
    }

    /// Its GID in this process.
    pub fn gid(self) -> Gid {
        let gid = self.device().gid();
        Gid { hi: gid.hi(), lo: gid.lo() }
    }

    /// As a message names it.
    pub fn entry(self) -> Device {
        Device { gid: self.gid(), chid: self.chid() }
    }

    /// Whether it can move data to that process. Whoever reached us through the rendezvous is on this host, which is what
    /// loopback reaches; ism, and verbs in software, need the rights of ptrace, and are kept among processes of one user also where privileges
    /// would allow more.
    pub fn reaches(self, peer: Cred) -> bool {
        match self {
            Kind::Loopback => !peer.is_elsewhere(),
            Kind::Ism => may_copy(peer),
            Kind::Ivshmem => bar::is_available(),
            Kind::Verbs if VERBS.provider() == Some(Provider::Software) => may_copy(peer),
            Kind::Verbs => !peer.is_elsewhere(),
        }
    }
}

impl Kind {
    /// Whether this process has such a device, for this peer. On one machine ivshmem and verbs are used if they were
    /// asked for.
    fn is_here(self, peer: Cred) -> bool {
        let told = CONFIG.was_told_devices();
        pnet::admits(self)
            && !self.is_gone()
            && match self {
                Kind::Loopback | Kind::Ism => true,
                Kind::Ivshmem => (peer.is_elsewhere() || told) && bar::is_available(),
                // Nor is libibverbs loaded into programs whose user has not asked for it.
                Kind::Verbs => told && !peer.is_elsewhere() && open_verbs(true).is_ok(),
            }
    }

    /// Whether a device of that GID can be on the same fabric. That of ivshmem is the bar.
    pub fn may_be(self, gid: Gid) -> bool {
        gid != Gid::default() && (self != Kind::Ivshmem || gid.hi == bar::id())
    }
}

/// Opens the verbs device, also in software if that was `asked_for`.
pub fn open_verbs(asked_for: bool) -> Result<Provider, Unavailable> {
    let opened = VERBS.open(asked_for);
    // It may be open because somebody else asked.
    opened.and_then(|provider| match provider {
        Provider::Software if !asked_for => Err(Unavailable::NoDevice),
        provider => Ok(provider),
    })
}

fn may_copy(peer: Cred) -> bool {
    peer.pid > 0 && peer.uid == rustix::process::geteuid().as_raw() && may_write(peer.pid).is_ok()
}

/// Whether this process may write to the memory of `pid`, as ism does; an errno if not.
pub fn may_write(pid: i32) -> Result<(), i32> {
    dibs::ism::far::may_write(pid).map_err(|e| e.raw_os_error())
}

/// The devices in use with a process, in the order of preference; none of a foreign PNET id, none that was taken away.
pub fn here(peer: Cred) -> impl Iterator<Item = Kind> {
    CONFIG.prefer().filter(move |kind| kind.is_here(peer))
}

/// What is proposed to a process, in order. Only a first choice is asked for its rights beforehand: what comes later is
/// seldom chosen.
pub fn offered(peer: Cred) -> impl Iterator<Item = Kind> {
    here(peer)
        .enumerate()
        .filter(move |&(at, kind)| at > 0 && !peer.is_elsewhere() || kind.reaches(peer))
        .map(|(_, kind)| kind)
}

/// Bytes of buffers that this process has registered.
pub fn memory() -> u64 {
    Kind::ALL.iter().map(|kind| kind.device().memory()).sum()
}

/// In a fork child: other devices, under other GIDs.
pub fn after_fork_child() {
    Kind::ALL.iter().for_each(|kind| kind.device().after_fork_child());
    bar::after_fork_child();
}
