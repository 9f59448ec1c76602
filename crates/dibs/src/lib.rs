//! Direct internal buffer sharing: the devices by which SMC-D moves bytes, and the trait they have
//! in common. The verbs and their meaning are the kernel's (`struct dibs_dev_ops`,
//! `struct smcd_ops`).
//!
//! A receiver registers a buffer (DMB) that one peer may write, and tells that peer its token and
//! what the device says of it. The peer attaches it, and from then on moves data into it: by stores
//! where the buffer is mapped ([`Reach::Mapped`]), by the device where it is not.
#![cfg_attr(shortwire_raw, no_std)]
#![deny(missing_docs)]
#![deny(clippy::multiple_unsafe_ops_per_block)]

extern crate alloc;

#[cfg(any(test, feature = "conformance"))]
pub mod conformance;
mod error;
#[cfg(any(test, feature = "conformance"))]
pub mod faults;
pub mod ism;
pub mod ivshmem;
pub mod loopback;
mod pool;
#[cfg(test)]
mod toy;
pub mod verbs;

pub use error::{AttachError, MoveError, RegisterError};
pub use ism::Ism;
pub use ivshmem::Ivshmem;
pub use loopback::Loopback;
pub use shm::Errno;
pub use verbs::Verbs;

use core::fmt;
use rustix::fd::RawFd;
use shm::Handle;

/// CHID of the loopback device; 0xFF00 to 0xFFFE are those of other emulated devices.
pub const LOOPBACK_CHID: u16 = 0xFFFF;

/// CHID of the ism device in partition 0: the first of those for emulated devices. For others see
/// [`ism::chid_of`].
pub const ISM_CHID: u16 = 0xFF00;

/// CHID of the ivshmem device.
pub const IVSHMEM_CHID: u16 = 0xFF01;

/// CHID of the verbs device over hardware, and over the provider in software: they do not reach
/// each other.
pub const VERBS_CHID: u16 = 0xFF02;
/// See [`VERBS_CHID`].
pub const VERBS_SOFTWARE_CHID: u16 = 0xFF03;

/// Address of a device on its fabric: 64 bits for ISM hardware (`lo` is 0), 128 for emulated
/// devices.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Hash)]
pub struct Gid {
    /// Bits 127..64, "gid" on the wire; the whole address of a hardware device.
    pub hi: u64,
    /// Bits 63..0, "gid_ext" on the wire.
    pub lo: u64,
}

impl Gid {
    /// From its two halves.
    pub const fn new(hi: u64, lo: u64) -> Self {
        Self { hi, lo }
    }

    /// From its 16 bytes in network order.
    pub const fn from_bytes(bytes: [u8; 16]) -> Self {
        let both = u128::from_be_bytes(bytes);
        Self { hi: (both >> 64) as u64, lo: both as u64 }
    }

    /// Its 16 bytes in network order.
    pub const fn to_bytes(self) -> [u8; 16] {
        ((self.hi as u128) << 64 | self.lo as u128).to_be_bytes()
    }
}

impl fmt::Display for Gid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:016x}", self.hi)?;
        if self.lo != 0 { write!(f, "_{:016x}", self.lo) } else { Ok(()) }
    }
}

/// A registered receive buffer, as its owner sees it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Dmb {
    /// What the peer names it by; unique on the device's fabric.
    pub token: u64,
    /// Unique on the device, for tables of its user.
    pub index: u32,
    /// Its first byte.
    pub addr: *mut u8,
    /// Bytes.
    pub len: u32,
}

/// What a device says of a buffer to the peer's device, in words of its own that nobody between the
/// two reads.
#[derive(Clone, Copy, Default)]
pub struct Told {
    len: u8,
    bytes: [[u8; 8]; Told::MAX / 8],
}

impl Told {
    /// Bytes that may be said of a buffer.
    pub const MAX: usize = 72;

    /// None if there are more than [`Self::MAX`] bytes.
    pub fn new(bytes: &[u8]) -> Option<Self> {
        let mut told = Self::default();
        told.push(bytes).then_some(told)
    }

