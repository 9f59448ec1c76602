//! Enterprise identifiers: which systems want to talk to each other.

use core::fmt;

/// Length of an EID on the wire.
pub const EID_LEN: usize = 32;

/// An enterprise identifier, as its 32 bytes on the wire.
///
/// A system EID (SEID) names a machine, a user-defined one (UEID) a group of systems. What a peer
/// sends is compared byte by byte and never judged; [`Eid::user`] judges what a user configures
/// here.
#[derive(Clone, Copy, Default, PartialEq, Eq, Hash)]
pub struct Eid(pub [u8; EID_LEN]);

/// Why a string is no user-defined EID.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum EidError {
    /// It has no character or more than 32.
    Length,
    /// It begins with `.` or `-`.
    First,
    /// It has a character other than `A`-`Z`, `0`-`9`, `.` and `-`.
    Character,
    /// It has two dots in a row.
    Dots,
}

impl fmt::Display for EidError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            EidError::Length => "an EID has 1 to 32 characters",
            EidError::First => "an EID begins with a letter or digit",
            EidError::Character => "an EID consists of A-Z, 0-9, '.' and '-'",
            EidError::Dots => "an EID has no two dots in a row",
        })
    }
}

impl core::error::Error for EidError {}

impl Eid {
    /// System EID of the loopback device: its name, serial number "1000" and machine type "1000".
    pub const LOOPBACK_SEID: Eid = Eid(*b"SMC-SYSZ-LOSEID00000000010001000");

    /// A user-defined EID, blank padded.
    pub fn user(name: &str) -> Result<Eid, EidError> {
        let name = name.as_bytes();
        let mut eid = [b' '; EID_LEN];
        let slot = eid.get_mut(..name.len()).ok_or(EidError::Length)?;
        slot.copy_from_slice(name);
        if !name.first().ok_or(EidError::Length)?.is_ascii_alphanumeric() {
            return Err(EidError::First);
        }
        if !name.iter().all(|c| matches!(c, b'A'..=b'Z' | b'0'..=b'9' | b'.' | b'-')) {
            return Err(EidError::Character);
        }
        // The wire would carry two dots, but the kernel's tools refuse them.
        if name.windows(2).any(|pair| pair == b"..") {
            return Err(EidError::Dots);
        }
        Ok(Eid(eid))
    }

    /// Whether a system EID stands for an SMC-Dv2 capable machine: serial number or machine type is
    /// set.
    pub fn is_v2_capable(&self) -> bool {
        self.0[24] != b'0' || self.0[28] != b'0'
    }

    /// Whether all bytes are zero, which on the wire says "no EID".
    pub fn is_zero(&self) -> bool {
        self.0 == [0; EID_LEN]
    }

    /// The EID, or `None` if it is zero.
    pub(super) fn present(self) -> Option<Eid> {
        (!self.is_zero()).then_some(self)
    }
}

/// The EID without its padding; bytes that are no printable ASCII as dots.
impl fmt::Display for Eid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write_padded(&self.0, f)
    }
}

impl fmt::Debug for Eid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Eid({self})")
    }
}

/// Writes a blank or zero padded name that came from a peer: no control character gets through.
pub(super) fn write_padded(name: &[u8], f: &mut fmt::Formatter<'_>) -> fmt::Result {
    let end = name.iter().rposition(|c| !matches!(c, b' ' | 0)).map_or(0, |last| last + 1);
    for &c in name.iter().take(end) {
        let shown = if c.is_ascii_graphic() || c == b' ' { c } else { b'.' };
        fmt::Write::write_char(f, char::from(shown))?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn user_eids_follow_the_rules() {
        assert_eq!(Eid::user("DEMO-UEID-1").unwrap().0, *b"DEMO-UEID-1                     ");
        assert_eq!(Eid::user("0.9-A").unwrap().to_string(), "0.9-A");
        assert!(Eid::user(&"A".repeat(32)).is_ok());
        assert_eq!(Eid::user(""), Err(EidError::Length));
        assert_eq!(Eid::user(&"A".repeat(33)), Err(EidError::Length));
        assert_eq!(Eid::user(".A"), Err(EidError::First));
        assert_eq!(Eid::user("-A"), Err(EidError::First));
        assert_eq!(Eid::user(" A"), Err(EidError::First));
        assert_eq!(Eid::user("demo"), Err(EidError::Character));
        assert_eq!(Eid::user("A B"), Err(EidError::Character));
        assert_eq!(Eid::user("A\u{c4}"), Err(EidError::Character));
        assert_eq!(Eid::user("A..B"), Err(EidError::Dots));
    }

    #[test]
    fn loopback_seid_is_v2_capable() {
        let seid = Eid::LOOPBACK_SEID;
        assert_eq!(seid.to_string(), ["SMC-SYSZ-LOSEID000000000", "1000", "1000"].concat());
        assert!(seid.is_v2_capable());
        assert!(!Eid(*b"IBM-SYSZ-ISMSEID0000000000000000").is_v2_capable());
    }

    #[test]
    fn a_name_from_a_peer_is_shown_without_control_characters() {
        let mut eid = Eid([b' '; EID_LEN]);
        eid.0[..4].copy_from_slice(b"A\x1b[m");
        assert_eq!(eid.to_string(), "A.[m");
        assert_eq!(Eid::default().to_string(), "");
    }
}
