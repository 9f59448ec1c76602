//! Packets from a capture file, as fast as the links take them.

use std::fmt::{self, Write};
use std::fs::File;
use std::io::BufReader;
use std::path::PathBuf;

use serde::{Deserialize, Serialize};

use crate::app::{App, AppError, Context, FileUse, Io, Kind, Ports};
use crate::arena::MAX_LENGTH;
use crate::batch::BATCH;
use crate::packet::Packet;
use crate::pcap::{ETHERNET, Reader, link_type_name};

/// Reads a file once.
pub struct PcapReader {
    /// None at the end, or after damage.
    reader: Option<Reader<BufReader<File>>>,
    path: PathBuf,
    packets: u64,
    too_long: u64,
    other_links: u64,
    problem: Option<String>,
    told: bool,
}

/// Arguments of [`PcapReader`].
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PcapReaderArgs {
    /// Path of the capture, pcap or pcapng.
    pub file: PathBuf,
}

impl Kind for PcapReader {
    const NAME: &'static str = "PcapReader";
    const ABOUT: &'static str = "sends the packets of a pcap or pcapng file";
    const OUTPUTS: Ports = Ports::Named(&["output"]);
    const PULLS: bool = true;
    const COUNTERS: &'static [&'static str] = &["packets", "too_long", "other_links"];
    type Args = PcapReaderArgs;

    fn file(args: &PcapReaderArgs) -> Option<FileUse> {
        Some(FileUse::Reads(args.file.clone()))
    }

    fn new(args: PcapReaderArgs, _context: &Context) -> Result<Self, AppError> {
        let path = args.file;
        let file = File::open(&path)
            .map_err(|error| AppError::os(format!("cannot open {}", path.display()), error))?;
        let wrong = |problem: String| AppError::new(format!("{}: {problem}", path.display()));
        let reader = Reader::new(BufReader::with_capacity(256 << 10, file))
            .map_err(|error| wrong(error.to_string()))?;
        if let Some(other) = reader.link_type().filter(|link_type| *link_type != ETHERNET) {
            let name = link_type_name(other);
            return Err(wrong(format!("link type {other} ({name}) is not supported; Ethernet is")));
        }
        Ok(Self {
            reader: Some(reader),
            path,
            packets: 0,
            too_long: 0,
            other_links: 0,
            problem: None,
            told: false,
        })
    }
}

impl App for PcapReader {
    fn pull(&mut self, io: &Io) {
        let Some(output) = io.output(0) else { return };
        let mut room = output.room().min(BATCH);
        while room > 0 {
            let Some(reader) = &mut self.reader else { return };
            // Taken before the record, which would be lost without it.
            let Some(mut packet) = Packet::allocate() else { return };
            match reader.next() {
                Ok(Some(record)) if record.link_type != ETHERNET => self.other_links += 1,
                Ok(Some(record)) if record.data.len() > MAX_LENGTH => self.too_long += 1,
                Ok(Some(record)) => {
                    packet.append(record.data);
                    output.transmit(packet);
                    self.packets += 1;
                }
                Ok(None) => self.reader = None,
                Err(error) => {
                    self.problem = Some(format!("{}: {error}", self.path.display()));
                    self.reader = None;
                }
            }
            room -= 1;
        }
    }

    fn finished(&self) -> bool {
        self.reader.is_none()
    }

    fn notice(&mut self) -> Option<String> {
        let told = std::mem::replace(&mut self.told, self.problem.is_some());
        self.problem.clone().filter(|_| !told)
    }

    fn problem(&self) -> Option<&str> {
        self.problem.as_deref()
    }

    fn counters(&self, values: &mut [u64]) {
        values.copy_from_slice(&[self.packets, self.too_long, self.other_links]);
    }

    fn report(&self, out: &mut dyn Write) -> fmt::Result {
        let end = if self.reader.is_none() { ", at the end" } else { "" };
        writeln!(out, "{} packets from {}{end}", self.packets, self.path.display())?;
        if self.too_long > 0 {
            writeln!(out, "{} packets left out: longer than {MAX_LENGTH} bytes", self.too_long)?;
        }
        if self.other_links > 0 {
            writeln!(out, "{} packets left out: not from Ethernet", self.other_links)?;
        }
        self.problem.as_ref().map_or(Ok(()), |problem| writeln!(out, "{problem}"))
    }
}