    /// Says more; false if that is too much.
    pub fn push(&mut self, bytes: &[u8]) -> bool {
        let len = usize::from(self.len);
        let Some(free) = self.bytes.as_flattened_mut().get_mut(len..len + bytes.len()) else {
            return false;
        };
        free.copy_from_slice(bytes);
        self.len += bytes.len() as u8;
        true
    }

    /// All of it.
    pub fn bytes(&self) -> &[u8] {
        &self.bytes.as_flattened()[..usize::from(self.len)]
    }

    /// Its big-endian words, if it is made of `N`, and what follows them.
    pub(crate) fn words<const N: usize>(&self) -> Option<([u64; N], &[u8])> {
        let (words, rest) = self.bytes().split_at_checked(8 * N)?;
        Some((core::array::from_fn(|i| u64::from_be_bytes(words.as_chunks().0[i])), rest))
    }
}

/// What the peer must have in order to use a buffer of ours.
#[derive(Default)]
pub struct Lent {
    /// To be said along with the buffer's token.
    pub told: Told,
    /// To be passed along with it.
    pub fd: Option<Handle>,
}

/// Whose buffer is attached, and for what.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Peer {
    /// The link group here, with which the attachment ends.
    pub group: u32,
    /// The device that registered the buffer.
    pub gid: Gid,
    /// The process that registered it, where the rendezvous vouches for it.
    pub pid: i32,
    /// First contact of the group: what both ends share for all of its buffers is made.
    pub first: bool,
    /// The peer has attached ours already.
    pub has_attached: bool,
}

/// A peer's buffer within reach.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reach {
    /// Mapped here: its first byte, and the control page of the arena that it lies in.
    Mapped {
        /// The buffer.
        addr: *mut u8,
        /// [`shm::segment::PAGE`] bytes in front of all buffers, for the device's user.
        page: *mut u8,
    },
    /// In the memory of another process.
    Far(ism::Far),
    /// At the other end of a link.
    Linked(verbs::Remote),
    /// Only [`Device::move_data`] gets there.
    Moved,
}

/// Whether `len` is a size that a DMB can have: 2^(14 + code) with a code from 0 to 15.
pub const fn is_dmb_len(len: u32) -> bool {
    len.is_power_of_two() && len >= 1 << 14 && len <= 1 << 29
}

/// What SMC-D asks of a device. What a device does not offer has a default.
///
/// The life of a buffer: its owner registers it and describes it to the peer, the peer attaches it,
/// writes, and detaches it. [`Self::unregister_dmb`] says that the owner is done with it, while the
/// peer may still write; [`Self::release_dmb`] that both are, and only then it serves anew.
/// [`Self::drop_group`] ends all of a group at once.
pub trait Device: Sync {
    /// As users name it.
    fn name(&self) -> &'static str;

    /// Devices with different CHIDs (fabric ids) never reach each other.
    fn chid(&self) -> u16;

    /// Its address on the fabric; another one in each process.
    fn gid(&self) -> Gid;

    /// `gid` is a device on this host, says the rendezvous. Nothing to a device that knows by
    /// itself whom it reaches.
    fn admit(&self, _gid: Gid) {}

    /// Whether the device `gid` can be reached from here. The only positive answer to be trusted.
    fn query_remote_gid(&self, gid: Gid) -> bool;

    /// How many buffers can be registered at a time.
    fn max_dmbs(&self) -> u32;

    /// Changes that; buffers beyond a lower limit stay.
    fn set_max_dmbs(&self, max_dmbs: u32);

    /// Bytes that its own buffers take, handed out or not yet given back by both sides.
    fn memory(&self) -> u64;

    /// A buffer that `peer` alone may write, pooled with the others of `group`. It has `len` bytes,
    /// 2^(14 + code), or fewer where memory for so many cannot be had. Its first
    /// [`loopback::HEADER`] bytes are zero; the rest may be what the same peer once wrote.
    fn register_dmb(&self, group: u32, peer: Gid, len: u32) -> Result<Dmb, RegisterError>;

