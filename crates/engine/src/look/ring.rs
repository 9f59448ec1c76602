//! The memory between an engine and one looker: entries in a circle, the oldest overwritten.
//!
//! ```text
//! 0     number of entries written so far (u64)
//! 4096  entry n at 4096 + n % ENTRIES * 2048:
//!       0 sequence: 2n + 1 while it is written, 2n + 2 when it is whole | 8 time, ns of CLOCK_MONOTONIC
//!       16 length of the packet, bytes of it that are here | 24 kind, number | 32 length of the label, parent
//!       64 label, then bytes of the packet
//! ```
//!
//! The looker maps it read-only. It copies an entry and then looks whether the sequence is still the
//! same (`order.rs`). What was overwritten meanwhile counts as missed.
#![allow(unsafe_code)]

use std::os::fd::{AsRawFd, BorrowedFd, RawFd};
use std::sync::atomic::{AtomicU64, Ordering};

use shm::{Errno, OpenError, Segment};

use super::order;
use crate::arena::{MAX_LENGTH, SLOT};

const CONTROL: usize = 4096;
const HEAD: usize = 64;
/// Entries: 16 MiB, which a looker that wakes each millisecond empties at 8 million packets per
/// second.
pub(super) const ENTRIES: u64 = 8192;
const LENGTH: usize = CONTROL + ENTRIES as usize * SLOT;
/// Longest label, in bytes.
pub const LABEL: usize = 512;
const ROOM: usize = SLOT - HEAD;

/// What an entry tells.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// A packet went into the link that is looked at.
    Captured,
    /// A packet whose way is followed has come in; the label is the link that it is on.
    Entered,
    /// It was put on the link in the label.
    Moved,
    /// A copy of `parent` was put there.
    Copied,
    /// An app took it and has not passed it on by the end of its turn. The label is the app and what
    /// it counted.
    Ended,
}

impl Kind {
    const ALL: [Kind; 5] = [Kind::Captured, Kind::Entered, Kind::Moved, Kind::Copied, Kind::Ended];
}

/// One entry, without its packet.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Head<'a> {
    pub kind: Kind,
    pub time: u64,
    /// Of the packet that is followed.
    pub number: u32,
    pub parent: u32,
    pub label: &'a str,
}

/// The engine's side.
pub(crate) struct Writer {
    segment: Segment,
    next: u64,
}

impl Writer {
    pub fn create() -> Result<Self, Errno> {
        let segment = Segment::create_sealed_for_readers(c"shortwire-look", LENGTH)?;
        Ok(Self { segment, next: 0 })
    }

    /// The memory, for the looker.
    pub fn memory(&self) -> Option<BorrowedFd<'_>> {
        // SAFETY: the segment owns the descriptor and is borrowed.
        self.segment.fd().map(|fd| unsafe { BorrowedFd::borrow_raw(fd) })
    }

    /// The looker has it: nobody else gets it.
    pub fn forget_memory(&mut self) {
        self.segment.close_fd();
    }

    /// Adds an entry in the place of the oldest.
    pub fn write(&mut self, head: &Head, packet: &[u8]) {
        let at = CONTROL + (self.next % ENTRIES) as usize * SLOT;
        let label = &head.label.as_bytes()[..head.label.len().min(LABEL)];
        let bytes = &packet[..packet.len().min(ROOM - label.len())];
        let pair = |low: usize, high: usize| low as u64 | (high as u64) << 32;
        order::write(self.word(at), self.word(0), self.next, || {
            for (offset, value) in [
                (8, head.time),
                (16, pair(packet.len(), bytes.len())),
                (24, pair(head.kind as usize, head.number as usize)),
                (32, pair(label.len(), head.parent as usize)),
            ] {
                self.word(at + offset).store(value, Ordering::Relaxed);
            }
            let to = self.segment.base().wrapping_add(at + HEAD);
            // SAFETY: an entry has this much room behind its head; only this process writes there.
            unsafe { to.copy_from_nonoverlapping(label.as_ptr(), label.len()) };
            // SAFETY: as above, behind the label.
            unsafe {
                to.wrapping_add(label.len()).copy_from_nonoverlapping(bytes.as_ptr(), bytes.len())
            };
        });
        self.next += 1;
    }

    fn word(&self, at: usize) -> &AtomicU64 {
        // SAFETY: aligned, inside of the segment, which lives as long as the reference.
        unsafe { AtomicU64::from_ptr(self.segment.base().wrapping_add(at).cast()) }
    }
}

/// A copy of an entry.
#[derive(Debug)]
pub(super) struct Copied {
    pub kind: Kind,
    pub time: u64,
    pub length: u32,
    pub number: u32,
    pub parent: u32,
    pub label: usize,
    /// The label, then what there is of the packet.
    pub bytes: Vec<u8>,
}

/// The looker's side.
pub(super) struct Reader {
    segment: Segment,
    next: u64,
    /// Entries that were overwritten before they were read.
    pub missed: u64,
}

impl Reader {
    pub fn open(memory: &impl AsRawFd) -> Result<Self, OpenError> {
        let raw: RawFd = memory.as_raw_fd();
        Ok(Self { segment: Segment::open_readonly(raw, LENGTH, LENGTH)?, next: 0, missed: 0 })
    }

