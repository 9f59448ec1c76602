//! Which devices are offered to whom, in which order.

pub use dibs::verbs::{Provider, Unavailable};

use crate::bar;
use crate::channel::Cred;
use crate::clc::Gid;
use crate::config::{CONFIG, PeerPolicy};
use crate::kind::{Kind, VERBS};
use crate::{pnet, table};

impl Kind {
    /// Whether it can move data to that process. Whoever reached us through the rendezvous is on
    /// this host, which is what loopback reaches; ism, and verbs in software, need the rights of
    /// ptrace, and are kept among processes of one user also where privileges would allow more.
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
    /// Whether this process has such a device, for this peer. On one machine ivshmem and verbs are
    /// used if they were asked for.
    fn is_here(self, peer: Cred) -> bool {
        let told = CONFIG.was_told_devices();
        pnet::admits(self)
            && !table::is_removed(self)
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

/// The devices in use with a process, in the order of preference; none of a foreign PNET id, none
/// that was taken away.
pub fn here(peer: Cred) -> impl Iterator<Item = Kind> {
    CONFIG.prefer().filter(move |kind| kind.is_here(peer))
}

/// Whether connections to other machines may use the bar: nobody vouches for the user at the other
/// end.
pub fn bar_is_for_others() -> bool {
    CONFIG.policy() == PeerPolicy::Verified
        && here(Cred::ELSEWHERE).any(|kind| kind == Kind::Ivshmem)
}

/// What is proposed to a process, in order. Only a first choice is asked for its rights beforehand:
/// what comes later is seldom chosen.
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
