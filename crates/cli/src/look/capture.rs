//! `shortwire capture`: packets of a link, for Wireshark.

use std::fs::File;
use std::io::{self, IsTerminal, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::{Duration, Instant};

use ::engine::clock::monotonic;
use ::engine::look::{Filter, Look};
use ::engine::pcap::NgWriter;
use anyhow::{Context, Result, anyhow, bail};
use terminal::signals;
use terminal::units::parse_seconds;

use super::{find, link, since_1970};

/// Between two looks when nothing comes.
const NAP: Duration = Duration::from_millis(1);
/// Blocks wait so long, or until there are so many bytes, before they are passed on.
const PASS_ON: Duration = Duration::from_millis(100);
const FULL: usize = 256 << 10;
/// Longest packet of an engine.
const SNAP: u32 = 1984;

#[derive(clap::Args)]
#[command(about = "Capture the packets of a link of a running engine")]
#[command(
    long_about = "Writes what goes into a link of a running engine (`shortwire engine`, `snsh`) as pcapng, to a file or into a pipe, until Ctrl-C. \
LINK is the name of a link, or a part of it that no other has; without it the links are listed. FILTER is an expression as for tcpdump, \
applied to what was copied.

The engine copies packets into memory that the capture reads, and never waits for it: what comes faster than it is written is missing, is told at \
the end, and stands in the file as packets dropped. An engine that nobody looks at does nothing for this. Packets that find a link full are not \
captured. Only the engine's own user and root may look."
)]
#[command(after_help = "Examples:
  shortwire capture 1234                            which links there are
  shortwire capture 1234 nic.tx -w nic.pcapng       until Ctrl-C
  shortwire capture 1234 nic.tx | wireshark -k -i - live
  shortwire capture 1234 nic.tx -c 10 udp port 53 | tshark -r -

Exit status: 0 after Ctrl-C, --count, --duration, the end of the engine, or of the reader of the pipe; 1 if nothing could be seen, or not \
all could be written.")]
pub struct Capture {
    /// The engine's process
    #[arg(value_name = "PID")]
    pub pid: u32,
    /// The link
    #[arg(value_name = "LINK")]
    pub link: Option<String>,
    /// Only packets that match
    #[arg(value_name = "FILTER", trailing_var_arg = true)]
    pub filter: Vec<String>,
    /// Write this file, anew
    #[arg(short, long, value_name = "FILE", value_hint = clap::ValueHint::FilePath)]
    pub write: Option<PathBuf>,
    /// End after so many packets
    #[arg(short, long, value_name = "N")]
    pub count: Option<u64>,
    /// End after so long
    #[arg(long, value_name = "TIME", value_parser = parse_seconds)]
    pub duration: Option<f64>,
}

pub fn run(args: &Capture) -> Result<ExitCode> {
    let process = find(args.pid)?;
    let Some(word) = &args.link else {
        let tree = process.read()?;
        for (link, counters) in &tree.links {
            let packets = ::engine::report::commas(counters.get("txpackets"));
            terminal::outln!("{packets:>20}  {link}")?;
        }
        return Ok(ExitCode::SUCCESS);
    };
    let name = link(&process, word)?;
    let filter = Some(args.filter.join(" ")).filter(|text| !text.is_empty());
    let filter = filter.map(|text| Filter::new(&text)).transpose()?;
    if args.write.is_none() && io::stdout().is_terminal() {
        bail!(
            "a capture is not for a terminal: give -w FILE, or a program behind a pipe (| wireshark -k -i -)"
        );
    }
    signals::catch_interrupts();
    let mut to = Target::open(args.write.as_deref())?;
    let about = format!("link of process {}", args.pid);
    let mut writer = NgWriter::new(Vec::new(), "shortwire capture", &name, &about, SNAP)?;
    if to.pass_on(writer.get_mut())? == Passed::NobodyReads {
        return Ok(ExitCode::SUCCESS);
    }
    let mut look = Look::capture(&process, &name)?;
    eprintln!("capturing {name}; Ctrl-C ends it");
    let mut taken = Taken::default();
    let outcome = take(args, filter.as_ref(), &mut look, &mut writer, &mut to, &mut taken);
    let missed = look.missed();
    drop(look);
    // What is there is written, also after an error of another kind.
    let outcome = outcome.and_then(|passed| {
        if passed == Passed::All {
            let now = at(since_1970(), monotonic());
            writer.statistics(now, taken.seen + missed, missed)?;
            to.pass_on(writer.get_mut())?;
        }
        Ok(())
    });
    let unread = if missed > 0 {
        format!("; {} came faster than they could be written", ::engine::report::commas(missed))
    } else {
        String::new()
    };
    eprintln!("{} packets{unread}", ::engine::report::commas(taken.written));
    outcome.map(|()| ExitCode::SUCCESS)
}