    /// The next entry; None if there is none, or what stands there makes no sense.
    pub fn next(&mut self) -> Option<Copied> {
        loop {
            let head = order::written(self.word(0));
            if head.wrapping_sub(self.next) > ENTRIES {
                // Half of the circle is skipped, or the writer would be here again at once.
                let next = head.saturating_sub(ENTRIES / 2).max(self.next);
                self.missed += next - self.next;
                self.next = next;
            }
            if head <= self.next {
                return None;
            }
            let number = self.next;
            self.next += 1;
            match self.copy(number) {
                Some(entry) => return entry,
                None => self.missed += 1,
            }
        }
    }

    /// None if it was overwritten; an inner None if it cannot be one.
    fn copy(&self, number: u64) -> Option<Option<Copied>> {
        let at = CONTROL + (number % ENTRIES) as usize * SLOT;
        let (words, bytes) = order::read(self.word(at), number, || {
            let words =
                [8, 16, 24, 32].map(|offset| self.word(at + offset).load(Ordering::Relaxed));
            let (label, here) = (words[3] as u32 as usize, (words[1] >> 32) as usize);
            let mut bytes = vec![0; (label + here).min(ROOM)];
            let from = self.segment.base().wrapping_add(at + HEAD);
            // SAFETY: inside of the entry; the writer may race, and then the copy is thrown away.
            unsafe { bytes.as_mut_ptr().copy_from_nonoverlapping(from, bytes.len()) };
            (words, bytes)
        })?;
        let [time, lengths, kind, label] = words;
        let (label, parent) = (label as u32 as usize, (label >> 32) as u32);
        let here = (lengths >> 32) as usize;
        let known = Kind::ALL.get(kind as u32 as usize).copied();
        let sound = label <= LABEL && label + here <= ROOM && here <= MAX_LENGTH;
        Some(known.filter(|_| sound).map(|kind_of| Copied {
            kind: kind_of,
            time,
            length: lengths as u32,
            number: (kind >> 32) as u32,
            parent,
            label,
            bytes,
        }))
    }

    fn word(&self, at: usize) -> &AtomicU64 {
        // SAFETY: aligned, inside of the segment, which lives as long as the reference; only loaded.
        unsafe { AtomicU64::from_ptr(self.segment.base().wrapping_add(at).cast()) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pair() -> (Writer, Reader) {
        let mut writer = Writer::create().unwrap();
        let reader = Reader::open(&writer.memory().unwrap()).unwrap();
        writer.forget_memory();
        (writer, reader)
    }

    fn put(writer: &mut Writer, number: u32, label: &str, packet: &[u8]) {
        let head = Head { kind: Kind::Captured, time: 7, number, parent: 0, label };
        writer.write(&head, packet);
    }

    #[test]
    fn entries_come_out_as_they_went_in() {
        let (mut writer, mut reader) = pair();
        assert!(reader.next().is_none());
        put(&mut writer, 1, "a.output -> b.input", &[5; 60]);
        put(&mut writer, 2, "", &[6; MAX_LENGTH]);
        let one = reader.next().unwrap();
        assert_eq!((one.kind, one.time, one.length, one.number), (Kind::Captured, 7, 60, 1));
        assert_eq!(&one.bytes[..one.label], b"a.output -> b.input");
        assert_eq!(&one.bytes[one.label..], &[5; 60]);
        assert_eq!(reader.next().unwrap().bytes, [6; MAX_LENGTH]);
        assert!(reader.next().is_none() && reader.missed == 0);
        // A long label takes room from the packet, whose length is still told.
        put(&mut writer, 3, &"x".repeat(2000), &[7; MAX_LENGTH]);
        let long = reader.next().unwrap();
        assert_eq!((long.label, long.bytes.len(), long.length as usize), (LABEL, ROOM, MAX_LENGTH));
    }

    #[test]
    fn a_reader_that_is_late_is_told_how_much_it_missed() {
        let (mut writer, mut reader) = pair();
        for number in 0..3 * ENTRIES as u32 {
            put(&mut writer, number, "", &[0; 10]);
        }
        let mut read = Vec::new();
        while let Some(entry) = reader.next() {
            read.push(entry.number);
        }
        assert_eq!(read.len() as u64 + reader.missed, 3 * ENTRIES);
        assert!(read.windows(2).all(|pair| pair[0] + 1 == pair[1]));
        assert_eq!(read.last(), Some(&(3 * ENTRIES as u32 - 1)));
    }

    #[test]
    fn no_entry_is_torn_while_both_run() {
        let (mut writer, mut reader) = pair();
        let thread = std::thread::spawn(move || {
            for number in 0..200_000u32 {
                put(&mut writer, number, "", &[number as u8; 100]);
            }
            writer
        });
        let (mut last, mut count) = (None, 0u64);
        while !thread.is_finished() {
            while let Some(entry) = reader.next() {
                assert!(entry.bytes.iter().all(|&byte| byte == entry.number as u8));
                assert!(last < Some(entry.number), "{last:?} before {}", entry.number);
                last = Some(entry.number);
                count += 1;
            }
        }
        let _writer = thread.join().unwrap();
        while reader.next().is_some() {
            count += 1;
        }
        assert_eq!(count + reader.missed, 200_000);
    }

    #[test]
    fn the_looker_cannot_write() {
        let writer = Writer::create().unwrap();
        let memory = writer.memory().unwrap();
        assert!(Segment::open(memory.as_raw_fd(), LENGTH, LENGTH).is_err());
    }
}
