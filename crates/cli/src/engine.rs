//! `shortwire engine`: a network from a file, until somebody ends it.

use std::fs;
use std::io::Write;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use ::engine::config::{Config, ConfigFile};
use ::engine::registry::{KindInfo, Registry};
use ::engine::{Ports, arena};
use anyhow::{Context, Result, bail};
use clap::ValueEnum;
use measure::profile;
use rustix::thread::{CpuSet, sched_setaffinity};
use terminal::screen::{self, wrapped};
use terminal::signals;
use terminal::units::parse_seconds;

mod metrics;
mod session;
pub mod top;

use session::Session;

#[derive(clap::Args)]
#[command(about = "Run a network of packet apps described by a file")]
#[command(args_conflicts_with_subcommands = true, subcommand_negates_reqs = true)]
#[command(
    long_about = "Runs the apps and links of CONFIG until Ctrl-C, then prints what passed each link. On SIGHUP the file is read again and \
the difference is applied: apps and links that are the same keep their state, packets and counters. A file with mistakes is \
refused with all of them, and the network that runs goes on."
)]
#[command(after_help = "A file names apps by kind, with their arguments, and joins their ports:

  links = [\"if1.tx -> if2.rx\", \"if2.tx -> if1.rx\"]
  [apps.if1]
  kind = \"XDP\"
  interface = \"eth1\"
  [apps.if2]
  kind = \"XDP\"
  interface = \"eth2\"
  thread = 1       # optional: another engine on another processor
  [engine]
  busywait = true  # optional; also hz, maxsleep, tick, packets, cycles, latency

Examples:
  shortwire engine shunt.toml          until Ctrl-C
  shortwire engine shunt.toml --duration 10 --busywait
  shortwire engine shunt.toml --check  validate only
  shortwire engine shunt.toml --graph | dot -Tsvg > shunt.svg
  shortwire engine --kinds             which kinds of apps there are
  kill -HUP PID                        apply an edited file
  shortwire engine top                 watch it (a file of that name: ./top)

An app that cannot start is told, and the others run, if one of them brings packets in.

Exit status: 0 after a clean stop; 1 if the network could not start, an app could not start or stop, or a thread crashed, \
or packets were lost because a file could not be written, or an input was damaged; 2 for a wrong command line.")]
pub struct Engine {
    #[command(subcommand)]
    pub command: Option<EngineCommand>,
    /// The file that describes the network
    #[arg(value_name = "CONFIG.toml", required_unless_present = "kinds", value_hint = clap::ValueHint::FilePath)]
    pub config: Option<PathBuf>,
    /// End after this time
    #[arg(long, value_name = "TIME", value_parser = parse_seconds)]
    pub duration: Option<f64>,
    /// End when no app has anything more to send, such as after the last packet of a capture
    #[arg(long)]
    pub until_finished: bool,
    /// What to print at the end
    #[arg(
        long,
        value_name = "PART,...",
        value_enum,
        value_delimiter = ',',
        default_value = "load,links"
    )]
    pub report: Vec<Report>,
    /// Serve all counters as Prometheus text over HTTP
    #[arg(long, value_name = "ADDR:PORT", value_parser = parse_address)]
    pub metrics: Option<SocketAddr>,
    /// Do not run unless all apps start
    #[arg(long)]
    pub strict: bool,
    /// Never sleep, whatever the file says
    #[arg(long)]
    pub busywait: bool,
    /// Processors to run on, such as 1 or 2-5,8: thread N of the file gets the N-th of them
    #[arg(long, value_name = "LIST", value_parser = parse_cpus)]
    pub cpu: Option<Cpus>,
    #[command(flatten)]
    pub models: crate::models::Models,
    /// Only say whether the file is right
    #[arg(long, conflicts_with_all = ["graph", "kinds"])]
    pub check: bool,
    /// Print the network as a Graphviz graph
    #[arg(long, conflicts_with = "kinds")]
    pub graph: bool,
    /// Print the kinds of apps, their ports and counters
    #[arg(long)]
    pub kinds: bool,
}

