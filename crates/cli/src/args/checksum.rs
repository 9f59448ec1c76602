//! `bench checksum` and `tune checksum`.

use std::path::PathBuf;

use clap::Subcommand;

use crate::units::parse_seconds;

#[derive(clap::Args)]
#[command(about = "Measure the Internet checksum, beside other people's and beside what memory allows")]
#[command(
    long_about = "Measures csum_partial of the checksum crate, its kernels one by one, the rivals that this build could link (a Linux-style \
and a VPP-style routine in C, DPDK's where its headers are installed, smoltcp, internet-checksum, etherparse, pnet), a read of all bytes and a \
memcpy: all interleaved in the same rounds, so that a disturbance meets all alike. Data in the cache, in no cache (each line flushed before), \
with a second core writing memory, of mixed lengths, one call waiting for the other, copies, batches, headers.

Every routine is first checked against the plain sum of RFC 1071; one that sums such data wrong is marked and not timed. The measuring is done \
by shortwire-checksum-bench, which is found beside this executable and is ended on Ctrl-C."
)]
#[command(after_help = "Examples:
  shortwire bench checksum                          everything
  shortwire bench checksum --quick                  the most telling cases, in less than a minute
  shortwire bench checksum --only hot,mix-imix      a group, a case (--list prints the names)
  shortwire bench checksum --kernel avx2            as if the processor had no more
  shortwire bench checksum --svg curves.svg         GB/s over length, drawn
  shortwire bench checksum --reproduce              the claims of the 2013 mail thread on csum_partial, one by one

Values are ns per packet: medians over the rounds. A ratio is the median of the ratios within a round, above 1 where Shortwire is faster. \
A bar is the ratio that the project promises on a processor with AVX-512. Nothing else should run meanwhile.")]
pub struct Checksum {
    /// No further round of a case after this long
    #[arg(long, value_name = "N", default_value = "3", value_parser = parse_seconds)]
    pub seconds: f64,
    /// Rounds of each case; each measures everything once
    #[arg(long, value_name = "N", default_value_t = 301, value_parser = clap::value_parser!(u32).range(5..=100_000))]
    pub repeat: u32,
    /// Only these cases or groups of cases, separated by commas
    #[arg(long, value_name = "CASE,...", value_delimiter = ',')]
    pub only: Vec<String>,
    /// The kernel to use instead of the fastest one
    #[arg(long, value_name = "NAME")]
    pub kernel: Option<String>,
    /// Fewer cases, 101 rounds and 0.5 s for each at most; ends in less than a minute
    #[arg(long)]
    pub quick: bool,
    /// Draw GB/s over length into this file
    #[arg(long, value_name = "FILE", value_hint = clap::ValueHint::FilePath)]
    pub svg: Option<PathBuf>,
    /// Print the source thread's claims, and what this machine says of each
    #[arg(long, conflicts_with_all = ["only", "svg", "kernel"])]
    pub reproduce: bool,
    /// Print the names that --only takes
    #[arg(long)]
    pub list: bool,
    /// Print one JSON object
    #[arg(long)]
    pub json: bool,
}

#[derive(clap::Args)]
#[command(about = "Measure settings for this machine, and write them down")]
pub struct Tune {
    #[command(subcommand)]
    pub command: TuneCommand,
}

#[derive(Subcommand)]
pub enum TuneCommand {
    Checksum(TuneChecksum),
}

#[derive(clap::Args)]
#[command(about = "Find out how far the checksum should prefetch on this processor")]
#[command(
    long_about = "Measures prefetch distances within a packet and settings for the next packets of a batch, on packets that no cache holds, \
against the built-in profile of this processor. One half of the rounds chooses a setting, the other half judges it. The profile is written \
only if the gain is larger than the spread, which is how far the gain differs from block to block of the judging rounds.

Nothing is measured at start-up: commands that compute checksums (engine, snsh, bench checksum) read the file, the user's ($XDG_CONFIG_HOME/shortwire/checksum.profile, usually \
below ~/.config) before the system's (/etc/shortwire/checksum.profile). A file that is damaged or of another processor is ignored with a warning, \
and the built-in profile is used."
)]
#[command(after_help = "Examples:
  shortwire tune checksum --dry-run           measure and print, write nothing
  shortwire tune checksum                     write the profile of this user
  sudo shortwire tune checksum --system       write the profile of all users
  shortwire tune checksum --output FILE       write it elsewhere

Exit status: 0 if a profile was written (or with --dry-run would have been), 3 if the built-in profile stays, 1 on failure.")]
pub struct TuneChecksum {
    /// Write the profile to this file
    #[arg(long, value_name = "FILE", value_hint = clap::ValueHint::FilePath)]
    pub output: Option<PathBuf>,
    /// Write the profile of all users
    #[arg(long, conflicts_with = "output")]
    pub system: bool,
    /// Write nothing
    #[arg(long)]
    pub dry_run: bool,
    /// Rounds of each case; each measures every setting once
    #[arg(long, value_name = "N", default_value_t = 1000, value_parser = clap::value_parser!(u32).range(40..=100_000))]
    pub repeat: u32,
    /// Print one JSON object
    #[arg(long)]
    pub json: bool,
}
