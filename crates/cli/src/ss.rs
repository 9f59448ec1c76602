//! `shortwire ss`: every connection of programs under Shortwire, its mode, and why.

use std::collections::BTreeMap;
use std::process::ExitCode;

use anyhow::{Result, anyhow};
use serde::Serialize;

use crate::doctor::explain;
use crate::off;
use connections::{Connection, Mode, snapshot};
use terminal::screen::{self, wrapped};

mod filter;
#[cfg(test)]
pub mod fixtures;
mod table;

pub use filter::{Filter, fields as filter_fields};
pub use table::shortened;

/// Of the JSON object: what has a name in it keeps its meaning as long as this number stays.
const VERSION: u32 = 1;

/// What `mode_name` can say.
pub const MODES: [&str; 5] = ["SMCD", "TCP", "LISTEN", "RSOCKET", "KERNEL_SMC"];

const AS_ELSEWHERE: &str = "As in iproute2's ss";

#[derive(clap::Args)]
#[command(about = "Show connections: which use shared memory, why others do not")]
#[command(
    after_help = "Mode is SMCD for a connection through shared memory, RSOCKET for one of the rsockets library, KERNEL_SMC for one \
that the kernel's own SMC carries, or TCP with the reason \
of this end (and behind a slash that of the peer); below the table each reason is explained once, with what can be done, and the last \
line sums up.

FILTER is as in iproute2: tests joined by `and`, `or`, `not` and brackets, in quotes for the shell. A test is
  state NAME             established, listening, connected, closed, ..., or as
                         in the table; `exclude NAME` for all others
  sport | dport OP PORT  local and peer port; OP is = != < > <= >=, or eq ne lt
                         gt le ge; PORT :80, 80 or :http
  src | dst ADDRESS      local and peer address, such as 10.0.0.0/8,
                         127.0.0.1:80, *:80
  pid | uid OP NUMBER
  program | peer NAME    program at this end, and at the other; * stands for
                         anything
  mode NAME              smcd, tcp, listen, rsocket, kernel_smc
  reason NAME            such as NOT_YET, or a code such as 0x09991001
  device NAME            loopback, ism, ivshmem, verbs

Examples:
  shortwire ss                              established connections
  shortwire ss mode tcp not reason NOT_YET  what stays TCP for another reason
                                            than its shortness
  shortwire ss state established '( sport = :6379 or dport = :6379 )'
  shortwire ss program 'nginx*' dst 10.0.0.0/8
  shortwire ss -tlnp                        listeners
  shortwire ss -s                           only the sum
  shortwire ss -e                           user, inode, program at the other
                                            end, device, bytes
  shortwire ss -d -W                        buffers, cursors and flags; whole
                                            addresses
  shortwire ss -D                           GIDs and link groups (see
                                            `shortwire linkgroups`)
  shortwire ss --json |
      jq '.connections[] | select(.mode == \"TCP\") | .reason_name'

Each end of a connection is a row of its own. Root sees all users' programs, others their own. What is in the JSON object: doc/seeing.md."
)]
pub struct Ss {
    /// Also listeners, and connections that are being set up
    #[arg(short, long)]
    pub all: bool,
    /// Only listeners
    #[arg(short, long, conflicts_with = "all")]
    pub listening: bool,
    /// User, inode, program at the other end, device, bytes
    #[arg(short, long)]
    pub extended: bool,
    /// Tokens, buffer sizes, cursors and flags of upgraded connections
    #[arg(short, long)]
    pub details: bool,
    /// GIDs, tokens and link group ids of upgraded connections, as smcss -D
    #[arg(short = 'D', long)]
    pub smcd: bool,
    /// Do not fit rows to the terminal
    #[arg(short = 'W', long)]
    pub wide: bool,
    /// Only the last line, which sums up
    #[arg(short, long)]
    pub summary: bool,
    /// Print one JSON object
    #[arg(long)]
    pub json: bool,
    /// No heading
    #[arg(short = 'H', long, help_heading = AS_ELSEWHERE)]
    pub no_header: bool,
    /// Only connections whose local address is IPv4
    #[arg(short = '4', long, help_heading = AS_ELSEWHERE)]
    pub ipv4: bool,
    /// ... or IPv6
    #[arg(short = '6', long, help_heading = AS_ELSEWHERE)]
    pub ipv6: bool,
    /// Changes nothing: all that is shown is TCP
    #[arg(short, long, help_heading = AS_ELSEWHERE)]
    pub tcp: bool,
    /// Changes nothing: addresses and ports are always numbers
    #[arg(short, long, help_heading = AS_ELSEWHERE)]
    pub numeric: bool,
    /// Changes nothing: programs are always shown
    #[arg(short, long, help_heading = AS_ELSEWHERE)]
    pub processes: bool,
    /// Changes nothing: timers are the kernel's, which `ss -o` shows
    #[arg(short = 'o', long, help_heading = AS_ELSEWHERE)]
    pub options: bool,
    /// Which connections, such as `state established dport = :80`
    #[arg(value_name = "FILTER")]
    pub filter: Vec<String>,
}

