//! What `shortwire run` can be told.

use std::ffi::OsString;

use clap::ValueEnum;
use terminal::units::parse_size;

use super::settings::{
    parse_dmb_size, parse_file, parse_ivshmem, parse_log, parse_pnetid, parse_rendezvous,
    parse_switch, parse_ueid,
};

#[derive(clap::Parser)]
#[command(about = "Run a program whose TCP connections can move to shared memory")]
#[command(override_usage = "shortwire run [OPTIONS] -- PROG [ARGS]...")]
#[command(
    long_about = "Runs PROG with the Shortwire library loaded into it. The program becomes this process: its process id, signals, \
terminal and exit status are its own. Connections to programs that also run under `shortwire run` on this machine move to shared \
memory; all others stay plain TCP.

Each option has an environment variable that the library reads, so a setting can also be made once for a whole session."
)]
#[command(after_help = "Examples:
  shortwire run -- nginx -g 'daemon off;'
  shortwire run --dmb-size 256K -- iperf3 -s
  SHORTWIRE_SPIN=0 shortwire run -- ./server  never busy-wait
  shortwire run --disable -- ./server         load the library but change
                                              nothing
  shortwire run --rsocket -- rstream          a program for rsockets, without
                                              RDMA hardware
  shortwire run --rsocket -- iperf3 -s        TCP sockets over rsockets

Exit status: that of PROG; 125 if shortwire itself failed, 126 if PROG cannot be executed, 127 if it is not found.

