//! The part of a Proposal that is for version 1.

use super::wire::{self, Emit, Malformed};
use super::{Full, List};

/// IPv6 prefixes in a Proposal, at most.
const MAX_V6: usize = 8;

/// Length of the IP area with all prefixes.
pub(super) const MAX_IP_AREA_LEN: usize = field::END + MAX_V6 * field::V6_END;

#[rustfmt::skip]
mod field {
    use core::ops::Range;

    pub const SUBNET: Range<usize>  = 0..4;
    pub const PREFIX_LEN: usize     = 4;
    pub const V6_COUNT: usize       = 7;
    pub const END: usize            = 8;
    // In each IPv6 prefix.
    pub const V6_ADDR: Range<usize> = 0..16;
    pub const V6_LEN: usize         = 16;
    pub const V6_END: usize         = 17;
}

/// An offer for version 1; one of neither SMC-R nor SMC-D counts as none.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct OfferV1 {
    /// SMC-R is offered.
    pub smcr: bool,
    /// SMC-D is offered, with this device.
    pub native: Option<NativeIsm>,
    /// Addresses of the outgoing interface.
    pub ip: IpArea,
}

/// The one SMC-D device of version 1.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct NativeIsm {
    /// Its GID, always 64 bits.
    pub gid: u64,
    /// Its CHID, 0 if it has none.
    pub chid: u16,
}

/// Subnets of the client's outgoing interface.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct IpArea {
    /// IPv4 subnet, zero for IPv6.
    pub subnet: [u8; 4],
    /// Significant bits of `subnet`.
    pub prefix_len: u8,
    /// IPv6 prefixes.
    pub v6: List<Ipv6Prefix, MAX_V6>,
}

/// An IPv6 prefix.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Ipv6Prefix {
    /// The prefix.
    pub addr: [u8; 16],
    /// Its significant bits.
    pub len: u8,
}

impl IpArea {
    /// Length on the wire.
    pub(super) fn wire_len(&self) -> usize {
        field::END + self.v6.len() * field::V6_END
    }

    /// Reads the area at the start of `bytes`.
    pub(super) fn decode(bytes: &[u8]) -> Result<IpArea, Malformed> {
        let mut v6 = List::new();
        let count = wire::count(bytes, field::V6_COUNT, MAX_V6)?;
        for prefix in wire::items::<{ field::V6_END }>(bytes, field::END, count)? {
            let addr = wire::get(prefix, field::V6_ADDR)?;
            let len = wire::byte(prefix, field::V6_LEN)?;
            v6.push(Ipv6Prefix { addr, len }).map_err(|Full| Malformed::Count)?;
        }
        let subnet = wire::get(bytes, field::SUBNET)?;
        Ok(IpArea { subnet, prefix_len: wire::byte(bytes, field::PREFIX_LEN)?, v6 })
    }

    /// Writes the area at the start of `out`.
    pub(super) fn encode(&self, out: &mut Emit<'_>) -> Result<(), Full> {
        out.put(field::SUBNET, &self.subnet)?;
        out.set(field::PREFIX_LEN, self.prefix_len)?;
        out.set(field::V6_COUNT, wire::small(self.v6.len())?)?;
        for (i, prefix) in self.v6.iter().enumerate() {
            let mut slot = out.part(field::END + i * field::V6_END)?;
            slot.put(field::V6_ADDR, &prefix.addr)?;
            slot.set(field::V6_LEN, prefix.len)?;
        }
        Ok(())
    }
}
