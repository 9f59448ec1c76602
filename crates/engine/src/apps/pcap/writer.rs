//! Packets into a capture file.

use std::fmt::{self, Write};
use std::path::PathBuf;

use rustix::time::{ClockId, clock_gettime};
use serde::{Deserialize, Serialize};

use crate::app::{App, AppError, Context, FileUse, Io, Kind, Ports};
use crate::arena::MAX_LENGTH;
use crate::pcap::Writer;

/// Writes all packets, with the time of the breath.
pub struct PcapWriter {
    writer: Writer,
    path: PathBuf,
    packets: u64,
    lost: u64,
    problem: Option<String>,
    told: bool,
}

/// Arguments of [`PcapWriter`].
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PcapWriterArgs {
    /// Path of the capture; a file that exists is replaced.
    pub file: PathBuf,
    /// Bytes that are kept of each packet.
    #[serde(default = "all")]
    pub snaplen: usize,
}

fn all() -> usize {
    MAX_LENGTH
}

impl Kind for PcapWriter {
    const NAME: &'static str = "PcapWriter";
    const ABOUT: &'static str = "writes all packets to a pcap file";
    const INPUTS: Ports = Ports::Any;
    const COUNTERS: &'static [&'static str] = &["packets", "lost"];
    type Args = PcapWriterArgs;

    fn file(args: &PcapWriterArgs) -> Option<FileUse> {
        Some(FileUse::Writes(args.file.clone()))
    }

    fn new(args: PcapWriterArgs, _context: &Context) -> Result<Self, AppError> {
        let writer = Writer::create(&args.file, args.snaplen).map_err(|error| {
            AppError::os(format!("cannot write {}", args.file.display()), error)
        })?;
        Ok(Self { writer, path: args.file, packets: 0, lost: 0, problem: None, told: true })
    }
}

impl PcapWriter {
    /// Counts what a failed write lost, and tells the first of a row of failures.
    fn after(&mut self, written: Result<(), (std::io::Error, u64)>) {
        if let Err((error, lost)) = written {
            self.lost += lost;
            self.packets -= lost;
            let problem = format!(
                "cannot write {}: {error}; packets are lost until it can",
                self.path.display()
            );
            self.told &= self.problem.as_ref() == Some(&problem);
            self.problem = Some(problem);
        }
    }
}

impl App for PcapWriter {
    fn push(&mut self, io: &Io) {
        if io.inputs().all(|input| input.is_empty()) {
            return;
        }
        let now = clock_gettime(ClockId::Realtime);
        let now = now.tv_sec as u64 * 1_000_000_000 + now.tv_nsec as u64;
        for input in io.inputs() {
            for _ in 0..input.length() {
                let Some(packet) = input.receive() else { break };
                self.packets += 1;
                let written = self.writer.write(now, &packet);
                self.after(written);
            }
        }
    }

    /// A look at the file shows what came a moment ago.
    fn tick(&mut self, _io: &Io) {
        let written = self.writer.flush();
        self.after(written);
    }

    fn stop(&mut self) -> Result<(), AppError> {
        let path = self.path.display();
        self.writer
            .flush()
            .map_err(|(error, lost)| AppError::os(format!("{lost} packets lost at {path}"), error))
    }

    fn notice(&mut self) -> Option<String> {
        if std::mem::replace(&mut self.told, true) { None } else { self.problem.clone() }
    }

    fn problem(&self) -> Option<&str> {
        self.problem.as_deref()
    }

    fn counters(&self, values: &mut [u64]) {
        values.copy_from_slice(&[self.packets, self.lost]);
    }

    fn report(&self, out: &mut dyn Write) -> fmt::Result {
        writeln!(out, "{} packets to {}, {} lost", self.packets, self.path.display(), self.lost)?;
        self.problem.as_ref().map_or(Ok(()), |problem| writeln!(out, "{problem}"))
    }
}