Programs that cannot take part, and run as plain TCP with a warning: setuid ones and, without --raw auto, statically linked \
ones, those of musl, and Go programs without the C library (built with CGO_ENABLED=0).")]
pub struct Run {
    /// Upgrade a connection after this many sends and receives on it
    #[arg(long, value_name = "K", env = "SHORTWIRE_AFTER", hide_env_values = true)]
    #[arg(
        long_help = "Upgrade a connection after this many sends and receives on it (library default: 8). Short connections never reach it and cost nothing."
    )]
    pub after: Option<u32>,
    /// ... or after this many bytes, whichever comes first
    #[arg(long, value_name = "BYTES", env = "SHORTWIRE_AFTER_BYTES", hide_env_values = true, value_parser = parse_size)]
    #[arg(long_help = "Upgrade after this many bytes if that comes first (library default: 64K).")]
    pub after_bytes: Option<u64>,
    /// Size of the receive buffer of each connection: 16K to 16M, a power of two
    #[arg(long, value_name = "SIZE", env = "SHORTWIRE_DMB_SIZE", hide_env_values = true, value_parser = parse_dmb_size)]
    #[arg(
        long_help = "Size of the receive buffer of each connection: 16K to 16M, a power of two. If not said: 4M for the first four of a process, 1M up to sixteen, 256K up to 128, 64K beyond."
    )]
    pub dmb_size: Option<u64>,
    /// Memory that the receive buffers of all connections may take together
    #[arg(long, value_name = "SIZE", env = "SHORTWIRE_MAX_MEMORY", hide_env_values = true, value_parser = parse_size)]
    #[arg(
        long_help = "Memory that the receive buffers of a process may take together (library default: a quarter of the machine's or, where that is less, of what the control group may have). Connections beyond it stay TCP. Only what is used counts as memory to the system; a connection at rest uses a page."
    )]
    pub max_memory: Option<u64>,
    /// Memory that the receive buffers of all of a user's programs may take together
    #[arg(long, value_name = "SIZE", env = "SHORTWIRE_MAX_MEMORY_USER", hide_env_values = true, value_parser = parse_size)]
    #[arg(
        long_help = "Memory that the receive buffers of all processes of this user may take together, those that were started with this option and see the same $SHORTWIRE_RUN_DIR or, without that, /dev/shm. Connections beyond it stay TCP. What a process had counts no more once it has ended, however it ended."
    )]
    pub max_memory_user: Option<u64>,
    /// Longest busy wait before sleeping, in microseconds (0: never)
    #[arg(long, value_name = "USEC", env = "SHORTWIRE_SPIN", hide_env_values = true, value_parser = clap::value_parser!(u32).range(0..=1_000_000))]
    pub spin: Option<u32>,
    /// Which processes to share memory with
    #[arg(
        long,
        value_name = "POLICY",
        env = "SHORTWIRE_PEER_POLICY",
        hide_env_values = true,
        value_enum,
        ignore_case = true
    )]
    pub peer_policy: Option<PeerPolicy>,
    /// Order in which to offer devices
    #[arg(
        long,
        value_name = "DEVICE,...",
        env = "SHORTWIRE_PREFER",
        hide_env_values = true,
        value_enum,
        ignore_case = true,
        value_delimiter = ','
    )]
    #[arg(
        long_help = "Devices to offer, in this order: a comma-separated list of loopback, ivshmem, ism, verbs. A device that is not in it is not used; one that cannot be had gives way to the next. Without this, loopback, ivshmem, ism and then verbs, the faster first. verbs is used only if it is named here; without an RDMA device it goes through a provider in software. With --rsocket, verbs is RDMA through libibverbs and librdmacm: alone, or before loopback for where there is no RDMA device."
    )]
    pub prefer: Vec<Device>,
    /// Partition of the ism device
    #[arg(long, value_name = "N", env = "SHORTWIRE_PARTITION", hide_env_values = true, value_parser = clap::value_parser!(u16).range(0..127))]
    #[arg(
        long_help = "Partition of the ism device, 0 to 126 (library default: 0). Programs reach each other over ism only in the same partition; other devices have none."
    )]
    pub partition: Option<u16>,
    /// Directory in which to meet programs of other network namespaces on this machine
    #[arg(long, value_name = "DIR", env = "SHORTWIRE_RENDEZVOUS", hide_env_values = true, value_parser = parse_rendezvous)]
    #[arg(
        long_help = "Directory, mounted into containers of this machine, in which programs of one user meet whose connections lead from one network namespace to another, through NAT too (doc/containers.md). Without it only connections within a network namespace leave TCP."
    )]
    pub rendezvous: Option<String>,
    /// Memory that this virtual machine shares with others
    #[arg(long, value_name = "PATH", env = "SHORTWIRE_IVSHMEM", hide_env_values = true, value_parser = parse_ivshmem)]
    #[arg(
        long_help = "Bar of an ivshmem device: resource2 of a PCI device 1af4:1110 in /sys, or a file that stands for it; `off` for none. Without this, the only such device that there is. Connections to programs in other virtual machines that share it leave TCP too, where `shortwire broker` runs in both (doc/virtual-machines.md)."
    )]
    pub ivshmem: Option<String>,
    /// Port of the brokers of all these machines
    #[arg(long, value_name = "PORT", env = "SHORTWIRE_BROKER", hide_env_values = true, value_parser = clap::value_parser!(u16).range(1..))]
    pub broker: Option<u16>,
    /// User-defined enterprise ID that both ends must share (may be given up to 4 times)
    #[arg(long, value_name = "UEID", env = "SHORTWIRE_UEID", hide_env_values = true, value_delimiter = ',', value_parser = parse_ueid)]
    #[arg(
        long_help = "User-defined enterprise ID: 1 to 32 of A-Z 0-9 . - ; up to 4, separated by commas. Two ends that share one, or the system's own ID, can talk."
    )]
    pub ueid: Vec<String>,
    /// Whether the system's own enterprise ID counts too
    #[arg(long, value_name = "SWITCH", env = "SHORTWIRE_SEID", hide_env_values = true, value_enum)]
    #[arg(
        long_help = "Whether the system's own enterprise ID counts beside the user-defined ones. If neither this nor --ueid is given, what `shortwire ueid` and `shortwire seid` have noted counts."
    )]
    pub seid: Option<Switch>,
    /// Physical networks of devices and interfaces
    #[arg(long, value_name = "NAME=ID,...", env = "SHORTWIRE_PNETID", hide_env_values = true, value_delimiter = ',', value_parser = parse_pnetid)]
    #[arg(
        long_help = "PNET ids, 1 to 16 letters and digits each: NAME is a device of --prefer or a network interface. A device that has one is offered only if an interface has the same."
    )]
    pub pnetid: Vec<String>,
    /// Load the library but change nothing
    #[arg(long, env = "SHORTWIRE_DISABLE", hide_env_values = true, value_parser = parse_switch)]
    pub disable: bool,
    /// Configuration file to read in front of the others
    #[arg(long, value_name = "FILE", env = "SHORTWIRE_CONFIG", hide_env_values = true, value_parser = parse_file)]
    #[arg(
        long_help = "Configuration file to read in front of those of the user and the system (shortwire.conf(5), `shortwire help config`)."
    )]
    pub config: Option<String>,
    /// What a program that uses io_uring gets
    #[arg(
        long,
        value_name = "MODE",
        env = "SHORTWIRE_IO_URING",
        hide_env_values = true,
        value_enum,
        ignore_case = true
    )]
    #[arg(
        long_help = "What a program that uses io_uring gets. Rings that cannot be looked at (SQPOLL, NO_MMAP) are refused by `look`, as containers refuse all; one that is entered past the C library and liburing keeps the program on TCP."
    )]
    pub io_uring: Option<IoUring>,
    /// Whether Go programs are followed
    #[arg(
        long,
        value_name = "MODE",
        env = "SHORTWIRE_GO",
        hide_env_values = true,
        value_enum,
        ignore_case = true
    )]
    pub go: Option<Go>,
    /// Whether programs that load no library are followed
    #[arg(
        long,
        value_name = "MODE",
        env = "SHORTWIRE_RAW",
        hide_env_values = true,
        value_enum,
        ignore_case = true
    )]
    #[arg(
        long_help = "Static programs, Go without the C library, and programs of musl: start them through shortwire-raw, which maps them and puts itself in the place of their system calls, and so what they start. New, and off unless it is asked for."
    )]
    pub raw: Option<Raw>,
    /// Copy through the device instead of sharing buffers
    #[arg(long, env = "SHORTWIRE_COPY", hide_env_values = true, value_parser = parse_switch)]
    #[arg(
        long_help = "Move data with a copy through the device (move_data) even where buffers could be shared: to compare, or to suspect the sharing."
    )]
    pub copy: bool,
    /// Check that what a device copies arrives as it was sent
    #[arg(long, env = "SHORTWIRE_INTEGRITY", hide_env_values = true, value_parser = parse_switch)]
    #[arg(
        long_help = "Checksum what a device copies, from the sender's buffer to the receiver's, where both ends ask for it: a connection whose bytes were damaged on the way is reset (DAMAGED). Those are ism and verbs; loopback has nothing to check, because nothing is copied between the two ends."
    )]
    pub integrity: bool,
    /// Let in an end that shows the connection's port, where users have no names
    #[arg(long, env = "SHORTWIRE_PORT_PROOF", hide_env_values = true, value_parser = parse_switch)]
    #[arg(
        long_help = "In a user namespace of its own (PrivateUsers in a unit) this end knows no user by name, so clients of other users stay TCP (NOBODY). With this it has such a client listen for a moment at the port that its connection comes from. That is no proof where the client's program sets SO_REUSEADDR on that socket: any local user could then pass for it. Give it to services whose clients do not."
    )]
    pub port_proof: bool,
    /// Where to write why connections stay TCP
    #[arg(long, value_name = "FILE|journald", env = "SHORTWIRE_LOG", hide_env_values = true, value_parser = parse_log, value_hint = clap::ValueHint::FilePath)]
    #[arg(
        long_help = "A line for a connection that stays TCP, goes back to it or is reset, with the reason: appended to a file, or sent to the journal (`journalctl -t shortwire`). No more than one line a minute has the same reason; the next says how many it stands for. Short connections (NOT_YET) are not told of."
    )]
    pub log: Option<String>,
    /// Carry PROG's streams over rsockets (`--rsocket=sockets`, `--rsocket=api`)
    #[arg(
        long,
        value_name = "WHAT",
        value_enum,
        num_args = 0..=1,
        require_equals = true,
        default_missing_value = "auto"
    )]
    #[arg(
        long_help = "Load an rsockets library in place of the one for TCP. Without an RDMA device streams go through shared memory. A program that is linked \
to librdmacm gets the functions of rsockets (`api`: rsocket, rconnect, ...); for any other its TCP sockets become rsockets where both ends run so, \
and stay TCP where they do not (`sockets`, doc/rsocket-programs.md). Of the other options, only --prefer has an effect."
    )]
    pub rsocket: Option<Rsocket>,
    /// Print no warnings
    #[arg(short, long, env = "SHORTWIRE_QUIET", hide_env_values = true, value_parser = parse_switch)]
    pub quiet: bool,
    /// The program and its arguments
    #[arg(value_name = "PROG", required = true, trailing_var_arg = true, value_hint = clap::ValueHint::CommandWithArguments)]
    pub program: Vec<OsString>,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum)]
