//! The command line: what can be said to a command stands in its module. Man page and completions are generated from this.

use clap::{Parser, Subcommand};
use measure::{bench, rstream, tune};

#[cfg(feature = "lua")]
use crate::snsh;
use crate::{
    broker, devices, doctor, eids, engine, info, linkgroups, loadtest, packetblaster, ps, run, ss, stats, top, trace,
};

#[derive(Parser)]
#[command(name = "shortwire", version, max_term_width = 110, propagate_version = true)]
#[command(about = "TCP programs on one machine talk through shared memory, unchanged")]
#[command(long_about = "TCP programs on one machine talk through shared memory, unchanged.

Start both ends under `shortwire run`: their connections begin as ordinary TCP and, after a few messages, move their bytes \
through shared memory (SMC-D with a no-copy loopback device). A program whose peer does not take part stays on plain TCP \
and notices nothing. No root, no kernel module, no configuration.")]
#[command(after_help = "Examples:
  shortwire run -- redis-server &            a server that takes part
  shortwire run -- redis-benchmark -t get    its client: their bytes now go through shared memory
  shortwire ss                               which connections do, and why others do not
  shortwire bench sockets --quick            measure: TCP, Unix sockets, Shortwire

`shortwire help COMMAND` explains each command.")]
pub struct Args {
    #[command(subcommand)]
    pub command: Command,
}

#[derive(Subcommand)]
pub enum Command {
    Run(Box<run::Run>),
    Ss(ss::Ss),
    Stats(stats::Stats),
    Info(info::Info),
    Devices(devices::Devices),
    Linkgroups(linkgroups::Linkgroups),
    Broker(broker::Broker),
    Ueid(eids::Ueid),
    Seid(eids::Seid),
    TraceClc(trace::TraceClc),
    Doctor(doctor::Doctor),
    Bench(bench::Bench),
    Tune(tune::Tune),
    Demo(bench::Demo),
    Engine(Box<engine::Engine>),
    Packetblaster(Box<packetblaster::Packetblaster>),
    Loadtest(Box<loadtest::Loadtest>),
    Rstream(Box<rstream::Rstream>),
    Top(top::Top),
    Ps(ps::Ps),
    #[cfg(feature = "lua")]
    Snsh(snsh::Snsh),
}
