//! `shortwire top`: what the connections of programs under Shortwire do, by connection, by program
//! and by pair of programs.

use std::io::{IsTerminal, Write};
use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Result, anyhow, bail};
use clap::ValueEnum;
use terminal::signals;
use terminal::units::parse_seconds;

use crate::ss::Filter;

mod groups;
pub mod look;
mod screen;
mod text;

use look::Look;
use screen::Screen;

/// Of the JSON object, as that of `ss`.
const VERSION: u32 = 1;

#[derive(clap::Args)]
#[command(about = "Watch connections: bytes, messages, doorbells, reasons")]
#[command(
    after_help = "Keys: q quit, space pause, g group by connection, program, pair, s sort by bytes, messages, doorbells, name, \
+/- interval, arrows scroll.

  rx/s, tx/s  bytes received and sent in a second, through memory and over TCP
  memory      how much of rx/s and tx/s went through memory, in percent
  msg/s       messages (sends and receives) through memory
  bell/msg    doorbells sent for each message sent: near 0 the other end never
              sleeps, near 1 it sleeps before each
  waits       how this end waits for messages: spins, sleeps, or both in turn;
              idle: there were none
  why         the reason of most of the connections that are TCP (`shortwire
              ss` explains it)

Each end of a connection counts by itself; a pair counts each connection once. Only connections that were there at both looks have rates.
FILTER is that of `shortwire ss`. When the output is no terminal, one interval is printed, as with --once.

Examples:
  shortwire top
  shortwire top --by program mode tcp       which programs stay TCP, and why
  shortwire top --by pair --once            who talks to whom
  shortwire top --json program nginx | jq '.connections[].doorbells_per_message'
  shortwire engine top                      packet engines: links, apps, drops"
)]
pub struct Top {
    /// What a row is
    #[arg(short, long, value_name = "WHAT", value_enum, default_value = "connection")]
    pub by: By,
    /// What rows are sorted by
    #[arg(short, long, value_name = "WHAT", value_enum, default_value = "bytes")]
    pub sort: Sort,
    /// Time between two looks
    #[arg(short, long, value_name = "TIME", default_value = "1", value_parser = parse_seconds)]
    pub interval: f64,
    /// Print one interval as text and end
    #[arg(long)]
    pub once: bool,
    /// Print one interval as one JSON object and end
    #[arg(long)]
    pub json: bool,
    /// Of `shortwire engine top`, whose view this once was
    #[arg(long, hide = true)]
    pub tree: bool,
    /// Which connections, such as `program nginx mode tcp`
    #[arg(value_name = "FILTER")]
    pub filter: Vec<String>,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum)]
pub enum By {
    Connection,
    Program,
    Pair,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum)]
pub enum Sort {
    Bytes,
    Messages,
    Doorbells,
    Name,
}

pub fn run(args: &Top) -> Result<ExitCode> {
    let is_engines = args.tree || args.filter.first().is_some_and(|w| w.parse::<u32>().is_ok());
    if is_engines {
        let words = args.filter.join(" ");
        let tree = if args.tree { " --tree" } else { "" };
        bail!(
            "packet engines are watched by `shortwire engine top{tree} {words}`; this shows connections (of a process: `shortwire top pid {words}`)"
        );
    }
    let filter = Filter::parse(&args.filter)
        .map_err(|why| anyhow!("{why}\nSee `shortwire help ss` for what a filter is made of."))?;
    if !args.once && !args.json && std::io::stdout().is_terminal() {
        Screen::new(args.interval, args.by, args.sort).run(&filter)?;
        return Ok(ExitCode::SUCCESS);
    }
    signals::default_sigpipe();
    let before = Look::take(&filter);
    std::thread::sleep(Duration::from_secs_f64(args.interval));
    let change = Look::take(&filter).since(&before);
    let mut output = std::io::stdout().lock();
    if args.json {
        let object = serde_json::json!({
            "version": VERSION,
            "seconds": change.seconds,
            "summary": change.summary,
            "connections": groups::rows(&change, By::Connection, args.sort),
            "programs": groups::rows(&change, By::Program, args.sort),
            "pairs": groups::rows(&change, By::Pair, args.sort),
        });
        writeln!(output, "{}", serde_json::to_string_pretty(&object)?)?;
        return Ok(ExitCode::SUCCESS);
    }
    let rows = groups::rows(&change, args.by, args.sort);
    let lines = text::lines(&rows, args.by, terminal::screen::width());
    write!(output, "{}", lines.concat())?;
    writeln!(output, "{}", change.summary.text())?;
    Ok(ExitCode::SUCCESS)
}