#[derive(Default)]
struct Taken {
    seen: u64,
    written: u64,
}

fn take(
    args: &Capture,
    filter: Option<&Filter>,
    look: &mut Look,
    writer: &mut NgWriter<Vec<u8>>,
    to: &mut Target,
    taken: &mut Taken,
) -> Result<Passed> {
    let began = Instant::now();
    let end = args.duration.map(|seconds| began + Duration::from_secs_f64(seconds));
    let shift = since_1970();
    let mut passed = began;
    loop {
        // Asked first: what came before the end is still taken.
        let over = signals::interrupted()
            || end.is_some_and(|end| Instant::now() >= end)
            || look.is_over();
        let mut idle = true;
        let full = |taken: &Taken| args.count.is_some_and(|count| taken.written >= count);
        while !full(taken)
            && writer.get_mut().len() < FULL
            && let Some(entry) = look.next_entry()
        {
            idle = false;
            taken.seen += 1;
            if filter.is_none_or(|filter| filter.matches(entry.packet())) {
                writer.packet(at(shift, entry.time), entry.packet(), entry.length)?;
                taken.written += 1;
            }
        }
        let ends = full(taken) || over && idle;
        if ends || idle || passed.elapsed() >= PASS_ON || writer.get_mut().len() >= FULL {
            passed = Instant::now();
            if to.pass_on(writer.get_mut())? == Passed::NobodyReads {
                return Ok(Passed::NobodyReads);
            }
        }
        // An engine that is faster than this reader never leaves it idle.
        let late = end.is_some_and(|end| Instant::now() >= end);
        if ends || over && (late || signals::interrupted()) {
            return Ok(Passed::All);
        }
        if idle {
            std::thread::sleep(NAP);
        }
    }
}

fn at(shift: i128, monotonic: u64) -> u64 {
    u64::try_from(i128::from(monotonic) + shift).unwrap_or(0)
}

#[derive(PartialEq)]
enum Passed {
    All,
    /// The reader of the pipe has what it wanted.
    NobodyReads,
}

/// A file, or standard output.
struct Target {
    file: File,
    name: String,
    /// Length up to the last whole block; None: a pipe, which cannot be cut.
    sound: Option<u64>,
}

/// As `write_all`, which would go on over every Ctrl-C while a pipe that nobody reads is full.
fn write_whole(file: &mut File, mut bytes: &[u8]) -> io::Result<()> {
    while !bytes.is_empty() {
        match file.write(bytes) {
            Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
            Ok(written) => bytes = &bytes[written..],
            Err(error) if error.kind() != io::ErrorKind::Interrupted => return Err(error),
            Err(error) if signals::interrupted() => return Err(error),
            Err(_) => {}
        }
    }
    Ok(())
}

impl Target {
    fn open(path: Option<&Path>) -> Result<Self> {
        let (file, name) = match path {
            Some(path) => {
                let name = path.display().to_string();
                (File::create(path).with_context(|| format!("cannot write {name}"))?, name)
            }
            None => {
                use std::os::fd::AsFd;
                (File::from(io::stdout().as_fd().try_clone_to_owned()?), "standard output".into())
            }
        };
        let mut this = Self { file, name, sound: None };
        if path.is_some() && this.file.metadata().is_ok_and(|meta| meta.is_file()) {
            this.sound = Some(0);
        }
        Ok(this)
    }

    /// Writes whole blocks. A file ends behind one also where the disk is full.
    fn pass_on(&mut self, blocks: &mut Vec<u8>) -> Result<Passed> {
        let written = write_whole(&mut self.file, blocks);
        let length = std::mem::take(blocks).len() as u64;
        match (written, &mut self.sound) {
            (Ok(()), sound) => {
                if let Some(sound) = sound {
                    *sound += length;
                }
                Ok(Passed::All)
            }
            (Err(error), None) if error.kind() == io::ErrorKind::BrokenPipe => {
                Ok(Passed::NobodyReads)
            }
            // Ctrl-C while the pipe was full: its reader has gone, or does not read.
            (Err(error), None) if error.kind() == io::ErrorKind::Interrupted => {
                Ok(Passed::NobodyReads)
            }
            (Err(error), sound) => {
                if let Some(sound) = sound {
                    let _ = self.file.set_len(*sound);
                    let _ = self.file.seek(SeekFrom::Start(*sound));
                }
                Err(anyhow!("cannot write to {}: {error}; what is there is whole", self.name))
            }
        }
    }
}