/// How many ends there are, of which kind.
#[derive(Clone, Default, PartialEq, Eq, Debug, Serialize)]
pub struct Summary {
    /// Of connections.
    pub ends: usize,
    pub smcd: usize,
    pub tcp: usize,
    pub rsocket: usize,
    /// Carried by the kernel's own SMC.
    pub kernel_smc: usize,
    pub listeners: usize,
    /// Names of reasons, and how many are on TCP for each.
    pub reasons: BTreeMap<&'static str, usize>,
}

pub fn run(args: &Ss) -> Result<ExitCode> {
    let filter = Filter::parse(&args.filter)
        .map_err(|why| anyhow!("{why}\nSee `shortwire help ss` for what a filter is made of."))?;
    let mut snapshot = snapshot(|_| true);
    snapshot.connections.retain(|connection| is_wanted(connection, args, &filter));
    explain(&mut snapshot.connections);
    let summary = Summary::of(&snapshot.connections);
    if args.json {
        let object = serde_json::json!({
            "version": VERSION, "connections": snapshot.connections, "summary": summary,
        });
        terminal::outln!("{}", serde_json::to_string_pretty(&object)?)?;
        return Ok(ExitCode::SUCCESS);
    }
    let width = if args.wide { None } else { screen::width() };
    if !args.summary && !snapshot.connections.is_empty() {
        terminal::out!("{}", table::text(&snapshot.connections, args, width))?;
        terminal::outln!("")?;
    }
    terminal::out!("{}", wrapped(&summary.text(), width, ""))?;
    if snapshot.connections.is_empty() && args.filter.is_empty() {
        let rest = if args.listening || args.all { "" } else { " (-a also shows listeners)" };
        eprintln!("No connections of programs under `shortwire run`{rest}.");
    }
    if let Some(state) = off::state_for(rustix::process::geteuid().as_raw()) {
        eprintln!("Shortwire is {state}: new connections stay TCP until `shortwire on`.");
    }
    if snapshot.hidden > 0 && !rustix::process::getuid().is_root() {
        eprintln!("Only your own programs are shown; run as root to see those of all users.");
    }
    Ok(ExitCode::SUCCESS)
}

/// As smcss: established and closing ones; with -a all; with -l listeners only; and what a filter
/// names by its state.
fn is_wanted(connection: &Connection, args: &Ss, filter: &Filter) -> bool {
    let listens = matches!(connection.mode, Mode::Listener);
    let usual = if args.listening {
        listens
    } else {
        args.all || filter.names_states() || !(listens || connection.state == "INIT")
    };
    let family = match connection.local {
        Some(local) if args.ipv4 != args.ipv6 => local.is_ipv4() == args.ipv4,
        _ => true,
    };
    usual && family && filter.wants(connection)
}

/// One of `MODES`.
pub fn mode_name(mode: &Mode) -> &'static str {
    match mode {
        Mode::Smcd | Mode::Reset { .. } => "SMCD",
        Mode::Tcp { .. } => "TCP",
        Mode::Listener => "LISTEN",
        Mode::Rsocket => "RSOCKET",
        Mode::KernelSmc { .. } => "KERNEL_SMC",
    }
}

/// Mode and reasons.
pub fn mode(mode: &Mode) -> String {
    match mode {
        Mode::Smcd | Mode::Rsocket => mode_name(mode).into(),
        Mode::Reset { reason_name, .. } => format!("SMCD {reason_name}"),
        Mode::KernelSmc { variant, .. } => format!("KERNEL_SMC {variant}"),
        Mode::Listener => "-".into(),
        Mode::Tcp { reason_name, peer_reason: 0, .. } => format!("TCP {reason_name}"),
        Mode::Tcp { reason_name, peer_reason_name, .. } => {
            format!("TCP {reason_name}/{peer_reason_name}")
        }
    }
}

