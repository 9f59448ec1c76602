//! What `shortwire packetblaster` can be told.

use std::path::PathBuf;

use clap::Subcommand;
use terminal::units::parse_seconds;

use super::frames::Frames;
use super::rate::{Rate, parse_rate};

#[derive(clap::Args)]
#[command(about = "Send packets as fast as an interface takes them, or at a rate")]
#[command(
    long_about = "Builds all frames once, in the memory that the interface sends from; while it runs only indices move. Ctrl-C ends it with a \
summary. Packet sockets, TAP interfaces and 82599 cards get copies. With --receive it also counts what comes back and reports the loss."
)]
pub struct Packetblaster {
    #[command(subcommand)]
    pub command: Blast,
}

#[derive(Subcommand)]
pub enum Blast {
    #[command(about = "Send the packets of a capture file, again and again")]
    #[command(after_help = "Examples:
  shortwire packetblaster replay 64.pcap --if eth1
  shortwire packetblaster replay web.pcapng --if eth1 --no-loop --rate 1Gb/s
  shortwire packetblaster replay 64.pcap 0000:82:00.1
  shortwire packetblaster replay 64.pcap --sink --duration 5")]
    Replay(Replay),
    #[command(about = "Send made-up UDP packets")]
    #[command(after_help = "Examples:
  shortwire packetblaster synth --if eth1 --sizes 64
  shortwire packetblaster synth --if eth1 --imix --flows 1000 --rate 2Mpps
  shortwire packetblaster synth --if eth1 --receive eth2 --count 1000000
  shortwire packetblaster synth --pcap out.pcap --sizes 64,512,1518 --count 1000

Sizes count the frame check sequence of 4 bytes, which the hardware adds: --sizes 64 makes frames of 60 bytes.")]
    Synth(Synth),
}

#[derive(clap::Args)]
pub struct Replay {
    /// The capture: pcap or pcapng, Ethernet
    #[arg(value_name = "FILE.pcap", value_hint = clap::ValueHint::FilePath)]
    pub file: PathBuf,
    /// Send the capture once
    #[arg(long)]
    pub no_loop: bool,
    #[command(flatten)]
    pub output: Output,
}

#[derive(clap::Args)]
pub struct Synth {
    #[command(flatten)]
    pub frames: Frames,
    #[command(flatten)]
    pub output: Output,
}

/// Where packets go, how fast, and for how long.
#[derive(clap::Args)]
#[command(next_help_heading = "Output")]
#[command(group = clap::ArgGroup::new("to").required(true).args(["pci", "interface", "raw", "tap", "pcap", "sink"]))]
pub struct Output {
    /// To an Intel 82599 in the hands of this command (doc/82599.md), such as 0000:82:00.1;
    /// interfaces of the kernel: --if
    #[arg(value_name = "PCIADDR", value_parser = parse_pci)]
    pub pci: Option<String>,
    /// To an interface by AF_XDP, the fastest way
    #[arg(long = "if", value_name = "NAME")]
    pub interface: Option<String>,
    /// To an interface by a packet socket
    #[arg(long, value_name = "NAME")]
    pub raw: Option<String>,
    /// To a TAP interface, which is made if need be: its kernel side receives
    #[arg(long, value_name = "NAME")]
    pub tap: Option<String>,
    /// Into a capture file
    #[arg(long, value_name = "FILE", value_hint = clap::ValueHint::FilePath)]
    pub pcap: Option<PathBuf>,
    /// Through a link of an engine in memory, where they are discarded: the limit of this program
    #[arg(long)]
    pub sink: bool,
    /// Transmit queue of the interface
    #[arg(long, value_name = "N", default_value_t = 0)]
    pub queue: u32,
    /// Count what arrives at this interface (may be that of --if) and report the loss
    #[arg(long, value_name = "NAME")]
    pub receive: Option<String>,
    /// Packets or bits per second, such as 2Mpps, 500kpps, 1Gb/s (bits with preamble and gap, as on
    /// a wire)
    #[arg(long, value_name = "RATE", value_parser = parse_rate)]
    pub rate: Option<Rate>,
    /// End after so many packets
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    pub count: Option<u64>,
    /// End after this time
    #[arg(short = 'D', long, value_name = "TIME", value_parser = parse_seconds)]
    pub duration: Option<f64>,
    #[command(flatten)]
    pub models: crate::models::Models,
    /// Print the summary as one JSON object
    #[arg(long)]
    pub json: bool,
}

/// The driver says whether there is such a card.
fn parse_pci(word: &str) -> Result<String, String> {
    match word.parse::<engine::nic::pci::Address>() {
        Ok(_) => Ok(word.to_string()),
        Err(_) if word.starts_with("model:") => Ok(word.to_string()),
        Err(error) => Err(format!("{error}; an interface of the kernel is named by --if")),
    }
}
