//! `shortwire stats`: the counters of all programs under Shortwire, in the sections of
//! `smcd stats`.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::fs;
use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::{Context, Result};
use smc::reason::Reason;

use connections::kept::{self, Kept};
use connections::{Flow, StreamTotals, Streams, Table, Totals, snapshot};
use terminal::units::bytes;

#[derive(clap::Args)]
#[command(about = "Show counters of programs under Shortwire")]
#[command(
    after_help = "Sections as in `smcd stats`; both ends of a connection count. The counters of a program live as long as it (or a child it \
forked) does, unless --keep was said: then each program of this user that exits leaves them in a file of /dev/shm (or \
$SHORTWIRE_RUN_DIR). One that a signal kills leaves nothing there; `shortwire metrics`, as long as it runs, counts those too.

Examples:
  shortwire stats
  shortwire stats --keep    from now on, also what programs have counted that
                            have ended
  shortwire stats --forget  no longer; nothing is left
  sudo -u redis shortwire stats --keep
  shortwire stats --reset   count from now on (for this user; the programs' own
                            counters go on)
  shortwire stats -a        count from each program's start, in spite of
                            --reset"
)]
pub struct Stats {
    /// Also roles, link groups, and all fallback reasons
    #[arg(short, long)]
    pub details: bool,
    /// Ignore an earlier --reset
    #[arg(short, long)]
    pub absolute: bool,
    /// Begin counting anew
    #[arg(long)]
    pub reset: bool,
    /// Keep the counters of this user's programs when they end
    #[arg(long, conflicts_with_all = ["reset", "forget"])]
    pub keep: bool,
    /// Keep them no longer, and forget those that were kept
    #[arg(long, conflicts_with = "reset")]
    pub forget: bool,
    /// Print one JSON object
    #[arg(long)]
    pub json: bool,
}

/// Of the JSON object, as that of `ss`.
const VERSION: u32 = 1;
/// Where the baseline has the sum of everything. Tables have other names.
const SUM: &str = "sum";

/// What had been counted at the last `--reset`, by the identity of the memory.
#[derive(Default, serde::Serialize, serde::Deserialize)]
struct Baseline {
    sockets: BTreeMap<String, Totals>,
    rsockets: BTreeMap<String, StreamTotals>,
}

/// What the programs of a user count, by name.
#[derive(serde::Serialize)]
struct Row {
    program: String,
    uid: u32,
    #[serde(flatten)]
    totals: Totals,
}

pub fn run(args: &Stats) -> Result<ExitCode> {
    let own = rustix::process::geteuid().as_raw();
    if args.keep {
        let path = kept::path(own);
        kept::keep(own).with_context(|| format!("cannot make {}", path.display()))?;
        eprintln!(
            "Programs of user {own} leave their counters in {} when they exit.",
            path.display()
        );
        return Ok(ExitCode::SUCCESS);
    }
    if args.forget {
        let path = kept::path(own);
        kept::forget(own).with_context(|| format!("cannot remove {}", path.display()))?;
        return Ok(ExitCode::SUCCESS);
    }
    let (tables, streams, kept) = look();
    if args.reset {
        return reset(&tables, &streams, &kept);
    }
    let Baseline { sockets: baseline, rsockets: earlier } =
        if args.absolute { Baseline::default() } else { baseline() };
    let carried = stream_sum(&streams, &earlier);
    let sum = match baseline.get(SUM).filter(|_| !kept.is_empty()) {
        // What has ended since the reset stands among what is kept.
        Some(earlier) => {
            let mut sum = sum(&tables, &kept, &BTreeMap::new());
            sum.since(earlier);
            sum
        }
        None => sum(&tables, &kept, &baseline),
    };
    if args.json {
        let mut object = json(&sum, &tables);
        object["by_program"] = serde_json::to_value(by_program(&tables, &kept))?;
        let time = std::time::UNIX_EPOCH.elapsed().map_or(0, |since| since.as_secs());
        let rsockets = serde_json::json!({
            "programs": streams.iter().flat_map(|family| &family.programs).collect::<Vec<_>>(),
            "sum": carried,
        });
        let object = serde_json::json!({
            "version": VERSION, "time": time, "SMCD": object, "RSOCKET": rsockets,
        });
        terminal::outln!("{}", serde_json::to_string_pretty(&object)?)?;
    } else {
        terminal::out!("{}", text(&sum, args.details))?;
        if !streams.is_empty() {
            terminal::out!("{}", stream_text(&carried))?;
        }
        if tables.is_empty() && streams.is_empty() && kept.is_empty() && !kept::is_wanted(own) {
            eprintln!(
                "No program under `shortwire run` has used TCP; its counters live as long as it does (see --keep)."
            );
        }
    }
    Ok(ExitCode::SUCCESS)
}