impl Summary {
    pub fn of<'a>(connections: impl IntoIterator<Item = &'a Connection>) -> Summary {
        let mut sum = Summary::default();
        for connection in connections {
            match connection.mode {
                Mode::Listener => {
                    sum.listeners += 1;
                    continue;
                }
                Mode::Smcd | Mode::Reset { .. } => sum.smcd += 1,
                Mode::Rsocket => sum.rsocket += 1,
                Mode::KernelSmc { .. } => sum.kernel_smc += 1,
                Mode::Tcp { reason_name, .. } => {
                    sum.tcp += 1;
                    *sum.reasons.entry(reason_name).or_default() += 1;
                }
            }
            sum.ends += 1;
        }
        sum
    }

    pub fn text(&self) -> String {
        let plural = |count: usize, what: &str| {
            format!("{count} {what}{}", if count == 1 { "" } else { "s" })
        };
        let mut reasons: Vec<_> = self.reasons.iter().collect();
        reasons.sort_by_key(|&(_, count)| std::cmp::Reverse(count));
        let reasons: Vec<String> =
            reasons.into_iter().map(|(name, count)| format!("{count} {name}")).collect();
        let mut text = format!(
            "{} of connections: {} SMCD, {} TCP",
            plural(self.ends, "end"),
            self.smcd,
            self.tcp
        );
        if !reasons.is_empty() {
            text += &format!(" ({})", reasons.join(", "));
        }
        if self.rsocket > 0 {
            text += &format!(", {}", plural(self.rsocket, "rsocket"));
        }
        if self.kernel_smc > 0 {
            text += &format!(", {} of the kernel's SMC", self.kernel_smc);
        }
        if self.listeners > 0 {
            text += &format!("; {}", plural(self.listeners, "listener"));
        }
        text
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::fixtures::{connection, tcp};
    use super::*;
    use crate::args::{Args, Command};

    pub fn args(options: &[&str]) -> Ss {
        match Args::try_parse_from(["shortwire", "ss"].iter().chain(options)).unwrap().command {
            Command::Ss(args) => args,
            _ => unreachable!("parsed ss"),
        }
    }

    #[test]
    fn listeners_and_beginners_only_on_request() {
        let (listener, active, beginner) = (
            connection("LISTEN", Mode::Listener),
            connection("ACTIVE", tcp()),
            connection("INIT", tcp()),
        );
        let wanted = |options: &[&str]| {
            let args = args(options);
            let filter = Filter::parse(&args.filter).unwrap();
            [&listener, &active, &beginner].map(|connection| is_wanted(connection, &args, &filter))
        };
        assert_eq!(wanted(&[]), [false, true, false]);
        assert_eq!(wanted(&["-a"]), [true, true, true]);
        assert_eq!(wanted(&["-l"]), [true, false, false]);
        assert_eq!(wanted(&["state", "listening"]), [true, false, false]);
        assert_eq!(wanted(&["state", "all", "mode", "tcp"]), [false, true, true]);
        assert_eq!(wanted(&["mode", "listen"]), [false, false, false]);
        // As people type it.
        assert_eq!(wanted(&["-tlnp"]), [true, false, false]);
        assert_eq!(wanted(&["-Htanpo4"]), [true, true, true]);
        assert_eq!(wanted(&["-ta6"]), [false, false, false]);
        assert_eq!(wanted(&["-46"]), [false, true, false]);
        assert_eq!(wanted(&["-a", "( sport = :6379 )"]), [true, true, true]);
    }

    #[test]
    fn reasons_are_words() {
        assert_eq!(mode(&tcp()), "TCP PEER_NO_SMC");
        let mut both = tcp();
        if let Mode::Tcp { peer_reason, peer_reason_name, .. } = &mut both {
            (*peer_reason, *peer_reason_name) = (0x030d_0000, "MAX_DMB");
        }
        assert_eq!(mode(&both), "TCP PEER_NO_SMC/MAX_DMB");
    }

    #[test]
    fn the_last_line_sums_up() {
        let all = [
            connection("ACTIVE", Mode::Smcd),
            connection("ACTIVE", tcp()),
            connection("LISTEN", Mode::Listener),
        ];
        let said = Summary::of(&all).text();
        assert_eq!(said, "2 ends of connections: 1 SMCD, 1 TCP (1 PEER_NO_SMC); 1 listener");
        assert_eq!(Summary::of(&[]).text(), "0 ends of connections: 0 SMCD, 0 TCP");
    }
}