#[derive(clap::Subcommand)]
pub enum EngineCommand {
    Top(top::Top),
}

/// Processor numbers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Cpus(Vec<usize>);

impl Cpus {
    /// Binds this thread, and those that it starts, to them.
    fn run_here(&self) -> rustix::io::Result<()> {
        let mut set = CpuSet::new();
        self.0.iter().for_each(|cpu| set.set(*cpu));
        sched_setaffinity(None, &set)
    }
}

#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum)]
pub enum Report {
    /// Packets per second, bits, sleep
    Load,
    /// What was sent on each link, and the loss
    Links,
    /// What the apps have to say
    Apps,
    /// Nothing
    None,
}

pub fn run(args: &Engine) -> Result<ExitCode> {
    if let Some(EngineCommand::Top(args)) = &args.command {
        return top::run(args);
    }
    let mut output = std::io::stdout();
    let Some(path) = args.config.as_deref().filter(|_| !args.kinds) else {
        signals::default_sigpipe();
        terminal::out!("{}", kinds(screen::width()))?;
        return Ok(ExitCode::SUCCESS);
    };
    args.models.apply();
    let file = load(path)?;
    if args.graph {
        output.write_all(file.config.graphviz().as_bytes())?;
    } else if args.check {
        writeln!(output, "{}: {}", path.display(), describe(&file.config))?;
    } else {
        return start(args, path, &file);
    }
    Ok(ExitCode::SUCCESS)
}

fn start(args: &Engine, path: &Path, file: &ConfigFile) -> Result<ExitCode> {
    if let Some(cpus) = &args.cpu {
        cpus.run_here().with_context(|| {
            format!(
                "cannot run on the processors {:?}: see which there are with `nproc --all`",
                cpus.0
            )
        })?;
    }
    if let Some(packets) = file.settings.packets {
        arena::set_slots(packets)?;
    }
    profile::load();
    let mut session = Session::start(args, path, file)?;
    session.run()?;
    session.finish()
}

/// Reads and checks a file. Nothing has happened when it is refused.
fn load(path: &Path) -> Result<ConfigFile> {
    let text =
        fs::read_to_string(path).with_context(|| format!("cannot read {}", path.display()))?;
    let refused = |error| anyhow::anyhow!("{} is not a network:\n{error}", path.display());
    let file = Config::from_toml_checked(&text, Registry::standard()).map_err(refused)?;
    if file.config.apps().next().is_none() {
        bail!("{} has no apps: `shortwire help engine` shows an example", path.display());
    }
    Ok(file)
}

fn describe(config: &Config) -> String {
    let count = |number: usize, what: &str| {
        format!("{number} {what}{}", if number == 1 { "" } else { "s" })
    };
    let (apps, links, threads) =
        (config.apps().count(), config.links().len(), config.threads().len());
    format!("{}, {} on {}", count(apps, "app"), count(links, "link"), count(threads, "thread"))
}

fn ports(ports: Ports) -> String {
    match ports {
        Ports::None => "-".into(),
        Ports::Any => "any".into(),
        Ports::Named(names) => names.join(", "),
    }
}

/// What can be written into a file: a table, or where that does not fit some lines for each.
fn kinds(width: Option<usize>) -> String {
    let mut table = terminal::table::new(["kind", "inputs", "outputs", "counters", "what it does"]);
    for KindInfo { name, about, inputs, outputs, counters, .. } in Registry::standard().kinds() {
        table.add_row([
            name.to_string(),
            ports(*inputs),
            ports(*outputs),
            counters.join(", "),
            about.to_string(),
        ]);
    }
    let text = format!("{table}\n");
    let fits = |width: usize| text.lines().all(|line| line.chars().count() <= width);
    match width.filter(|&width| !fits(width)) {
        Some(width) => narrow_kinds(width),
        None => text,
    }
}

