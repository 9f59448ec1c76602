//! Direct internal buffer sharing: the devices by which SMC-D moves bytes, and the trait they have in
//! common. The verbs and their meaning are the kernel's (`struct dibs_dev_ops`, `struct smcd_ops`).
//!
//! A receiver registers a buffer (DMB) that one peer may write, and tells that peer its token. Every
//! device can then move data into it. A device with [`NoCopy`] can also lay the buffer itself into the
//! sender's address space.

#[cfg(any(test, feature = "conformance"))]
pub mod conformance;
pub mod copying;
mod error;
#[cfg(any(test, feature = "conformance"))]
pub mod faults;
pub mod ism;
pub mod ivshmem;
pub mod loopback;
pub mod verbs;

pub use copying::CopyingDevice;
pub use error::{AttachError, MoveError, RegisterError};
pub use ism::Ism;
pub use ivshmem::Ivshmem;
pub use loopback::Loopback;
pub use shm::Errno;
pub use verbs::Verbs;

use core::fmt;
use rustix::fd::RawFd;

/// CHID of the loopback device; 0xFF00 to 0xFFFE are those of other emulated devices.
pub const LOOPBACK_CHID: u16 = 0xFFFF;

/// CHID of the ism device in partition 0: the first of those for emulated devices. For others see [`ism::chid_of`].
pub const ISM_CHID: u16 = 0xFF00;

/// CHID of the ivshmem device.
pub const IVSHMEM_CHID: u16 = 0xFF01;

/// CHID of the verbs device over hardware, and over the provider in software: they do not reach each other.
pub const VERBS_CHID: u16 = 0xFF02;
/// See [`VERBS_CHID`].
pub const VERBS_SOFTWARE_CHID: u16 = 0xFF03;

/// Identity of a device, 128 bits. ISM hardware uses the first half only.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Hash)]
pub struct Gid(pub [u8; 16]);

impl Gid {
    pub const fn new(hi: u64, lo: u64) -> Self {
        Self((((hi as u128) << 64) | lo as u128).to_be_bytes())
    }

    /// "gid" on the wire.
    pub const fn hi(&self) -> u64 {
        (u128::from_be_bytes(self.0) >> 64) as u64
    }

    /// "gid_ext" on the wire.
    pub const fn lo(&self) -> u64 {
        u128::from_be_bytes(self.0) as u64
    }
}

impl fmt::Display for Gid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:016x}{:016x}", self.hi(), self.lo())
    }
}

/// A registered receive buffer, as its owner sees it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Dmb {
    /// What the peer names it by; unique on the device's fabric.
    pub token: u64,
    /// Unique on the device, for tables of its user.
    pub index: u32,
    pub addr: *mut u8,
    pub len: u32,
}

/// A peer's receive buffer, as a sender sees it that attached it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Attached {
    pub token: u64,
    pub addr: *mut u8,
    pub len: u32,
}

/// What a peer needs in order to attach a buffer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Share {
    /// Borrowed: the device closes it some day, the user never does.
    pub fd: RawFd,
    /// Buffers with the same `arena` need the descriptor only once.
    pub arena: u64,
    /// Of the buffer in the arena.
    pub offset: u32,
    pub arena_len: u64,
}

/// Whether `len` is a size that a DMB can have: 2^(14 + code) with a code from 0 to 15.
pub const fn is_dmb_len(len: u32) -> bool {
    len.is_power_of_two() && len >= 1 << 14 && len <= 1 << 29
}

pub trait Device: Sync {
    fn name(&self) -> &'static str;

    /// Devices with different CHIDs (fabric ids) never reach each other.
    fn chid(&self) -> u16;

    fn gid(&self) -> Gid;

    /// How many buffers can be registered at a time.
    fn max_dmbs(&self) -> u32;

    /// Whether the device `gid` can be reached from here. The only positive answer to be trusted.
    fn query_remote_gid(&self, gid: Gid) -> bool;

    /// A buffer of `len` bytes, 2^(14 + code), that `peer` alone may write. Its first
    /// [`loopback::HEADER`] bytes are zero; the rest may be what the same peer once wrote.
    fn register_dmb(&self, peer: Gid, len: u32) -> Result<Dmb, RegisterError>;

    /// The owner needs it no more. False when there is no such buffer.
    fn unregister_dmb(&self, token: u64) -> bool;

    /// Copies `len` bytes to `offset` in a peer's buffer, and with `signal` tells its owner afterwards.
    /// `data` must be readable for `len` bytes and lie outside all buffers.
    fn move_data(&self, token: u64, offset: u32, data: *const u8, len: u32, signal: bool) -> Result<(), MoveError>;

    /// Tells the owner of a peer's buffer that something happened. Several may arrive as one.
    fn signal_event(&self, token: u64);

    /// The optional half, for devices whose peers can see each other's memory.
    fn no_copy(&self) -> Option<&dyn NoCopy>;
}

pub trait NoCopy {
    /// What the peer needs to attach one of our buffers.
    fn share(&self, token: u64) -> Option<Share>;

    /// Makes a peer's buffer addressable here. `share` is needed for the first buffer of an arena only
    /// and stays the caller's. Counted: each attach asks for its own [`Self::detach_dmb`].
    fn attach_dmb(&self, owner: Gid, token: u64, len: u32, share: Option<RawFd>) -> Result<Attached, AttachError>;

    /// False when it was not attached.
    fn detach_dmb(&self, owner: Gid, token: u64) -> bool;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn gid_halves_are_big_endian() {
        let gid = Gid::new(0x0102_0304_0506_0708, 0x090a_0b0c_0d0e_0f10);
        assert_eq!(gid.0, [1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16]);
        assert_eq!((gid.hi(), gid.lo()), (0x0102_0304_0506_0708, 0x090a_0b0c_0d0e_0f10));
        assert_eq!(gid.to_string(), "0102030405060708090a0b0c0d0e0f10");
    }

    #[test]
    fn dmb_sizes() {
        assert!(is_dmb_len(1 << 14) && is_dmb_len(1 << 20) && is_dmb_len(1 << 29));
        assert!(!is_dmb_len(0) && !is_dmb_len(1 << 13) && !is_dmb_len(3 << 14) && !is_dmb_len(1 << 30));
    }
}