/// Living programs, and what is kept of those that have ended: both of one moment, since a program
/// that ends in between would be in both or in none.
fn look() -> (Vec<Table>, Vec<Streams>, Vec<Kept>) {
    let totals = |kept: &[Kept]| kept.iter().map(|kept| kept.totals.clone()).collect::<Vec<_>>();
    for _ in 0..3 {
        let before = kept::kept();
        let seen = snapshot(|_| true);
        if totals(&kept::kept()) == totals(&before) {
            return (seen.tables, seen.streams, before);
        }
    }
    let seen = snapshot(|_| true);
    (seen.tables, seen.streams, kept::kept())
}

fn sum(tables: &[Table], kept: &[Kept], baseline: &BTreeMap<String, Totals>) -> Totals {
    let mut sum = Totals::default();
    kept.iter().for_each(|kept| sum.add(&kept.totals));
    for table in tables {
        let mut totals = table.totals.clone();
        if let Some(earlier) = baseline.get(&table.identity) {
            totals.since(earlier);
        }
        if !kept.is_empty() {
            totals.since(&table.given);
        }
        sum.add(&totals);
    }
    sum
}

/// Of living programs: what an ended one has counted went with it.
fn stream_sum(streams: &[Streams], earlier: &BTreeMap<String, StreamTotals>) -> StreamTotals {
    let mut sum = StreamTotals::default();
    for family in streams {
        let mut totals = family.totals.clone();
        if let Some(earlier) = earlier.get(&family.identity) {
            totals.since(earlier);
        }
        sum.add(&totals);
    }
    sum
}

fn by_program(tables: &[Table], kept: &[Kept]) -> Vec<Row> {
    let mut rows: BTreeMap<(String, u32), Totals> = BTreeMap::new();
    for kept in kept {
        rows.entry((kept.program.clone(), kept.uid)).or_default().add(&kept.totals);
    }
    for table in tables {
        let name =
            table.programs.first().map_or_else(|| "?".into(), |program| program.name.clone());
        let mut totals = table.totals.clone();
        if !kept.is_empty() {
            totals.since(&table.given);
        }
        rows.entry((name, table.uid)).or_default().add(&totals);
    }
    rows.into_iter().map(|((program, uid), totals)| Row { program, uid, totals }).collect()
}

/// The library's counters belong to its programs and only grow: what they are now is remembered and
/// subtracted later.
fn reset(tables: &[Table], streams: &[Streams], kept: &[Kept]) -> Result<ExitCode> {
    let path = baseline_path()
        .context("cannot remember the counters: neither XDG_CACHE_HOME nor HOME is set")?;
    let all = sum(tables, kept, &BTreeMap::new());
    let sockets = tables.iter().map(|table| (table.identity.clone(), table.totals.clone()));
    let rsockets = streams.iter().map(|family| (family.identity.clone(), family.totals.clone()));
    let values = Baseline {
        sockets: sockets.chain([(SUM.to_string(), all)]).collect(),
        rsockets: rsockets.collect(),
    };
    if let Some(directory) = path.parent() {
        fs::create_dir_all(directory)
            .with_context(|| format!("cannot make {}", directory.display()))?;
    }
    fs::write(&path, serde_json::to_vec(&values)?)
        .with_context(|| format!("cannot remember the counters in {}", path.display()))?;
    Ok(ExitCode::SUCCESS)
}

