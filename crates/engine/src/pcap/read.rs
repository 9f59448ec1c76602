//! The reader: bytes with their offset, and what both formats share.

use std::io::{self, Read};

use crate::pcap::classic::Classic;
use crate::pcap::ng::Ng;

/// A captured packet.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Record<'a> {
    /// Nanoseconds since 1970; 0 where the format has none.
    pub time: u64,
    /// Bytes on the wire; more than `data` if the capture cut it off.
    pub original: u32,
    /// What its bytes begin with: LINKTYPE_ETHERNET is 1.
    pub link_type: u32,
    /// The bytes that were captured.
    pub data: &'a [u8],
}

/// What is wrong with a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum Damage {
    /// Its first number is that of neither format.
    #[error("this is no pcap or pcapng file")]
    Magic,
    /// In what it ends.
    #[error("the file ends in the middle of {0}")]
    Cut(&'static str),
    /// The length that it tells.
    #[error("a packet claims {0} bytes, more than any capture has")]
    TooLong(u32),
    /// Less than a block has, or more than any has, or no multiple of 4.
    #[error("a block claims {0} bytes")]
    BlockLength(u32),
    /// At the beginning and at the end.
    #[error("the lengths at the two ends of a block differ: {0} and {1}")]
    Trailer(u32, u32),
    /// Its number in the section.
    #[error("a packet block names interface {0}, which was not described")]
    Interface(u32),
    /// The length that it tells.
    #[error("a packet of {0} bytes does not fit in its block")]
    PacketInBlock(u32),
    /// Major and minor.
    #[error("version {0}.{1} is not known")]
    Version(u16, u16),
    /// It decides how all other numbers are read.
    #[error("a section header has no valid byte order mark")]
    ByteOrder,
}

/// Why no packet could be read.
#[derive(Debug, thiserror::Error)]
pub enum PcapError {
    /// The file is not what it says it is.
    #[error("damaged at byte {offset}: {damage}")]
    Damaged {
        /// Bytes before what is damaged.
        offset: u64,
        /// What is wrong there.
        damage: Damage,
    },
    /// The input could not be read.
    #[error("reading failed at byte {offset}: {error}")]
    Io {
        /// Bytes that were read before.
        offset: u64,
        /// The system's answer.
        error: io::Error,
    },
}

/// Reads one packet after the other.
pub struct Reader<R> {
    bytes: Bytes<R>,
    format: Format,
}

enum Format {
    Classic(Classic),
    Ng(Ng),
}

impl<R: Read> Reader<R> {
    /// Reads the header. `input` should be buffered.
    pub fn new(input: R) -> Result<Self, PcapError> {
        let mut bytes = Bytes { input, offset: 0, start: 0, buffer: Vec::new() };
        if !bytes.fill(4, "the file's first number")? {
            return Err(bytes.damaged(Damage::Magic));
        }
        let magic = [bytes.buffer[0], bytes.buffer[1], bytes.buffer[2], bytes.buffer[3]];
        let format = if magic == 0x0a0d_0d0au32.to_be_bytes() {
            Format::Ng(Ng::open(&mut bytes)?)
        } else {
            Format::Classic(Classic::open(&mut bytes, magic)?)
        };
        Ok(Self { bytes, format })
    }

    /// The next packet; None at the end of a sound file. After an error the file is not read on.
    #[expect(clippy::should_implement_trait, reason = "a record borrows the reader")]
    pub fn next(&mut self) -> Result<Option<Record<'_>>, PcapError> {
        match &mut self.format {
            Format::Classic(classic) => classic.next(&mut self.bytes),
            Format::Ng(ng) => ng.next(&mut self.bytes),
        }
    }

    /// The link type, if the header says it for all packets: in classic files.
    pub fn link_type(&self) -> Option<u32> {
        match &self.format {
            Format::Classic(classic) => Some(classic.link_type),
            Format::Ng(_) => None,
        }
    }
}

/// The input, piece by piece. The buffer grows to the longest piece of the file and is used again
/// for each.
pub(super) struct Bytes<R> {
    input: R,
    /// Bytes read before the present piece.
    start: u64,
    offset: u64,
    pub buffer: Vec<u8>,
}

impl<R: Read> Bytes<R> {
    /// Makes `count` bytes the present piece; false at the end of the file.
    pub fn fill(&mut self, count: usize, what: &'static str) -> Result<bool, PcapError> {
        self.start = self.offset;
        self.buffer.clear();
        self.more(count, what)
    }

    /// Adds `count` bytes to the present piece; false if the piece is empty and the file ends.
    pub fn more(&mut self, count: usize, what: &'static str) -> Result<bool, PcapError> {
        let had = self.buffer.len();
        // By `take`, so that a length which the file does not keep costs no memory.
        let got = self.input.by_ref().take(count as u64).read_to_end(&mut self.buffer);
        let got = got.map_err(|error| PcapError::Io { offset: self.offset, error })?;
        self.offset += got as u64;
        if got == count {
            return Ok(true);
        }
        if had + got == 0 {
            return Ok(false);
        }
        Err(PcapError::Damaged { offset: self.offset, damage: Damage::Cut(what) })
    }

    /// Damage in the present piece, which is told by its first byte.
    pub fn damaged(&self, damage: Damage) -> PcapError {
        PcapError::Damaged { offset: self.start, damage }
    }
}

/// The byte order of the machine that wrote a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Order {
    pub big: bool,
}

impl Order {
    pub fn u16(self, bytes: &[u8], at: usize) -> u16 {
        let raw = [bytes[at], bytes[at + 1]];
        if self.big { u16::from_be_bytes(raw) } else { u16::from_le_bytes(raw) }
    }

    pub fn u32(self, bytes: &[u8], at: usize) -> u32 {
        let raw = [bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]];
        if self.big { u32::from_be_bytes(raw) } else { u32::from_le_bytes(raw) }
    }
}
