//! `shortwire ps`: which processes run a packet engine.

use std::process::ExitCode;

use ::engine::clock::monotonic;
use ::engine::counters::{Process, processes, run_root, sweep};
use anyhow::{Context, Result};
use serde::Serialize;
use terminal::table;

use crate::engine::top::rates::command;

#[derive(Serialize)]
struct Object {
    run_directory: String,
    processes: Vec<Row>,
    /// Processes that were killed, whose counters were removed just now.
    removed: Vec<u32>,
}

#[derive(Serialize)]
struct Row {
    pid: u32,
    /// Since the engine's start.
    seconds: u64,
    threads: usize,
    apps: usize,
    links: usize,
    packets: u64,
    command: String,
}

#[derive(clap::Args)]
#[command(about = "List the processes that run a packet engine")]
#[command(
    after_help = "Counters of processes that were killed are removed from the run directory ($SHORTWIRE_RUN_DIR, /run/shortwire or \
$XDG_RUNTIME_DIR/shortwire) and named on the way."
)]
pub struct Ps {
    /// Print one JSON object
    #[arg(long)]
    pub json: bool,
}

pub fn run(args: &Ps) -> Result<ExitCode> {
    let root = run_root()?;
    let found = match processes(&root) {
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Vec::new(),
        other => other.with_context(|| format!("cannot read {}", root.display()))?,
    };
    let (alive, dead): (Vec<Process>, Vec<Process>) =
        found.into_iter().partition(|process| process.alive);
    if !dead.is_empty() {
        sweep(&root);
    }
    let removed =
        dead.iter().filter(|process| !process.path.exists()).map(|process| process.pid).collect();
    let rows = alive.iter().filter_map(row).collect();
    let object = Object { run_directory: root.display().to_string(), processes: rows, removed };
    if args.json {
        crate::json::print(&object)?;
    } else {
        terminal::out!("{}", text(&object))?;
    }
    Ok(ExitCode::SUCCESS)
}

/// None if it ended just now.
fn row(process: &Process) -> Option<Row> {
    let tree = process.read().ok()?;
    let started =
        tree.engines.values().map(|engine| engine.counters.get("started_ns")).min().unwrap_or(0);
    Some(Row {
        pid: process.pid,
        seconds: monotonic().saturating_sub(started) / 1_000_000_000,
        threads: tree.engines.len(),
        apps: tree.apps.len(),
        links: tree.links.len(),
        packets: tree.links.values().map(|link| link.get("txpackets")).sum(),
        command: command(process.pid),
    })
}

fn text(object: &Object) -> String {
    let mut text = String::new();
    if object.processes.is_empty() {
        text += &format!("no packet engine runs here (looked into {})\n", object.run_directory);
    } else {
        let mut table =
            table::new(["PID", "time", "threads", "apps", "links", "packets", "command"]);
        for row in &object.processes {
            let time = format!(
                "{}:{:02}:{:02}",
                row.seconds / 3600,
                row.seconds / 60 % 60,
                row.seconds % 60
            );
            let packets = ::engine::report::commas(row.packets);
            let numbers = [row.threads, row.apps, row.links].map(|number| number.to_string());
            let [threads, apps, links] = numbers;
            table.add_row([
                row.pid.to_string(),
                time,
                threads,
                apps,
                links,
                packets,
                row.command.clone(),
            ]);
        }
        text += &format!("{table}\n");
    }
    for pid in &object.removed {
        text += &format!("removed the counters of process {pid}, which was killed\n");
    }
    text
}