fn baseline() -> Baseline {
    baseline_path()
        .and_then(|path| fs::read(path).ok())
        .and_then(|content| serde_json::from_slice(&content).ok())
        .unwrap_or_default()
}

/// In the user's own directory: in a shared one another user could put a file of that name first.
fn baseline_path() -> Option<PathBuf> {
    let directory =
        |name: &str| std::env::var_os(name).filter(|value| !value.is_empty()).map(PathBuf::from);
    let cache = directory("XDG_CACHE_HOME").or_else(|| Some(directory("HOME")?.join(".cache")))?;
    Some(cache.join("shortwire/stats-baseline.json"))
}

fn json(sum: &Totals, tables: &[Table]) -> serde_json::Value {
    let programs: Vec<_> = tables.iter().flat_map(|table| &table.programs).collect();
    let reasons: Vec<_> = sum
        .reasons
        .iter()
        .map(|&(code, count)| serde_json::json!({ "reason": code, "name": Reason(code).name(), "words": Reason(code).words(), "count": count }))
        .collect();
    serde_json::json!({
        "programs": programs,
        "connections": handled(sum),
        "smc_connections": smc(sum),
        "client": sum.client,
        "server": sum.server,
        "handshake_errors": sum.handshake_errors,
        "fallback": sum.fallback,
        "fallback_reasons": reasons,
        "link_groups": sum.link_groups,
        "violations": sum.violations,
        "damaged": sum.damaged,
        "rx": sum.rx,
        "tx": sum.tx,
        "cork": sum.cork,
        "nodelay": sum.nodelay,
        "splice": sum.splice,
        "urgent": sum.urgent,
        "wakeups": sum.wakeups,
    })
}

fn smc(sum: &Totals) -> u64 {
    sum.client + sum.server
}

/// Upgraded, or ended on TCP. A connection whose handshake broke off is among the latter.
fn handled(sum: &Totals) -> u64 {
    smc(sum) + sum.fallback
}

fn text(sum: &Totals, details: bool) -> String {
    let mut text = String::from("SMC-D Connections Summary\n");
    line(&mut text, 2, "Total connections handled", handled(sum));
    line(&mut text, 2, "SMC connections", smc(sum));
    if details {
        line(&mut text, 4, "proposed here", sum.client);
        line(&mut text, 4, "answered here", sum.server);
        line(&mut text, 2, "Link groups made", sum.link_groups);
        line(&mut text, 2, "Protocol violations", sum.violations);
        line(&mut text, 2, "Damaged streams", sum.damaged);
    }
    line(&mut text, 2, "Handshake errors", sum.handshake_errors);
    let requests = (sum.rx.calls + sum.tx.calls) as f64 / smc(sum).max(1) as f64;
    line(&mut text, 2, "Avg requests per SMC conn", format!("{requests:.1}"));
    line(&mut text, 2, "TCP fallback", sum.fallback);
    let mut reasons = sum.reasons.clone();
    reasons.sort_by_key(|&(_, count)| std::cmp::Reverse(count));
    for &(code, count) in reasons.iter().take(if details { usize::MAX } else { 3 }) {
        let reason = Reason(code);
        line(&mut text, 4, &format!("{} ({})", reason.name(), reason.words()), count);
    }
    flow(&mut text, "RX Stats", "Data received", &sum.rx);
    flow(&mut text, "TX Stats", "Data transmitted", &sum.tx);
    text.push_str("\nWake-ups\n");
    line(&mut text, 2, "Woken by doorbells", sum.wakeups.all);
    line(&mut text, 2, "Later than 5 ms", sum.wakeups.late);
    line(&mut text, 2, "Longest (microseconds)", sum.wakeups.longest_us);
    text.push_str("\nExtras\n");
    line(&mut text, 2, "Special socket calls", sum.cork + sum.nodelay + sum.splice + sum.urgent);
    for (name, count) in [
        ("cork", sum.cork),
        ("nodelay", sum.nodelay),
        ("splice", sum.splice),
        ("urgent data", sum.urgent),
    ] {
        line(&mut text, 4, name, count);
    }
    text
}

