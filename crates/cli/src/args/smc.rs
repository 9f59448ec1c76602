//! Link groups, EIDs and the record of handshakes.

use std::ffi::OsString;
use std::path::PathBuf;

use clap::{Subcommand, ValueEnum};

#[derive(clap::Args)]
#[command(about = "Show the link groups of programs under Shortwire")]
#[command(
    long_about = "Shows which processes share memory: a link group is what two processes have in common, over one device, for all \
connections that one of them proposes to the other. The first four columns are those of `smcd linkgroup`. Each end has a group of its own, so \
both are listed where both can be seen; a group without connections is kept for the next one."
)]
#[command(after_help = "Examples:
  shortwire linkgroups
  shortwire linkgroups -d              a block for each: EID, release, peer, memory
  shortwire linkgroups -d 00000100     only those with this id; each process counts its own")]
pub struct Linkgroups {
    /// A block of lines for each
    #[arg(short, long)]
    pub details: bool,
    /// Print one JSON object
    #[arg(long)]
    pub json: bool,
    /// Only groups with this id
    #[arg(value_name = "LG-ID")]
    pub group: Option<String>,
}

#[derive(clap::Args)]
#[command(about = "Let programs here meet those in other virtual machines that share memory with this one")]
#[command(
    long_about = "Runs in each of several virtual machines that share a bar (an ivshmem device). It prepares a new bar, brings the two \
ends of a TCP connection between two of the machines together, says in the bar that this machine lives, and frees there what ended programs \
and machines have left. Connections stay TCP where no broker runs. Ends on SIGINT and SIGTERM; connections that share memory already go on. \
See doc/virtual-machines.md, also for whom this trusts."
)]
#[command(after_help = "Examples:
  shortwire broker                                     with the only ivshmem device, at port 7480
  shortwire broker --ivshmem /sys/bus/pci/devices/0000:00:04.0/resource2 --listen 10.8.0.2:7480")]
pub struct Broker {
    /// Where brokers and programs of other machines call; all have to use one port
    #[arg(long, value_name = "ADDR:PORT", default_value = "[::]:7480")]
    pub listen: std::net::SocketAddr,
    /// Bar of the ivshmem device, as for `run`
    #[arg(long, value_name = "PATH", env = "SHORTWIRE_IVSHMEM", hide_env_values = true, value_parser = crate::run::parse_ivshmem)]
    pub ivshmem: Option<String>,
    /// Seconds after which a machine that is silent counts as gone
    #[arg(long, value_name = "SECONDS", default_value = "60", value_parser = clap::value_parser!(u32).range(5..=86_400))]
    #[arg(
        long_help = "Seconds after which a machine counts as gone whose broker has said nothing in the bar: what it had there is freed. A machine that is stopped for longer (a snapshot, a debugger) and then goes on may damage connections of others; a broker that is told to end leaves word that its machine lives."
    )]
    pub lease: u32,
    /// Count machines as gone, too, whose broker was told to end while programs used the bar
    #[arg(long)]
    pub resting_too: bool,
}

#[derive(clap::Args)]
#[command(about = "Show or change the user-defined enterprise IDs (EIDs)")]
#[command(
    long_about = "Two programs can share memory only if they have an enterprise ID in common: the system's own, or a user-defined one. \
User-defined ones are kept in $XDG_CONFIG_HOME/shortwire/eids.toml (usually below ~/.config), with --system in \
/etc/shortwire/eids.toml, which counts for users that have no file of their own. `shortwire run` gives them to the programs it starts, unless \
it is told others by --ueid; programs that run already keep theirs."
)]
#[command(after_help = "Examples:
  shortwire ueid add SHOP.1 && shortwire seid disable     programs share memory with programs of SHOP.1 only
  shortwire ueid del SHOP.1                               ... and with the last one gone, with all again")]
pub struct Ueid {
    #[command(subcommand)]
    pub command: Option<UeidCommand>,
    /// The table of the machine, not of this user
    #[arg(long, global = true)]
    pub system: bool,
}

#[derive(Subcommand)]
pub enum UeidCommand {
    /// Print them, one in a line (default)
    Show {
        /// Print one JSON object
        #[arg(long)]
        json: bool,
    },
    /// Add one, of four at most
    Add {
        /// 1 to 32 of A-Z 0-9 . -
        ueid: String,
    },
    /// Delete one; with the last one gone, the system's own EID is enabled again
    Del {
        /// One that is there
        ueid: String,
    },
    /// Delete all
    Flush,
}

#[derive(clap::Args)]
#[command(about = "Show or switch the system's own enterprise ID")]
#[command(
    long_about = "The system's own enterprise ID is what programs have in common that were given none. It can be disabled as long as there is a \
user-defined one (see `shortwire help ueid`, also for where this is kept)."
)]
pub struct Seid {
    #[command(subcommand)]
    pub command: Option<SeidCommand>,
    /// The table of the machine, not of this user
    #[arg(long, global = true)]
    pub system: bool,
}

#[derive(Subcommand)]
pub enum SeidCommand {
    /// Print it, and whether it is enabled (default)
    Show {
        /// Print one JSON object
        #[arg(long)]
        json: bool,
    },
    /// Programs have it
    Enable,
    /// Programs have only user-defined ones
    Disable,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum)]
pub enum Switch {
    On,
    Off,
}

#[derive(clap::Args)]
#[command(name = "trace-clc", about = "Run a program and record the handshakes of its connections, for Wireshark")]
#[command(override_usage = "shortwire trace-clc [-o FILE] -- PROG [ARGS]...")]
#[command(
    long_about = "Runs PROG as `shortwire run` does and writes each message of the handshakes (CLC: Proposal, Accept, Confirm, Decline) that \
its connections send and receive to a pcap file, as it happens. The messages travel beside the TCP stream; in the file each is a TCP segment \
between the real addresses, with sequence numbers that count handshake bytes only. Programs that PROG starts write to the same file.

Settings of `shortwire run` are taken from their environment variables."
)]
#[command(after_help = "Examples:
  shortwire trace-clc -o clc.pcap -- curl http://127.0.0.1:8080/
  tshark -r clc.pcap -V")]
pub struct TraceClc {
    /// The file to write, anew
    #[arg(short, long, value_name = "FILE", default_value = "clc.pcap", value_hint = clap::ValueHint::FilePath)]
    pub output: PathBuf,
    /// The program and its arguments
    #[arg(value_name = "PROG", required = true, trailing_var_arg = true, value_hint = clap::ValueHint::CommandWithArguments)]
    pub program: Vec<OsString>,
}