pub enum PeerPolicy {
    /// With nobody: every connection stays TCP
    Off,
    /// With processes of the same user
    SameUid,
    /// With processes whose user the kernel confirms to own the other end of the connection
    /// (default)
    Verified,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum)]
pub enum Device {
    /// Copies across a partition
    Ism,
    /// No copy, between virtual machines
    Ivshmem,
    /// No copy, within the machine
    Loopback,
    /// RDMA, or a provider in software
    Verbs,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum)]
pub enum Switch {
    On,
    Off,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum)]
pub enum IoUring {
    /// Its rings, with a look at what it submits: connections named there stay TCP (default)
    Look,
    /// Its rings; all its connections stay TCP
    Stay,
    /// A refusal, so that programs which can do without use ordinary calls
    Deny,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Rsocket {
    /// What the program is linked to tells
    Auto,
    /// TCP sockets of any program
    Sockets,
    /// The functions of librdmacm's rsockets
    Api,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Go {
    /// Those that have the C library, and whose system calls can all be found (default)
    Auto,
    /// None: their own connections stay TCP
    Off,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Raw {
    /// Those whose system calls can all be found
    Auto,
    /// None: their connections stay TCP (default)
    Off,
}

#[cfg(test)]
mod tests {
    use super::*;
    use smc::kind::Kind;

    #[test]
    fn every_device_has_a_name_here() {
        let named = Device::value_variants().iter().filter_map(|device| device.to_possible_value());
        let mut named: Vec<String> = named.map(|name| name.get_name().to_string()).collect();
        named.sort();
        let mut kinds = Kind::ALL.map(Kind::name);
        kinds.sort();
        assert_eq!(named, kinds);
    }
}
