//! The first contact extension of Accept and Confirm: who the peer is, and its release.

use core::fmt;

use super::Full;
use super::eid::write_padded;
use super::wire::{self, Emit, Malformed};

/// Length without what release 1 added.
pub(super) const SHORT_LEN: usize = 36;
/// Length of release 1 and later, and of every release for SMC-R.
pub(super) const LONG_LEN: usize = 52;

mod field {
    use core::ops::Range;

    pub const FLAGS: usize = 0;
    pub const OS_RELEASE: usize = 1;
    pub const HOSTNAME: Range<usize> = 4..36;
    pub const MAX_CONNS: usize = 36;
    pub const MAX_LINKS: usize = 37;
    pub const FEATURES: Range<usize> = 38..40;
    pub const VENDOR: Range<usize> = 40..44;
}

const V2_DIRECT: u8 = 0x80;

/// Vendor options of an end of ours: a mark, and flags in the last byte.
const OURS: [u8; 2] = *b"SW";
const INTEGRITY: u8 = 1;

/// Operating system of a peer, four bits.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Os(u8);

impl Os {
    /// z/OS.
    pub const ZOS: Os = Os(1);
    /// Linux.
    pub const LINUX: Os = Os(2);
    /// AIX.
    pub const AIX: Os = Os(3);

    /// The operating system with this number, of which four bits count.
    pub const fn new(number: u8) -> Os {
        Os(number & 0x0f)
    }

    /// Its number.
    pub const fn number(self) -> u8 {
        self.0
    }
}

impl fmt::Display for Os {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            Os::ZOS => f.write_str("z/OS"),
            Os::LINUX => f.write_str("Linux"),
            Os::AIX => f.write_str("AIX"),
            Os(number) => write!(f, "unknown ({number})"),
        }
    }
}

/// Host name of a peer, blank padded.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct Hostname(pub [u8; 32]);

impl Hostname {
    /// The first 32 bytes of a name.
    pub fn new(name: &str) -> Hostname {
        let mut padded = [b' '; 32];
        for (slot, &byte) in padded.iter_mut().zip(name.as_bytes()) {
            *slot = byte;
        }
        Hostname(padded)
    }
}

impl Default for Hostname {
    fn default() -> Hostname {
        Hostname([b' '; 32])
    }
}

/// The name without its padding; bytes that are no printable ASCII as dots.
impl fmt::Display for Hostname {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write_padded(&self.0, f)
    }
}

impl fmt::Debug for Hostname {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Hostname({self})")
    }
}

/// What a peer says about itself when a link group begins.
///
/// The fields from `max_conns` on came with release 1: for SMC-D they are on the wire only if
/// `release` is at least 1.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FirstContact {
    /// SMC-R: the peer is reached without a gateway.
    pub v2_direct: bool,
    /// Operating system.
    pub os: Os,
    /// Release of version 2, 0 to 15.
    pub release: u8,
    /// Host name.
    pub hostname: Hostname,
    /// SMC-R: connections per link group.
    pub max_conns: u8,
    /// SMC-R: links per link group.
    pub max_links: u8,
    /// Feature mask.
    pub features: u16,
    /// Vendor options.
    pub vendor: [u8; 4],
}

impl FirstContact {
    /// Vendor options of an end that wants a checksum over what a device copies.
    pub const INTEGRITY: [u8; 4] = [OURS[0], OURS[1], 0, INTEGRITY];

    /// Whether its sender wants that.
    pub fn wants_integrity(&self) -> bool {
        self.vendor[..2] == OURS && self.vendor[3] & INTEGRITY != 0
    }

    /// Length for SMC-D.
    pub(super) fn smcd_len(&self) -> usize {
        if self.release & 0x0f == 0 { SHORT_LEN } else { LONG_LEN }
    }

    /// Reads the extension at the start of `bytes`, in the form for SMC-R or the one for SMC-D.
    pub(super) fn decode(bytes: &[u8], smcr: bool) -> Result<FirstContact, Malformed> {
        let os_release = wire::byte(bytes, field::OS_RELEASE)?;
        let mut contact = FirstContact {
            v2_direct: wire::byte(bytes, field::FLAGS)? & V2_DIRECT != 0,
            os: Os::new(os_release >> 4),
            release: os_release & 0x0f,
            hostname: Hostname(wire::get(bytes, field::HOSTNAME)?),
            ..FirstContact::default()
        };
        if smcr || contact.release > 0 {
            let bytes = bytes.get(..LONG_LEN).ok_or(Malformed::Length)?;
            contact.max_conns = wire::byte(bytes, field::MAX_CONNS)?;
            contact.max_links = wire::byte(bytes, field::MAX_LINKS)?;
            contact.features = wire::be16(bytes, field::FEATURES)?;
            contact.vendor = wire::get(bytes, field::VENDOR)?;
        }
        Ok(contact)
    }

    /// Writes the extension at the start of `out`.
    pub(super) fn encode(&self, smcr: bool, out: &mut Emit<'_>) -> Result<(), Full> {
        out.set(field::FLAGS, if self.v2_direct { V2_DIRECT } else { 0 })?;
        out.set(field::OS_RELEASE, self.os.number() << 4 | self.release & 0x0f)?;
        out.put(field::HOSTNAME, &self.hostname.0)?;
        if smcr || self.smcd_len() == LONG_LEN {
            out.set(field::MAX_CONNS, self.max_conns)?;
            out.set(field::MAX_LINKS, self.max_links)?;
            out.put(field::FEATURES, &self.features.to_be_bytes())?;
            out.put(field::VENDOR, &self.vendor)?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hostname_is_cut_and_shown_without_padding() {
        assert_eq!(Hostname::new("hosta").to_string(), "hosta");
        assert_eq!(Hostname::new(&"x".repeat(40)).to_string(), "x".repeat(32));
        assert_eq!(Hostname::default().to_string(), "");
        assert_eq!(Os::LINUX.to_string(), "Linux");
        assert_eq!(Os::new(0x19).to_string(), "unknown (9)");
    }

    #[test]
    fn only_our_own_vendor_options_are_understood() {
        let wants = |vendor| FirstContact { vendor, ..FirstContact::default() }.wants_integrity();
        assert!(wants(FirstContact::INTEGRITY) && wants(*b"SW\xff\xff"));
        assert!(!wants([0; 4]) && !wants([0, 0, 0, 1]) && !wants(*b"SW\x01\x02"));
    }

    #[test]
    fn release_zero_is_the_short_form_for_smcd_only() {
        let mut bytes = [0xffu8; LONG_LEN];
        bytes[1] = 0x20;
        let short = FirstContact::decode(&bytes, false).unwrap();
        assert_eq!((short.max_conns, short.features, short.smcd_len()), (0, 0, SHORT_LEN));
        assert_eq!(FirstContact::decode(&bytes, true).unwrap().max_conns, 0xff);
        assert!(FirstContact::decode(&bytes[..SHORT_LEN], false).is_ok());
        assert_eq!(FirstContact::decode(&bytes[..SHORT_LEN], true), Err(Malformed::Length));
        bytes[1] = 0x21;
        assert_eq!(FirstContact::decode(&bytes[..SHORT_LEN], false), Err(Malformed::Length));
    }
}