fn stream_text(sum: &StreamTotals) -> String {
    let mut text = String::from("\nRsockets\n");
    for (name, value) in [
        ("Connections made", sum.streams),
        ("Connections failed", sum.failed),
        ("Data received (Bytes)", sum.rx_bytes),
        ("Data transmitted (Bytes)", sum.tx_bytes),
        ("Receives", sum.rx_calls),
        ("Sends", sum.tx_calls),
        ("Doorbells", sum.doorbells),
        ("Sleeps", sum.slept),
    ] {
        line(&mut text, 2, name, value);
    }
    text
}

fn flow(text: &mut String, title: &str, data: &str, flow: &Flow) {
    let _ = writeln!(text, "\n{title}");
    line(text, 2, &format!("{data} (Bytes)"), format!("{} ({})", flow.bytes, bytes(flow.bytes)));
    line(text, 2, "Total requests", flow.calls);
    line(text, 2, "Doorbells", flow.doorbells);
    line(text, 2, "Buffer full", flow.full);
    line(text, 2, "Buffer reuses", flow.reuse);
    line(text, 2, "Buffers made", flow.alloc);
    let _ = writeln!(
        text,
        "  {:<10}{}",
        "",
        ["8KB", "16KB", "32KB", "64KB", "128KB", "256KB", "512KB", "1MB", ">1MB"]
            .map(|name| format!("{name:>10}"))
            .concat()
    );
    for (name, values) in [("Bufs", &flow.buffers), ("Reqs", &flow.sizes)] {
        let _ =
            writeln!(text, "  {name:<10}{}", values.map(|value| format!("{value:>10}")).concat());
    }
}

fn line(text: &mut String, indent: usize, name: &str, value: impl ToString) {
    let width = 64usize.saturating_sub(indent);
    let _ = writeln!(text, "{:indent$}{name:<width$}{:>16}", "", value.to_string());
}

#[cfg(test)]
mod tests {
    use super::*;

    fn totals() -> Totals {
        let mut totals =
            Totals { client: 3, server: 1, handshake_errors: 1, fallback: 5, ..Totals::default() };
        totals.reasons = vec![(0x0999_1001, 4), (0x0301_0000, 1)];
        totals.rx = Flow { bytes: 1 << 20, calls: 40, ..Flow::default() };
        totals
    }

    #[test]
    fn sections_and_sums() {
        let text = text(&totals(), false);
        for part in [
            "SMC-D Connections Summary",
            "RX Stats",
            "TX Stats",
            "Extras",
            "NOT_YET (connection has not done",
            "1048576 (1.0M)",
        ] {
            assert!(text.contains(part), "{part} is missing in\n{text}");
        }
        let value = |name: &str| {
            text.lines()
                .find(|line| line.trim_start().starts_with(name))
                .unwrap()
                .split_whitespace()
                .next_back()
                .unwrap()
                .to_string()
        };
        assert_eq!(value("Total connections"), "9", "one declined here counts once");
        assert_eq!(value("SMC connections"), "4");
        assert_eq!(value("Avg requests"), "10.0");
    }

    #[test]
    fn what_is_kept_counts_and_what_was_given_does_not_count_twice() {
        let kept = [Kept { uid: 7, program: "redis".into(), totals: totals() }];
        assert_eq!(sum(&[], &kept, &BTreeMap::new()).client, 3);
        let rows = by_program(&[], &kept);
        assert_eq!((rows[0].program.as_str(), rows[0].uid, rows[0].totals.client), ("redis", 7, 3));
        let flat = serde_json::to_value(&rows[0]).unwrap();
        assert_eq!((&flat["uid"], &flat["client"]), (&7.into(), &3.into()));
    }

    #[test]
    fn rsockets_have_a_section() {
        let text = stream_text(&StreamTotals { tx_bytes: 4711, ..StreamTotals::default() });
        assert!(text.contains("Rsockets") && text.contains("4711"), "{text}");
    }

    #[test]
    fn json_sums() {
        let value = json(&totals(), &[]);
        assert_eq!(value["connections"], 9);
        assert_eq!(value["rx"]["bytes"], 1 << 20);
        assert_eq!(value["fallback_reasons"][1]["name"], "PEER_NO_SMC");
    }
}
