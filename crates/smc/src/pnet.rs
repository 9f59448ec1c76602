//! PNET ids: which devices and interfaces are on one physical network, as the user says.
//!
//! The rule of version 2 is the kernel's: a device without an id goes with every interface, one
//! that has an id with a system that has an interface of the same id.
#![allow(unsafe_code)]

use core::cell::UnsafeCell;
use core::fmt;

use crate::kind::Kind;

/// Length of a PNET id.
pub const PNETID_LEN: usize = 16;
/// Interfaces that can be given one.
const INTERFACES: usize = 8;

/// A PNET id: 1 to 16 letters and digits, in upper case and blank padded. All zero: none.
#[derive(Clone, Copy, Default, PartialEq, Eq, Hash)]
pub struct PnetId(pub [u8; PNETID_LEN]);

/// Why a string is no PNET id.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum PnetIdError {
    /// It has no character or more than 16.
    Length,
    /// It has something other than letters and digits.
    Character,
}

impl fmt::Display for PnetIdError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            PnetIdError::Length => "a PNET id has 1 to 16 characters",
            PnetIdError::Character => "a PNET id consists of letters and digits",
        })
    }
}

impl core::error::Error for PnetIdError {}

impl PnetId {
    /// Blanks around it do not count, nor does case.
    pub fn parse(text: &[u8]) -> Result<PnetId, PnetIdError> {
        let text = text.trim_ascii();
        let mut id = [b' '; PNETID_LEN];
        let place = id
            .get_mut(..text.len())
            .filter(|place| !place.is_empty())
            .ok_or(PnetIdError::Length)?;
        if !text.iter().all(u8::is_ascii_alphanumeric) {
            return Err(PnetIdError::Character);
        }
        place.copy_from_slice(text);
        place.make_ascii_uppercase();
        Ok(PnetId(id))
    }
}

impl fmt::Display for PnetId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for &byte in self.0.iter().take_while(|byte| byte.is_ascii_graphic()) {
            fmt::Write::write_char(f, char::from(byte))?;
        }
        Ok(())
    }
}

impl fmt::Debug for PnetId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "PnetId({self})")
    }
}

/// Who has which id. A name that is none of a device is that of an interface.
#[derive(Clone, Copy, Default)]
pub struct Pnets {
    devices: [Option<PnetId>; Kind::ALL.len()],
    interfaces: [Option<PnetId>; INTERFACES],
}

impl Pnets {
    /// From `NAME=ID,...`. What makes no sense is left out, like an interface too many.
    pub fn parse(text: &[u8]) -> Pnets {
        let mut pnets = Pnets::default();
        for entry in text.split(|&b| b == b',') {
            let Some(at) = entry.iter().position(|&b| b == b'=') else { continue };
            let (name, Ok(id)) = (entry[..at].trim_ascii(), PnetId::parse(&entry[at + 1..])) else {
                continue;
            };
            match Kind::ALL.iter().position(|kind| kind.name().as_bytes() == name) {
                Some(device) => pnets.devices[device] = Some(id),
                None => {
                    if let Some(slot) = pnets.interfaces.iter_mut().find(|slot| slot.is_none()) {
                        *slot = Some(id);
                    }
                }
            }
        }
        pnets
    }

    /// The id of a device.
    pub fn of(&self, kind: Kind) -> Option<PnetId> {
        Kind::ALL.iter().position(|other| *other == kind).and_then(|at| self.devices[at])
    }

    /// Whether a device may be offered.
    pub fn admits(&self, kind: Kind) -> bool {
        self.of(kind).is_none_or(|id| self.interfaces.contains(&Some(id)))
    }
}

struct Cell(UnsafeCell<Pnets>);
// SAFETY: written while the library is loaded and before any other thread of ours reads.
unsafe impl Sync for Cell {}
static PNETS: Cell = Cell(UnsafeCell::new(Pnets {
    devices: [None; Kind::ALL.len()],
    interfaces: [None; INTERFACES],
}));

/// Whether all of it makes sense.
pub(crate) fn is_list(text: &[u8]) -> bool {
    text.split(|&b| b == b',').all(|entry| match entry.iter().position(|&b| b == b'=') {
        Some(at) => !entry[..at].trim_ascii().is_empty() && PnetId::parse(&entry[at + 1..]).is_ok(),
        None => false,
    })
}

pub(crate) fn set(text: &[u8]) {
    // SAFETY: see `Cell`.
    unsafe { *PNETS.0.get() = Pnets::parse(text) };
}

fn pnets() -> &'static Pnets {
    // SAFETY: see `Cell`.
    unsafe { &*PNETS.0.get() }
}

/// The PNET id of a device of this process.
pub fn of_device(kind: Kind) -> Option<PnetId> {
    pnets().of(kind)
}

/// Whether this process may offer a device.
pub fn admits(kind: Kind) -> bool {
    pnets().admits(kind)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids() {
        assert_eq!(PnetId::parse(b" net1 ").unwrap(), PnetId(*b"NET1            "));
        assert_eq!(PnetId::parse(b"0123456789abcdef").unwrap().to_string(), "0123456789ABCDEF");
        assert_eq!(PnetId::parse(b""), Err(PnetIdError::Length));
        assert_eq!(PnetId::parse(b"  "), Err(PnetIdError::Length));
        assert_eq!(PnetId::parse(b"0123456789abcdefg"), Err(PnetIdError::Length));
        for bad in ["NET 1", "NET-1", "N.", "NETZ\u{e4}"] {
            assert_eq!(PnetId::parse(bad.as_bytes()), Err(PnetIdError::Character), "{bad}");
        }
    }

    #[test]
    fn a_device_with_an_id_needs_an_interface_that_has_it() {
        let admits = |text: &str| {
            let pnets = Pnets::parse(text.as_bytes());
            Kind::ALL.map(|kind| pnets.admits(kind))
        };
        assert_eq!(
            admits(""),
            [true, true, true, true],
            "without an id it goes with every interface"
        );
        assert_eq!(admits("lo=NET1"), [true, true, true, true]);
        assert_eq!(admits("loopback=NET1"), [false, true, true, true]);
        assert_eq!(admits("loopback=NET1,ism=NET2,lo=NET2"), [false, true, true, true]);
        assert_eq!(admits("loopback=NET1,ism=NET2,lo=net2,eth0=NET1"), [true, true, true, true]);
        assert_eq!(admits("ism=NET2,lo=NET1"), [true, false, true, true]);
        assert_eq!(admits("ism=no id,lo"), [true, true, true, true], "what makes no sense");
        assert_eq!(Pnets::parse(b"ism=net2").of(Kind::Ism), PnetId::parse(b"NET2").ok());
    }
}
