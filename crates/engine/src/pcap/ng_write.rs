//! The writer of pcapng: one section, one interface with its name, times in nanoseconds, and what
//! was lost at the end. (draft-ietf-opsawg-pcapng, sections 4.1, 4.2, 4.3 and 4.6.)

use std::io::{self, Write};

use crate::pcap::ETHERNET;
use crate::pcap::ng::{BYTE_ORDER, ENHANCED_PACKET, IF_TSRESOL, INTERFACE, SECTION, STATISTICS};

/// Options: of a section the program, of an interface its name and what it stands for, of statistics
/// what came and what was lost.
const SHB_USERAPPL: u16 = 4;
const IF_NAME: u16 = 2;
const IF_DESCRIPTION: u16 = 3;
const ISB_IFRECV: u16 = 4;
const ISB_IFDROP: u16 = 5;

/// Writes whole blocks to anything, a pipe as well.
pub struct NgWriter<W: Write> {
    to: W,
    block: Vec<u8>,
    written: u64,
}

impl<W: Write> NgWriter<W> {
    /// Begins with the headers. Packets are whole up to `snap` bytes.
    pub fn new(to: W, program: &str, name: &str, about: &str, snap: u32) -> io::Result<Self> {
        let mut writer = Self { to, block: Vec::new(), written: 0 };
        let mut section = Vec::new();
        section.extend(BYTE_ORDER.to_le_bytes());
        section.extend([1, 0, 0, 0]);
        // Of unknown length.
        section.extend(u64::MAX.to_le_bytes());
        option(&mut section, SHB_USERAPPL, program.as_bytes());
        end(&mut section);
        writer.put(SECTION, &section)?;
        let mut interface = Vec::new();
        interface.extend((ETHERNET as u16).to_le_bytes());
        interface.extend([0, 0]);
        interface.extend(snap.to_le_bytes());
        option(&mut interface, IF_NAME, name.as_bytes());
        option(&mut interface, IF_DESCRIPTION, about.as_bytes());
        // Nanoseconds.
        option(&mut interface, IF_TSRESOL, &[9]);
        end(&mut interface);
        writer.put(INTERFACE, &interface)?;
        writer.to.flush()?;
        Ok(writer)
    }

    /// Adds a packet of which `data` is the beginning. `time` is nanoseconds since 1970.
    pub fn packet(&mut self, time: u64, data: &[u8], length: u32) -> io::Result<()> {
        let mut body = Vec::with_capacity(data.len() + 24);
        body.extend(0u32.to_le_bytes());
        times(&mut body, time);
        body.extend((data.len() as u32).to_le_bytes());
        body.extend(length.to_le_bytes());
        body.extend(data);
        fill(&mut body);
        self.put(ENHANCED_PACKET, &body)
    }

    /// Ends with what was seen and what was lost.
    pub fn statistics(&mut self, time: u64, received: u64, dropped: u64) -> io::Result<()> {
        let mut body = Vec::new();
        body.extend(0u32.to_le_bytes());
        times(&mut body, time);
        option(&mut body, ISB_IFRECV, &received.to_le_bytes());
        option(&mut body, ISB_IFDROP, &dropped.to_le_bytes());
        end(&mut body);
        self.put(STATISTICS, &body)?;
        self.to.flush()
    }

    /// Passes on what waits, so that a reader behind a pipe sees it.
    pub fn flush(&mut self) -> io::Result<()> {
        self.to.flush()
    }

    /// Bytes of all whole blocks so far.
    pub fn written(&self) -> u64 {
        self.written
    }

    /// Where it writes to: for who passes blocks on by himself.
    pub fn get_mut(&mut self) -> &mut W {
        &mut self.to
    }

    fn put(&mut self, kind: u32, body: &[u8]) -> io::Result<()> {
        let length = body.len() as u32 + 12;
        self.block.clear();
        self.block.extend(kind.to_le_bytes());
        self.block.extend(length.to_le_bytes());
        self.block.extend(body);
        self.block.extend(length.to_le_bytes());
        self.to.write_all(&self.block)?;
        self.written += u64::from(length);
        Ok(())
    }
}

fn times(body: &mut Vec<u8>, time: u64) {
    body.extend(((time >> 32) as u32).to_le_bytes());
    body.extend((time as u32).to_le_bytes());
}

fn option(body: &mut Vec<u8>, code: u16, value: &[u8]) {
    let value = &value[..value.len().min(usize::from(u16::MAX))];
    body.extend(code.to_le_bytes());
    body.extend((value.len() as u16).to_le_bytes());
    body.extend(value);
    fill(body);
}

fn end(body: &mut Vec<u8>) {
    body.extend([0; 4]);
}

/// Values and packets are filled up to whole words.
fn fill(body: &mut Vec<u8>) {
    body.resize(body.len().next_multiple_of(4), 0);
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::pcap::Reader;

    #[test]
    fn what_is_written_is_read() {
        let mut file = Vec::new();
        let mut writer =
            NgWriter::new(&mut file, "test", "a.output -> b.input", "a link", 1984).unwrap();
        let packets: Vec<Vec<u8>> = (0..20).map(|n| vec![n as u8; 14 + n]).collect();
        for (n, packet) in packets.iter().enumerate() {
            writer.packet(1_700_000_000_123_456_789 + n as u64, packet, 100).unwrap();
        }
        writer.statistics(5, 20, 3).unwrap();
        let written = writer.written();
        assert_eq!(written, file.len() as u64);
        assert!(file.windows(19).any(|part| part == b"a.output -> b.input"));
        let mut reader = Reader::new(&file[..]).unwrap();
        for (n, packet) in packets.iter().enumerate() {
            let record = reader.next().unwrap().unwrap();
            assert_eq!(record.time, 1_700_000_000_123_456_789 + n as u64);
            assert_eq!((record.data, record.original), (&packet[..], 100));
        }
        assert!(reader.next().unwrap().is_none());
    }
}
