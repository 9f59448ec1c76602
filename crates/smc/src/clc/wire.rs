//! Checked access to the bytes of a message, and the two errors of the codec.
//!
//! A decoder reads only through [`get`] and its kin, an encoder writes only through [`Emit`];
//! neither indexes, so no input can make the codec panic.

use core::fmt;
use core::ops::Range;

/// What is wrong with bytes that should be a CLC message.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Malformed {
    /// Fewer bytes than a header, or than the header announces.
    Short,
    /// The header does not begin with one of the two eyecatchers.
    Eyecatcher,
    /// A version other than 1 and 2.
    Version,
    /// A message type other than the four known ones.
    Type,
    /// The announced length does not fit the contents.
    Length,
    /// An offset beyond its bound, or one that makes two parts overlap.
    Offset,
    /// A count beyond its bound.
    Count,
    /// The message does not end with one of the two eyecatchers.
    Trailer,
    /// A path type that this kind of message cannot carry.
    Path,
}

impl fmt::Display for Malformed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Malformed::Short => "CLC message is cut short",
            Malformed::Eyecatcher => "CLC message has no eyecatcher",
            Malformed::Version => "CLC message has an unknown version",
            Malformed::Type => "CLC message has an unknown type",
            Malformed::Length => "CLC message has the wrong length for its contents",
            Malformed::Offset => "CLC message has an offset out of bounds",
            Malformed::Count => "CLC message has a count out of bounds",
            Malformed::Trailer => "CLC message has no trailer",
            Malformed::Path => "CLC message has a path type it cannot have",
        })
    }
}

impl core::error::Error for Malformed {}

/// The buffer given to an encoder is too small for the message.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Full;

impl fmt::Display for Full {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("buffer too small for the CLC message")
    }
}

impl core::error::Error for Full {}

/// The bytes of `field`, which must be `N` long.
pub(super) fn get<const N: usize>(bytes: &[u8], field: Range<usize>) -> Result<[u8; N], Malformed> {
    bytes.get(field).and_then(|part| part.try_into().ok()).ok_or(Malformed::Length)
}

/// The byte at `at`.
pub(super) fn byte(bytes: &[u8], at: usize) -> Result<u8, Malformed> {
    bytes.get(at).copied().ok_or(Malformed::Length)
}

/// A big-endian 16-bit field.
pub(super) fn be16(bytes: &[u8], field: Range<usize>) -> Result<u16, Malformed> {
    get(bytes, field).map(u16::from_be_bytes)
}

/// A big-endian 24-bit field.
pub(super) fn be24(bytes: &[u8], field: Range<usize>) -> Result<u32, Malformed> {
    let [a, b, c] = get(bytes, field)?;
    Ok(u32::from_be_bytes([0, a, b, c]))
}

/// A big-endian 32-bit field.
pub(super) fn be32(bytes: &[u8], field: Range<usize>) -> Result<u32, Malformed> {
    get(bytes, field).map(u32::from_be_bytes)
}

/// A big-endian 64-bit field.
pub(super) fn be64(bytes: &[u8], field: Range<usize>) -> Result<u64, Malformed> {
    get(bytes, field).map(u64::from_be_bytes)
}

/// The bytes from `at` on, to be read with offsets of their own.
pub(super) fn part(bytes: &[u8], at: usize) -> Result<&[u8], Malformed> {
    bytes.get(at..).ok_or(Malformed::Length)
}

/// A list of `count` items of `N` bytes each, from `at` on.
pub(super) fn items<const N: usize>(
    bytes: &[u8],
    at: usize,
    count: usize,
) -> Result<&[[u8; N]], Malformed> {
    let (all, _) = part(bytes, at)?.as_chunks();
    all.get(..count).ok_or(Malformed::Length)
}

/// A count that must not exceed `max`.
pub(super) fn count(bytes: &[u8], at: usize, max: usize) -> Result<usize, Malformed> {
    let count = usize::from(byte(bytes, at)?);
    if count <= max { Ok(count) } else { Err(Malformed::Count) }
}

/// A count as its byte.
pub(super) fn small(count: usize) -> Result<u8, Full> {
    u8::try_from(count).map_err(|_| Full)
}

/// The position `at` as an offset from `base`.
pub(super) fn offset(at: usize, base: usize) -> Result<[u8; 2], Full> {
    let offset = at.checked_sub(base).and_then(|offset| u16::try_from(offset).ok()).ok_or(Full)?;
    Ok(offset.to_be_bytes())
}

/// A window of zeros to be filled in.
pub(super) struct Emit<'a>(&'a mut [u8]);

impl<'a> Emit<'a> {
    /// The first `len` bytes of `buffer`, zeroed: every reserved field is then as it must be.
    pub(super) fn new(buffer: &'a mut [u8], len: usize) -> Result<Emit<'a>, Full> {
        let window = buffer.get_mut(..len).ok_or(Full)?;
        window.fill(0);
        Ok(Emit(window))
    }

    /// Writes `bytes` into `field`.
    pub(super) fn put(&mut self, field: Range<usize>, bytes: &[u8]) -> Result<(), Full> {
        let slot = self.0.get_mut(field).ok_or(Full)?;
        debug_assert_eq!(slot.len(), bytes.len(), "a field holds a value of its own width");
        if slot.len() != bytes.len() {
            return Err(Full);
        }
        slot.copy_from_slice(bytes);
        Ok(())
    }

    /// Writes the lower 24 bits of `value`.
    pub(super) fn put24(&mut self, field: Range<usize>, value: u32) -> Result<(), Full> {
        let [_, low @ ..] = value.to_be_bytes();
        self.put(field, &low)
    }

    /// Writes one byte.
    pub(super) fn set(&mut self, at: usize, value: u8) -> Result<(), Full> {
        *self.0.get_mut(at).ok_or(Full)? = value;
        Ok(())
    }

    /// The window from `at` on, to be written with offsets of its own.
    pub(super) fn part(&mut self, at: usize) -> Result<Emit<'_>, Full> {
        self.0.get_mut(at..).map(Emit).ok_or(Full)
    }
}
