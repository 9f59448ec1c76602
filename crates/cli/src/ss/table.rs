//! The table of `ss`: rows that fit a terminal, and each reason explained once below it.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::net::SocketAddr;

use connections::{Connection, Detail, LATE_HINT, Mode, Program, Stream, Wakeups};
use terminal::screen::wrapped;
use terminal::units::bytes;

use super::{Ss, mode, mode_name};

/// How a column gives way where rows do not fit.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Column {
    /// It does not.
    Whole,
    /// The end of its cells goes.
    Names,
    /// What lies before the port goes.
    Addresses,
}

/// What is left of a cell is never shorter.
const NARROWEST: usize = 11;

pub fn text(connections: &[Connection], args: &Ss, width: Option<usize>) -> String {
    use Column::*;
    let mut header = vec![
        ("State", Whole),
        ("Local Address", Addresses),
        ("Peer Address", Addresses),
        ("Pid/program", Names),
        ("Mode", Whole),
    ];
    if args.extended {
        header.extend(EXTENDED_HEADER);
    }
    if args.details {
        header.extend(DETAIL_HEADER.map(|name| (name, Whole)));
    }
    if args.smcd {
        header.extend(["GID", "Token", "Peer-GID", "Peer-Token", "Linkid"].map(|n| (n, Whole)));
    }
    let (names, kinds): (Vec<&str>, Vec<Column>) = header.into_iter().unzip();
    let mut rows = vec![names.into_iter().map(String::from).collect::<Vec<_>>()];
    for connection in connections {
        let mut row = vec![
            connection.state.to_string(),
            address(connection.local),
            address(connection.peer),
            programs(&connection.programs),
            mode(&connection.mode),
        ];
        if args.extended {
            row.extend(extended(connection));
        }
        let detail = connection.detail.as_ref();
        if args.details {
            row.extend(match (detail, &connection.stream) {
                (Some(detail), _) => details(detail),
                (None, Some(stream)) if !stream.device.is_empty() => stream_details(stream),
                _ => vec![String::new(); DETAIL_HEADER.len()],
            });
        }
        if args.smcd {
            row.extend(detail.map(identities).unwrap_or_default());
        }
        rows.push(row);
    }
    let mut text = columns(&rows, &kinds, width);
    if args.no_header {
        text = text.split_off(text.find('\n').map_or(0, |end| end + 1));
    }
    explain(&mut text, connections, width);
    text
}

fn address(address: Option<SocketAddr>) -> String {
    address.map_or_else(|| "-".to_string(), |address| address.to_string())
}

fn programs(programs: &[Program]) -> String {
    match programs {
        [] => "-".into(),
        [only] => format!("{}/{}", only.pid, only.name),
        [first, others @ ..] => format!("{}/{}+{}", first.pid, first.name, others.len()),
    }
}

const EXTENDED_HEADER: [(&str, Column); 6] = [
    ("UID", Column::Whole),
    ("Inode", Column::Whole),
    ("Peer program", Column::Names),
    ("Device", Column::Whole),
    ("Memory rx/tx", Column::Whole),
    ("TCP rx/tx", Column::Whole),
];

