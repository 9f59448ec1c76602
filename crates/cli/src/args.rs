//! The command line: what can be said to a command stands in its module. Man pages and completions
//! are generated from this.

use std::fmt::Write as _;

use clap::builder::Styles;
use clap::{CommandFactory, Parser, Subcommand};
use measure::{bench, rstream, tune};

#[cfg(feature = "lua")]
use crate::snsh;
use crate::{
    broker, config, devices, doctor, eids, enable, engine, gain, info, linkgroups, loadtest, look,
    metrics, off, packetblaster, ps, run, ss, stats, top, trace, webhook,
};

const VERSION: &str = concat!(env!("CARGO_PKG_VERSION"), " (build ", env!("SHORTWIRE_BUILD"), ")");

#[derive(Parser)]
#[command(name = "shortwire", version = VERSION, max_term_width = 110, propagate_version = true)]
#[command(about = "TCP programs on one machine talk through shared memory, unchanged")]
#[command(long_about = "TCP programs on one machine talk through shared memory, unchanged.

Start both ends under `shortwire run`: their connections begin as ordinary TCP and, after a few messages, move their bytes \
through shared memory (SMC-D with a no-copy loopback device). A program whose peer does not take part stays on plain TCP \
and notices nothing. No root, no kernel module, no configuration.")]
#[command(after_help = "Examples:
  shortwire run -- redis-server &          a server that takes part
  shortwire run -- redis-benchmark -t get  its client: now through shared memory
  shortwire ss                             which connections do, which do not
  shortwire top                            what they move, now
  shortwire doctor redis-server            what would keep a program from it
  shortwire demo                           how much it gains on this machine

`shortwire help COMMAND` explains each command, as shortwire-COMMAND(1) does.")]
pub struct Args {
    #[command(subcommand)]
    pub command: Command,
}

#[derive(Subcommand)]
pub enum Command {
    Run(Box<run::Run>),
    Ss(ss::Ss),
    Stats(stats::Stats),
    Top(top::Top),
    Metrics(metrics::Metrics),
    Gain(gain::Gain),
    Info(info::Info),
    Config(config::Config),
    Devices(devices::Devices),
    Linkgroups(linkgroups::Linkgroups),
    Off(off::Off),
    On(off::On),
    Broker(broker::Broker),
    Ueid(eids::Ueid),
    Seid(eids::Seid),
    TraceClc(trace::TraceClc),
    Doctor(doctor::Doctor),
    Enable(enable::Enable),
    Disable(enable::Disable),
    Webhook(webhook::Webhook),
    Bench(bench::Bench),
    Tune(tune::Tune),
    Demo(bench::Demo),
    Engine(Box<engine::Engine>),
    Packetblaster(Box<packetblaster::Packetblaster>),
    Loadtest(Box<loadtest::Loadtest>),
    Capture(look::capture::Capture),
    TracePackets(look::ways::TracePackets),
    Rstream(Box<rstream::Rstream>),
    Ps(ps::Ps),
    #[cfg(feature = "lua")]
    Snsh(snsh::Snsh),
}

/// The list of commands in `shortwire help` and shortwire(1): by what they are for, the usual ones
/// first. A command stands here once; a part of one (`bench engine`) may stand elsewhere, too.
pub const GROUPS: &[(&str, &[&str])] = &[
    (
        "Sockets: run programs over shared memory",
        &["run", "gain", "trace-clc", "enable", "disable", "off", "on", "config", "webhook"],
    ),
    (
        "Sockets: see connections, and why some are plain TCP",
        &["ss", "top", "stats", "metrics", "doctor", "linkgroups"],
    ),
    ("Sockets: devices and machines", &["info", "devices", "broker", "ueid", "seid"]),
    ("Streams: the rsockets API (programs: run --rsocket)", &["rstream", "bench lock"]),
    (
        "Packets: apps joined by links",
        &[
            "engine",
            "engine top",
            "ps",
            "capture",
            "trace-packets",
            "snsh",
            "packetblaster",
            "loadtest",
            "bench engine",
        ],
    ),
    ("Checksum", &["bench checksum", "tune"]),
    ("First look, and figures", &["demo", "bench"]),
];

/// The definition of the whole command line.
pub fn command() -> clap::Command {
    let command = Args::command();
    let template = format!(
        "{{about-with-newline}}\n{{usage-heading}} {{usage}}\n{}\n{}\n{{options}}{{after-help}}",
        listed(&command),
        heading("Options")
    );
    command.help_template(template)
}

/// The command that these words name.
pub fn find<'a>(command: &'a clap::Command, words: &str) -> Option<&'a clap::Command> {
    words.split(' ').try_fold(command, |command, word| command.find_subcommand(word))
}

fn heading(text: &str) -> String {
    let style = *Styles::default().get_header();
    format!("{style}{text}:{style:#}")
}

/// The commands by group, a line for each. What was left out of this build is left out here.
fn listed(command: &clap::Command) -> String {
    let style = *Styles::default().get_literal();
    let mut text = String::new();
    for (group, names) in GROUPS {
        let _ = writeln!(text, "\n{}", heading(group));
        for name in *names {
            if let Some(about) = find(command, name).and_then(clap::Command::get_about) {
                let _ = writeln!(text, "  {style}{name:<16}{style:#}{about}");
            }
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_command_is_in_one_group() {
        let command = command();
        let named: Vec<&str> = GROUPS.iter().flat_map(|(_, names)| names.iter().copied()).collect();
        for command in command.get_subcommands() {
            let name = command.get_name();
            assert_eq!(named.iter().filter(|other| **other == name).count(), 1, "{name} in GROUPS");
        }
        if cfg!(feature = "lua") {
            let unknown = named.iter().filter(|name| find(&command, name).is_none());
            assert_eq!(unknown.collect::<Vec<_>>(), Vec::<&&str>::new(), "no such commands");
        }
    }

    #[test]
    fn the_list_fits_80_columns() {
        let mut command = command().term_width(80);
        for help in [command.render_help(), command.render_long_help()] {
            let text = help.to_string();
            let wide: Vec<_> = text.lines().filter(|line| line.chars().count() > 80).collect();
            assert!(wide.is_empty(), "{wide:#?}");
            for (group, names) in GROUPS {
                assert!(
                    text.contains(&format!("\n{group}:\n  {}", names[0])),
                    "{group} in\n{text}"
                );
            }
        }
    }

    /// Lines that begin with blanks are examples and tables: a terminal of 80 columns breaks none.
    #[test]
    fn no_example_is_wrapped() {
        fn wide(command: &clap::Command, found: &mut Vec<String>) {
            let after = [command.get_after_help(), command.get_after_long_help()];
            let text: String = after.into_iter().flatten().map(ToString::to_string).collect();
            let lines = text.lines().filter(|line| line.starts_with("  "));
            let wide_lines = lines.filter(|line| line.chars().count() > 80);
            found.extend(wide_lines.map(|line| format!("{}: {line}", command.get_name())));
            command.get_subcommands().for_each(|command| wide(command, found));
        }
        let mut found = Vec::new();
        wide(&command(), &mut found);
        assert!(found.is_empty(), "{found:#?}");
    }
}
