//! `shortwire ss`: every connection of programs under Shortwire, its mode, and why.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::net::SocketAddr;
use std::process::ExitCode;

use anyhow::Result;

use connections::{Connection, Detail, LATE_HINT, Mode, Wakeups, snapshot};

/// Longest address without -W, as in smcss.
const ADDRESS_WIDTH: usize = 23;

#[derive(clap::Args)]
#[command(about = "Show the connections of programs under Shortwire: which use shared memory, and why others do not")]
#[command(
    after_help = "Columns as in smcss. Mode is SMCD for a connection through shared memory, or TCP with the reason code of this end \
(and behind a slash that of the peer); below the table each reason is explained once, with what can be done.

Examples:
  shortwire ss              established connections
  shortwire ss -a           listeners too
  shortwire ss -d -W        buffers, cursors and flags; whole addresses
  shortwire ss -D           GIDs and link groups (see `shortwire linkgroups`)
  shortwire ss --json | jq '.connections[] | select(.mode == \"TCP\")'

Each end of a connection is a row of its own. Root sees all users' programs, others their own."
)]
pub struct Ss {
    /// Also listeners, and connections that are being set up
    #[arg(short, long)]
    pub all: bool,
    /// Only listeners
    #[arg(short, long, conflicts_with = "all")]
    pub listening: bool,
    /// Tokens, buffer sizes, cursors and flags of upgraded connections
    #[arg(short, long)]
    pub details: bool,
    /// GIDs, tokens and link group ids of upgraded connections, as smcss -D
    #[arg(short = 'D', long)]
    pub smcd: bool,
    /// Do not shorten addresses
    #[arg(short = 'W', long)]
    pub wide: bool,
    /// Print one JSON object
    #[arg(long)]
    pub json: bool,
}

pub fn run(args: &Ss) -> Result<ExitCode> {
    let mut snapshot = snapshot(|_| true);
    snapshot.connections.retain(|connection| is_wanted(connection, args));
    if args.json {
        println!("{}", serde_json::to_string_pretty(&serde_json::json!({ "connections": snapshot.connections }))?);
        return Ok(ExitCode::SUCCESS);
    }
    print!("{}", text(&snapshot.connections, args));
    if snapshot.connections.is_empty() {
        let rest = if args.listening || args.all { "" } else { " (-a also shows listeners)" };
        eprintln!("No connections of programs under `shortwire run`{rest}.");
    }
    if snapshot.hidden > 0 && !rustix::process::getuid().is_root() {
        eprintln!("Only your own programs are shown; run as root to see those of all users.");
    }
    Ok(ExitCode::SUCCESS)
}

/// As smcss: established and closing ones; with -a all; with -l listeners only.
fn is_wanted(connection: &Connection, args: &Ss) -> bool {
    let listens = matches!(connection.mode, Mode::Listener);
    if args.listening { listens } else { args.all || !(listens || connection.state == "INIT") }
}

fn text(connections: &[Connection], args: &Ss) -> String {
    let header = ["State", "UID", "Inode", "Local Address", "Peer Address", "Pid/program", "Mode"];
    let mut rows = vec![header.map(String::from).to_vec()];
    if args.details {
        rows[0].extend(DETAIL_HEADER.map(String::from));
    }
    if args.smcd {
        rows[0].extend(["GID", "Token", "Peer-GID", "Peer-Token", "Linkid"].map(String::from));
    }
    for connection in connections {
        let mut row = vec![
            connection.state.to_string(),
            connection.uid.to_string(),
            connection.inode.to_string(),
            address(connection.local, args.wide),
            address(connection.peer, args.wide),
            programs(connection),
            mode(&connection.mode),
        ];
        if args.details {
            row.extend(connection.detail.as_ref().map_or_else(|| vec![String::new(); DETAIL_HEADER.len()], details));
        }
        if args.smcd {
            row.extend(connection.detail.as_ref().map(identities).unwrap_or_default());
        }
        rows.push(row);
    }
    let mut text = columns(&rows);
    explain(&mut text, connections);
    text
}

fn address(address: Option<SocketAddr>, wide: bool) -> String {
    let text = address.map_or_else(|| "-".to_string(), |address| address.to_string());
    if wide || text.len() <= ADDRESS_WIDTH {
        return text;
    }
    format!("{}..", &text[..ADDRESS_WIDTH - 2])
}

fn programs(connection: &Connection) -> String {
    match connection.programs.as_slice() {
        [] => "-".into(),
        [only] => format!("{}/{}", only.pid, only.name),
        [first, others @ ..] => format!("{}/{}+{}", first.pid, first.name, others.len()),
    }
}

fn mode(mode: &Mode) -> String {
    match mode {
        Mode::Smcd => "SMCD".into(),
        Mode::Reset { reason, .. } => format!("SMCD 0x{reason:08x}"),
        Mode::Listener => "-".into(),
        Mode::Tcp { reason, peer_reason: 0, .. } => format!("TCP 0x{reason:08x}"),
        Mode::Tcp { reason, peer_reason, .. } => format!("TCP 0x{reason:08x}/0x{peer_reason:08x}"),
    }
}

const DETAIL_HEADER: [&str; 17] = [
    "Device",
    "Shutd",
    "Token",
    "Peer-Token",
    "LG",
    "Peer-Pid",
    "Rings",
    "Rcvbuf",
    "Peerbuf",
    "rxprod-Cursor",
    "rxcons-Cursor",
    "rxFlags",
    "txprod-Cursor",
    "txcons-Cursor",
    "txFlags",
    "rx/tx-Bytes",
    "Late/Wakeups",
];