fn extended(connection: &Connection) -> Vec<String> {
    let detail = connection.detail.as_ref();
    let stream = connection.stream.as_ref().filter(|stream| !stream.device.is_empty());
    let amounts = |rx, tx| format!("{}/{}", bytes(rx), bytes(tx));
    let device = detail.map(|detail| detail.device).or(stream.map(|stream| stream.device));
    let device = device.or(match &connection.mode {
        Mode::KernelSmc { kernel_device, .. } => Some(&**kernel_device),
        _ => None,
    });
    let memory = detail.map(|detail| amounts(detail.rx_bytes, detail.tx_bytes));
    let memory = memory.or(stream.map(|stream| amounts(stream.rx_bytes, stream.tx_bytes)));
    vec![
        connection.uid.to_string(),
        connection.inode.to_string(),
        programs(&connection.peer_programs),
        device.unwrap_or("-").into(),
        memory.unwrap_or_else(|| "-".into()),
        connection.tcp.map_or_else(|| "-".into(), |tcp| amounts(tcp.rx, tcp.tx)),
    ]
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
        detail.token_hex.clone(),
        detail.peer_token_hex.clone(),
        format!("{:08x}", detail.link_group_id),
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

/// What an rsocket has of the same; its protocol has no tokens, groups and cursors.
fn stream_details(stream: &Stream) -> Vec<String> {
    let mut cells = vec!["-".to_string(); DETAIL_HEADER.len()];
    let known = [
        ("Device", stream.device.into()),
        ("Peer-Pid", stream.peer_pid.to_string()),
        ("Rcvbuf", format!("{:08x}", stream.rcvbuf)),
        ("rx/tx-Bytes", format!("{}/{}", stream.rx_bytes, stream.tx_bytes)),
        ("Late/Wakeups", format!("-/{}", stream.slept)),
    ];
    for (name, cell) in known {
        if let Some(at) = DETAIL_HEADER.iter().position(|column| *column == name) {
            cells[at] = cell;
        }
    }
    cells
}

/// The last columns of smcss -D; the link group's number as `shortwire linkgroups` and messages
/// have it.
fn identities(detail: &Detail) -> Vec<String> {
    vec![
        detail.gid.clone(),
        detail.token_hex.clone(),
        detail.peer_gid.clone(),
        detail.peer_token_hex.clone(),
        format!("{:08x}", detail.link_group_id),
    ]
}

/// Left-aligned columns, two spaces apart, the first row their heading. Where they are wider than
/// `width` the widest that may give way do, unless that would not be enough: a row that is broken by
/// the terminal anyway need not be cut as well.
pub fn columns(rows: &[Vec<String>], kinds: &[Column], width: Option<usize>) -> String {
    let length = |cell: &String| cell.chars().count();
    let mut widths: Vec<usize> = (0..kinds.len())
        .map(|column| rows.iter().filter_map(|row| row.get(column)).map(length).max().unwrap_or(0))
        .collect();
    let narrowest = |widths: &[usize]| {
        let cells = widths.iter().zip(kinds).map(|(&width, kind)| match kind {
            Column::Whole => width,
            Column::Names | Column::Addresses => width.min(NARROWEST),
        });
        cells.sum::<usize>() + 2 * (widths.len() - 1)
    };
    let width = width.filter(|&width| narrowest(&widths) <= width);
    while let Some(width) = width
        && widths.iter().sum::<usize>() + 2 * (widths.len() - 1) > width
    {
        let yields = |&column: &usize| kinds[column] != Column::Whole && widths[column] > NARROWEST;
        let Some(widest) = (0..widths.len()).filter(yields).max_by_key(|&column| widths[column])
        else {
            break;
        };
        widths[widest] -= 1;
    }
    let mut text = String::new();
    for row in rows {
        let mut line = String::new();
        for ((cell, &width), &kind) in row.iter().zip(&widths).zip(kinds) {
            let is_address = kind == Column::Addresses;
            let _ = write!(line, "{:<width$}  ", shortened(cell, width, is_address));
        }
        let _ = writeln!(text, "{}", line.trim_end());
    }
    text
}

/// Cut at its end, or before its port.
pub fn shortened(cell: &str, width: usize, is_address: bool) -> String {
    let length = cell.chars().count();
    if length <= width {
        return cell.into();
    }
    let port = cell.rfind(':').filter(|_| is_address);
    let kept = port.map_or(0, |at| cell[at..].chars().count());
    let front = width.saturating_sub(kept + 2);
    let end = cell.chars().skip(length - kept);
    cell.chars().take(front).chain("..".chars()).chain(end).collect()
}

/// Each reason once, in words and with what can be done; the programs that it may name are told apart.
fn explain(text: &mut String, connections: &[Connection], width: Option<usize>) {
    let mut reasons = BTreeMap::new();
    for connection in connections {
        let (words, hint) = match &connection.mode {
            Mode::Tcp { words, hint, .. } | Mode::Reset { words, hint, .. } => (words, hint),
            Mode::Smcd | Mode::Listener | Mode::Rsocket | Mode::KernelSmc { .. } => continue,
        };
        let codes = codes(&connection.mode);
        let said = (mode(&connection.mode), codes, words, hint);
        *reasons.entry(said).or_insert(0usize) += 1;
    }
    if !reasons.is_empty() {
        text.push('\n');
    }
    for ((name, codes, words, hint), count) in reasons {
        *text += &wrapped(&format!("{count} x {name} ({codes}): {words}."), width, "");
        *text += &wrapped(hint, width, "    ");
    }
    let mut wakeups = Wakeups::default();
    for detail in connections.iter().filter_map(|connection| connection.detail.as_ref()) {
        wakeups.add(detail.wakeups);
    }
    if let Some(complaint) = wakeups.complaint() {
        *text += &format!("\n{}", wrapped(&format!("{complaint}."), width, ""));
        *text += &wrapped(LATE_HINT, width, "    ");
    }
}

/// As the kernel's tools show them.
fn codes(mode: &Mode) -> String {
    match mode {
        Mode::Tcp { reason, peer_reason: 0, .. } | Mode::Reset { reason, .. } => {
            format!("0x{reason:08x}")
        }
        Mode::Tcp { reason, peer_reason, .. } => format!("0x{reason:08x}/0x{peer_reason:08x}"),
        _ => mode_name(mode).into(),
    }
}

#[cfg(test)]
mod tests {
    use super::super::fixtures::{connection, tcp};
    use super::super::tests::args;
    use super::*;

    fn list() -> Vec<Connection> {
        vec![
            connection("ACTIVE", Mode::Smcd),
            connection("APPFINCLOSEWAIT", tcp()),
            connection("ACTIVE", tcp()),
        ]
    }

    #[test]
    fn rows_say_mode_reason_and_hint() {
        let text = text(&list(), &args(&[]), None);
        for part in [
            "State",
            "SMCD",
            "TCP PEER_NO_SMC",
            "12/redis-server+1",
            "[2001:db8:1234:5678:9abc:def0:1234:5678]:40000",
            "2 x TCP PEER_NO_SMC (0x03010000): peer did not signal SMC.",
            "    Start it under",
        ] {
            assert!(text.contains(part), "{part} is missing in\n{text}");
        }
    }

    #[test]
    fn rows_fit_80_columns() {
        let text = text(&list(), &args(&[]), Some(80));
        assert!(text.lines().all(|line| line.chars().count() <= 80), "{text}");
        for part in ["APPFINCLOSEWAIT", "TCP PEER_NO_SMC", "..:40000", "127.0.0.1:6379", "12/redis"]
        {
            assert!(text.contains(part), "{part} is missing in\n{text}");
        }
    }

    #[test]
    fn what_cannot_fit_is_not_cut() {
        for (options, width) in [(&[][..], 20), (&["-e"], 80)] {
            let text = text(&list(), &args(options), Some(width));
            let row = text.lines().nth(1).unwrap();
            assert!(row.contains("[2001:db8:1234:5678:9abc:def0:1234:5678]:40000"), "{text}");
        }
    }

    #[test]
    fn rows_without_a_header() {
        let all = text(&list(), &args(&[]), None);
        let bare = text(&list(), &args(&["-H"]), None);
        assert_eq!(all.split_once('\n').unwrap().1, bare);
    }

    #[test]
    fn extended_rows_say_who_and_how_much() {
        let mut one = connection("ACTIVE", tcp());
        one.peer_programs = vec![Program { pid: 77, name: "wrk".into() }];
        one.tcp = Some(connections::Carried { rx: 800, tx: 64 << 10 });
        let text = text(&[one], &args(&["-e"]), None);
        for part in ["Peer program", "77/wrk", "4711", "33", "800/64.0K"] {
            assert!(text.contains(part), "{part} is missing in\n{text}");
        }
    }

    #[test]
    fn the_kernel_s_smc_says_its_device() {
        let mode = Mode::KernelSmc { variant: "SMCR", kernel_device: "rxe0".into() };
        let one = connection("ACTIVE", mode);
        let summary = super::super::Summary::of([&one]).text();
        assert!(summary.ends_with("0 TCP, 1 of the kernel's SMC"), "{summary}");
        let text = text(&[one], &args(&["-e"]), None);
        assert!(text.contains("KERNEL_SMC SMCR") && text.contains("rxe0"), "{text}");
    }

    #[test]
    fn rsockets_say_what_carries_them() {
        let mut one = connection("ACTIVE", Mode::Rsocket);
        let stream = Stream { device: "verbs", rx_bytes: 700, peer_pid: 4242, ..Stream::default() };
        one.stream = Some(stream);
        let text = text(&[one], &args(&["-e", "-d"]), None);
        for part in ["RSOCKET", "verbs", "700/0", "4242"] {
            assert!(text.contains(part), "{part} is missing in\n{text}");
        }
    }
}