    /// What the peer must have in order to attach a buffer of ours, beside its token; `first` at
    /// the group's first contact.
    fn describe_dmb(&self, _token: u64, _first: bool) -> Lent {
        Lent::default()
    }

    /// The peer has attached the buffer: what it needed for that is needed no more.
    fn delivered(&self, _token: u64) {}

    /// The owner needs it no more. False when there is no such buffer.
    fn unregister_dmb(&self, token: u64) -> bool;

    /// Both sides are done with the buffer: its header is zeroed and it may be used again. They
    /// have written to its first `used` bytes, a hint for what is done with its memory.
    fn release_dmb(&self, token: u64, used: u32) -> bool;

    /// Brings a peer's buffer within reach, with what its device said and passed; the descriptor
    /// stays the caller's. Counted: each attachment asks for its own [`Self::detach_dmb`].
    fn attach_dmb(
        &self,
        peer: Peer,
        token: u64,
        len: u32,
        told: &Told,
        fd: Option<RawFd>,
    ) -> Result<Reach, AttachError>;

    /// Ends an attachment. False when there was none.
    fn detach_dmb(&self, owner: Gid, token: u64) -> bool;

    /// Copies `len` bytes to `offset` in a peer's buffer, and with `signal` tells its owner
    /// afterwards. `data` must be readable for `len` bytes and lie outside all buffers.
    fn move_data(
        &self,
        token: u64,
        offset: u32,
        data: *const u8,
        len: u32,
        signal: bool,
    ) -> Result<(), MoveError>;

    /// Tells the owner of a peer's buffer that something happened. Several may arrive as one.
    fn signal_event(&self, token: u64);

    /// How often the owner of a buffer of ours was signalled, modulo 2^32.
    fn signals(&self, token: u64) -> Option<u32>;

    /// The control page of the own arena in which a buffer lies; null if peers cannot look at one.
    fn control_page(&self, _token: u64) -> *mut u8 {
        core::ptr::null_mut()
    }

    /// Whether the device itself knows that a group of which both ends were connected serves no
    /// more.
    fn is_over(&self, _group: u32) -> bool {
        false
    }

    /// Whether there is so little room that nothing may be kept for later.
    fn is_short(&self) -> bool {
        false
    }

    /// Ends all buffers of a group, own and attached. Their addresses stay readable, as zeros, for
    /// threads that are still on their way out; the memory goes back.
    fn drop_group(&self, group: u32);

    /// To be called in the child after a fork, first of all and by its only thread. The child is
    /// another device; what the parent registered and attached stays the parent's. Its mappings
    /// stay in place, for connections that both now hold.
    fn after_fork_child(&self);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn gid_halves_are_big_endian() {
        let gid = Gid::new(0x0102_0304_0506_0708, 0x090a_0b0c_0d0e_0f10);
        assert_eq!(gid.to_bytes(), [1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16]);
        assert_eq!(Gid::from_bytes(gid.to_bytes()), gid);
        assert_eq!(gid.to_string(), "0102030405060708_090a0b0c0d0e0f10");
        assert_eq!(Gid::new(0x11, 0).to_string(), "0000000000000011");
    }

    #[test]
    fn what_is_told_is_bounded() {
        let mut told = Told::new(&7u64.to_be_bytes()).unwrap();
        assert_eq!(told.words::<1>(), Some(([7], &[][..])));
        assert!(told.push(b"end") && told.words::<2>().is_none());
        assert_eq!(told.words::<1>(), Some(([7], &b"end"[..])));
        assert!(
            !told.push(&[0; Told::MAX - 10]) && told.push(&[0; Told::MAX - 11]) && !told.push(&[0])
        );
        assert!(Told::new(&[0; Told::MAX + 1]).is_none() && Told::default().bytes().is_empty());
    }

    #[test]
    fn dmb_sizes() {
        assert!(is_dmb_len(1 << 14) && is_dmb_len(1 << 20) && is_dmb_len(1 << 29));
        assert!(
            !is_dmb_len(0) && !is_dmb_len(1 << 13) && !is_dmb_len(3 << 14) && !is_dmb_len(1 << 30)
        );
    }
}