fn details(detail: &Detail) -> Vec<String> {
    let rings = match (detail.receives_through_ring, detail.sends_through_ring) {
        (true, true) => "both",
        (true, false) => "rx",
        (false, true) => "tx",
        (false, false) => "none",
    };
    vec![
        detail.device.into(),
        detail.shutdown.clone(),
        format!("{:016x}", detail.token),
        format!("{:016x}", detail.peer_token),
        format!("{:08x}", detail.link_group << 8),
        detail.peer_pid.to_string(),
        rings.into(),
        format!("{:08x}", detail.rcvbuf),
        format!("{:08x}", detail.peerbuf),
        detail.rx_producer.clone(),
        detail.rx_consumer.clone(),
        detail.rx_flags.clone(),
        detail.tx_producer.clone(),
        detail.tx_consumer.clone(),
        detail.tx_flags.clone(),
        format!("{}/{}", detail.rx_bytes, detail.tx_bytes),
        format!("{}/{}", detail.wakeups.late, detail.wakeups.all),
    ]
}

/// The last columns of smcss -D; the link group's number as `shortwire linkgroups` and messages have it.
fn identities(detail: &Detail) -> Vec<String> {
    vec![
        detail.gid.clone(),
        format!("{:016x}", detail.token),
        detail.peer_gid.clone(),
        format!("{:016x}", detail.peer_token),
        format!("{:08x}", detail.link_group << 8),
    ]
}

/// Left-aligned columns, two spaces apart.
fn columns(rows: &[Vec<String>]) -> String {
    let count = rows.iter().map(Vec::len).max().unwrap_or(0);
    let widths: Vec<usize> = (0..count)
        .map(|column| rows.iter().filter_map(|row| row.get(column)).map(String::len).max().unwrap_or(0))
        .collect();
    let mut text = String::new();
    for row in rows {
        let line = row.iter().zip(&widths).fold(String::new(), |mut line, (cell, width)| {
            let _ = write!(line, "{cell:<width$}  ");
            line
        });
        let _ = writeln!(text, "{}", line.trim_end());
    }
    text
}

/// Each reason once, in words and with what can be done.
fn explain(text: &mut String, connections: &[Connection]) {
    let mut reasons = BTreeMap::new();
    for connection in connections {
        let (words, hint) = match connection.mode {
            Mode::Tcp { words, hint, .. } | Mode::Reset { words, hint, .. } => (words, hint),
            Mode::Smcd | Mode::Listener => continue,
        };
        reasons.entry(mode(&connection.mode)).or_insert((words, hint, 0usize)).2 += 1;
    }
    if !reasons.is_empty() {
        text.push('\n');
    }
    for (code, (words, hint, count)) in reasons {
        let _ = writeln!(text, "{count} x {code}: {words}.\n    {hint}");
    }
    let mut wakeups = Wakeups::default();
    for detail in connections.iter().filter_map(|connection| connection.detail.as_ref()) {
        wakeups.add(detail.wakeups);
    }
    if let Some(complaint) = wakeups.complaint() {
        let _ = writeln!(text, "\n{complaint}.\n    {LATE_HINT}");
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;
    use crate::args::{Args, Command};
    use connections::Program;

    fn args(options: &[&str]) -> Ss {
        match Args::try_parse_from(["shortwire", "ss"].iter().chain(options)).unwrap().command {
            Command::Ss(args) => args,
            _ => unreachable!("parsed ss"),
        }
    }

    fn connection(state: &'static str, mode: Mode) -> Connection {
        Connection {
            state,
            uid: 33,
            inode: 4711,
            local: "127.0.0.1:6379".parse().ok(),
            peer: "[2001:db8:1234:5678:9abc:def0:1234:5678]:40000".parse().ok(),
            programs: vec![
                Program { pid: 12, name: "redis-server".into() },
                Program { pid: 13, name: "redis-server".into() },
            ],
            mode,
            detail: None,
        }
    }

    fn tcp() -> Mode {
        Mode::Tcp {
            reason: 0x0301_0000,
            peer_reason: 0,
            words: "peer did not signal SMC",
            hint: "Start it under `shortwire run` too.",
        }
    }

    #[test]
    fn rows_say_mode_reason_and_hint() {
        let list = [connection("ACTIVE", Mode::Smcd), connection("ACTIVE", tcp()), connection("ACTIVE", tcp())];
        let text = text(&list, &args(&[]));
        for part in [
            "State",
            "SMCD",
            "TCP 0x03010000",
            "12/redis-server+1",
            "2 x TCP 0x03010000: peer did not signal SMC.",
            "    Start it under",
        ] {
            assert!(text.contains(part), "{part} is missing in\n{text}");
        }
        assert!(text.contains("[2001:db8:1234:5678:9..") && !text.contains("5678]:40000"), "{text}");
    }

    #[test]
    fn wide_shows_whole_addresses() {
        assert!(
            text(&[connection("ACTIVE", Mode::Smcd)], &args(&["-W"]))
                .contains("[2001:db8:1234:5678:9abc:def0:1234:5678]:40000")
        );
    }

    #[test]
    fn listeners_and_beginners_only_on_request() {
        let (listener, active, beginner) =
            (connection("LISTEN", Mode::Listener), connection("ACTIVE", tcp()), connection("INIT", tcp()));
        let wanted =
            |options: &[&str]| [&listener, &active, &beginner].map(|connection| is_wanted(connection, &args(options)));
        assert_eq!(wanted(&[]), [false, true, false]);
        assert_eq!(wanted(&["-a"]), [true, true, true]);
        assert_eq!(wanted(&["-l"]), [true, false, false]);
    }

    #[test]
    fn both_reasons_are_shown() {
        assert_eq!(
            mode(&Mode::Tcp { reason: 0x0500_0000, peer_reason: 0x030d_0000, words: "", hint: "" }),
            "TCP 0x05000000/0x030d0000"
        );
    }
}
