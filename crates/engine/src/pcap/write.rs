//! The writer. A file that it writes ends behind a whole packet, also after a full disk.

use std::fs::File;
use std::io::{self, Seek, SeekFrom, Write};
use std::path::Path;

use crate::pcap::classic::NANOSECONDS;
use crate::pcap::{ETHERNET, LONGEST};

/// Bytes that wait before they are written.
const BUFFER: usize = 256 << 10;

/// Writes classic pcap with nanoseconds.
pub struct Writer {
    file: File,
    /// Whole records that are not yet in the file.
    waiting: Vec<u8>,
    records: u64,
    /// Length of the file up to its last whole record.
    sound: u64,
    snap: usize,
}

impl Writer {
    /// Makes the file, or empties it. Packets are cut off after `snap` bytes.
    pub fn create(path: &Path, snap: usize) -> io::Result<Self> {
        let mut writer = Self {
            file: File::create(path)?,
            waiting: Vec::with_capacity(2 * BUFFER),
            records: 0,
            sound: 0,
            snap,
        };
        let fields = [NANOSECONDS, 2 | 4 << 16, 0, 0, snap.min(LONGEST as usize) as u32, ETHERNET];
        for field in fields {
            writer.waiting.extend(field.to_le_bytes());
        }
        writer.flush().map_err(|(error, _)| error)?;
        Ok(writer)
    }

    /// Adds a packet. `time` is nanoseconds since 1970. An error comes with the number of packets
    /// that are lost by it; the file is sound and the next packet may be tried.
    pub fn write(&mut self, time: u64, packet: &[u8]) -> Result<(), (io::Error, u64)> {
        let data = &packet[..packet.len().min(self.snap)];
        let (seconds, rest) = (time / 1_000_000_000, time % 1_000_000_000);
        for field in [seconds as u32, rest as u32, data.len() as u32, packet.len() as u32] {
            self.waiting.extend(field.to_le_bytes());
        }
        self.waiting.extend(data);
        self.records += 1;
        if self.waiting.len() >= BUFFER { self.flush() } else { Ok(()) }
    }

    /// Writes what waits.
    pub fn flush(&mut self) -> Result<(), (io::Error, u64)> {
        let (waiting, records) = (self.waiting.len() as u64, std::mem::take(&mut self.records));
        let written = self.file.write_all(&self.waiting);
        self.waiting.clear();
        match written {
            Ok(()) => {
                self.sound += waiting;
                Ok(())
            }
            Err(error) => {
                // What was written of the batch may end within a record. Pipes cannot be cut; their
                // reader sees the end.
                let _ = self.file.set_len(self.sound);
                let _ = self.file.seek(SeekFrom::Start(self.sound));
                Err((error, records))
            }
        }
    }
}

impl Drop for Writer {
    fn drop(&mut self) {
        // Who wants to know calls `flush`.
        let _ = self.flush();
    }
}
