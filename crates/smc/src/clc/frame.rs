//! A whole message as header, contents and trailer.

use super::header::{EYECATCHER_SMCD, EYECATCHER_SMCR, FLAG, field, is_eyecatcher};
use super::wire::{self, Emit, Malformed};
use super::{Full, Header, Kind, MAX_LEN, PathType, Version};

/// Length of the trailer.
pub(super) const TRAILER_LEN: usize = 4;

/// The low half of the version byte.
#[derive(Clone, Copy)]
pub(super) enum Paths {
    /// As a Proposal has it.
    Offered { v1: PathType, v2: PathType },
    /// As the other messages have it.
    Chosen { path: PathType, flag: bool },
}

/// A message cut out of what follows it.
pub(super) struct Frame<'a> {
    pub(super) header: Header,
    /// Header and contents, without the trailer.
    pub(super) body: &'a [u8],
    trailer: Option<[u8; TRAILER_LEN]>,
}

impl<'a> Frame<'a> {
    pub(super) fn parse(bytes: &'a [u8]) -> Result<Frame<'a>, Malformed> {
        let header = Header::parse(bytes)?;
        let length = usize::from(header.length);
        if length > MAX_LEN {
            // Whoever sends that much appends fields that we don't know; what we know comes first.
            let body = bytes.get(..MAX_LEN).ok_or(Malformed::Short)?;
            return Ok(Frame { header, body, trailer: None });
        }
        let end = length.saturating_sub(TRAILER_LEN);
        let body = bytes.get(..end).ok_or(Malformed::Short)?;
        let trailer = wire::get(bytes, end..length).map_err(|_| Malformed::Short)?;
        Ok(Frame { header, body, trailer: Some(trailer) })
    }

    /// The length that the header gives must be `length`.
    pub(super) fn exactly(&self, length: usize) -> Result<(), Malformed> {
        if usize::from(self.header.length) == length { Ok(()) } else { Err(Malformed::Length) }
    }

    /// The length that the header gives must be `length` or more.
    pub(super) fn at_least(&self, length: usize) -> Result<(), Malformed> {
        if usize::from(self.header.length) >= length { Ok(()) } else { Err(Malformed::Length) }
    }

    /// The trailer must be an eyecatcher, if there is one in reach.
    pub(super) fn check_trailer(&self) -> Result<(), Malformed> {
        match self.trailer {
            Some(trailer) if !is_eyecatcher(trailer) => Err(Malformed::Trailer),
            _ => Ok(()),
        }
    }
}

/// Takes `length` bytes of `out` for a message, and writes its header and trailer.
pub(super) fn emit<'a>(
    out: &'a mut [u8],
    kind: Kind,
    version: Version,
    paths: Paths,
    length: usize,
) -> Result<Emit<'a>, Full> {
    let announced = u16::try_from(length).map_err(|_| Full)?;
    let body = length.checked_sub(TRAILER_LEN).ok_or(Full)?;
    let mut message = Emit::new(out, length)?;
    // Linux marks a Proposal and a Decline "SMCR" whatever they are about.
    let (eyecatcher, bits) = match paths {
        Paths::Offered { v1, v2 } => (EYECATCHER_SMCR, (v2 as u8) << 2 | v1 as u8),
        Paths::Chosen { path, flag } => {
            let smcd = path.smcd() && kind != Kind::Decline;
            let eyecatcher = if smcd { EYECATCHER_SMCD } else { EYECATCHER_SMCR };
            (eyecatcher, if flag { FLAG } else { 0 } | path as u8)
        }
    };
    message.put(field::EYECATCHER, &eyecatcher)?;
    message.set(field::TYPE, kind as u8)?;
    message.put(field::LENGTH, &announced.to_be_bytes())?;
    message.set(field::VERSION, (version as u8) << 4 | bits)?;
    message.put(body..length, &eyecatcher)?;
    Ok(message)
}