fn narrow_kinds(width: usize) -> String {
    let mut text = String::new();
    for KindInfo { name, about, inputs, outputs, counters, .. } in Registry::standard().kinds() {
        text += &wrapped(&format!("{name}: {about}"), Some(width), "");
        for (what, names) in
            [("in", ports(*inputs)), ("out", ports(*outputs)), ("counters", counters.join(", "))]
        {
            if !names.is_empty() && names != "-" {
                text += &wrapped(&format!("{what}: {names}"), Some(width), "    ");
            }
        }
    }
    text
}

fn parse_address(text: &str) -> Result<SocketAddr, String> {
    let hint = || "give an address and a port such as 127.0.0.1:9090".to_string();
    text.parse().map_err(|_| hint())
}

/// `1`, `0,2`, `2-5,8`: numbers of processors.
fn parse_cpus(text: &str) -> Result<Cpus, String> {
    let hint = || "give numbers of processors such as 1, 0,2 or 2-5,8".to_string();
    let number = |text: &str| text.parse::<usize>().ok().filter(|cpu| *cpu < 1024).ok_or_else(hint);
    let mut cpus = Vec::new();
    for part in text.split(',') {
        match part.split_once('-') {
            None => cpus.push(number(part)?),
            Some((first, last)) => cpus.extend(number(first)?..=number(last)?),
        }
    }
    if cpus.is_empty() { Err(hint()) } else { Ok(Cpus(cpus)) }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn file(text: &str) -> (tempfile::TempDir, std::path::PathBuf) {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("network.toml");
        fs::write(&path, text).unwrap();
        (folder, path)
    }

    #[test]
    fn a_file_is_read_and_described() {
        let (_folder, path) =
            file("links = [\"a.output -> b.input\"]\n[apps]\na = \"Source\"\nb = \"Sink\"\n");
        assert_eq!(describe(&load(&path).unwrap().config), "2 apps, 1 link on 1 thread");
    }

    #[test]
    fn mistakes_are_told_all_at_once_with_lines_and_nearest_names() {
        let (_folder, path) = file(
            "links = [\"a.output -> c.input\"]\n[apps]\na = \"Sourse\"\n[apps.b]\nkind = \"Source\"\nsise = 3\n",
        );
        let said = format!("{:#}", load(&path).unwrap_err());
        for part in [
            "line 1:",
            "no such app 'c'",
            "line 3:",
            "did you mean 'Source'",
            "line 6:",
            "did you mean 'size'",
        ] {
            assert!(said.contains(part), "{part} is missing in {said}");
        }
    }

    #[test]
    fn an_empty_network_is_refused() {
        let (_folder, path) = file("");
        assert!(load(&path).is_err_and(|error| error.to_string().contains("no apps")));
    }

    #[test]
    fn all_kinds_are_listed() {
        for width in [None, Some(80), Some(1000)] {
            let text = kinds(width);
            assert!(Registry::standard().kinds().all(|kind| text.contains(kind.name)));
            let widest = text.lines().map(|line| line.chars().count()).max().unwrap();
            assert!(width.is_none_or(|width| widest <= width), "{widest}: {text}");
        }
    }

    #[test]
    fn a_port_alone_is_no_address() {
        assert!(parse_address("9090").unwrap_err().contains("127.0.0.1:9090"));
        assert_eq!(parse_address("127.0.0.1:9090"), Ok("127.0.0.1:9090".parse().unwrap()));
    }

    #[test]
    fn processors() {
        assert_eq!(parse_cpus("1"), Ok(Cpus(vec![1])));
        assert_eq!(parse_cpus("2-4,8"), Ok(Cpus(vec![2, 3, 4, 8])));
        for bad in ["", "a", "1-", "4-2", "1,,2", "1024"] {
            assert!(parse_cpus(bad).is_err(), "{bad}");
        }
    }
}
