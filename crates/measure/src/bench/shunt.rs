//! `shortwire bench shunt`: the experiment of Snabb's issue 612 between models of the card.
//!
//! There two instances of one driver in Lua, sharing their code, moved 20.2 million packets per
//! second, and 7.6 when each had declared a type of its own for the same registers. Here the driver
//! is compiled; apps in Lua stand where it stood.

use std::io::Write;
use std::path::Path;
use std::process::ExitCode;

use anyhow::{Context, Result};
use engine::nic::i82599::model::{Spec, Wire, alias};
use terminal::signals;
use terminal::units::parse_seconds;

use super::machine::Machine;
use super::progress::Progress;
use super::rows::{self, Figures};
use crate::processors::{pinned, two_cpus};

mod measure;
mod report;

/// Bytes of a packet with its Ethernet header, without the checksum, as in the file of the source
/// document.
const SIZE: usize = 64;
/// What `--quick` makes of the options.
const QUICK_SECONDS: f64 = 0.3;
const QUICK_ROUNDS: u32 = 3;

/// A network to measure.
#[derive(Clone, Copy)]
struct Case {
    name: &'static str,
    instances: u32,
    /// As `network.lua` calls it.
    driver: &'static str,
    /// Instances share their code.
    shared: bool,
}

const fn case(name: &'static str, instances: u32, driver: &'static str, shared: bool) -> Case {
    Case { name, instances, driver, shared }
}

const CASES: [Case; 7] = [
    case("driver, one instance", 1, "native", false),
    case("driver, two instances", 2, "native", false),
    case("app in Lua, one instance", 1, "same", false),
    case("apps in Lua, own copies, one ctype", 2, "same", false),
    case("apps in Lua, own copies, mixed ctypes", 2, "mixed", false),
    case("apps in Lua, shared code, one ctype", 2, "same", true),
    case("apps in Lua, shared code, mixed ctypes", 2, "mixed", true),
];

/// Rows of one app between a source and a sink, and what the app is.
const HOPS: [(&str, &str); 2] =
    [("one hop in Lua, 60 B", "lua"), ("one hop, native, 60 B", "native")];

#[derive(clap::Args)]
#[command(
    about = "Repeat the experiment of two driver instances that slow each other, between models of a network card"
)]
#[command(
    long_about = "Joins two models of the Intel 82599 by a shunt, with a packetblaster that replays packets of 64 bytes at the far end of \
each cable, on one processor: one instance of the driver and two; then with apps in Lua in either direction, with own copies of their code and \
without, with one ctype and with one for each instance. The figures of the source document (Snabb's issue 612) stand beside. What the models \
cost by themselves is measured, taken off, and shown. A model is no network card, and its rate is none of one."
)]
pub struct BenchShunt {
    /// How long each run takes
    #[arg(long, value_name = "N", default_value = "1", value_parser = parse_seconds)]
    pub seconds: f64,
    /// Rounds: each runs every row once
    #[arg(long, value_name = "N", default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..=1000))]
    pub repeat: u32,
    /// 3 rounds of 0.3 s
    #[arg(long)]
    pub quick: bool,
    /// Print one JSON object
    #[arg(long)]
    pub json: bool,
}

pub fn run(args: &BenchShunt) -> Result<ExitCode> {
    signals::catch_interrupts();
    let (rounds, seconds) = match args.quick {
        true => (args.repeat.min(QUICK_ROUNDS), args.seconds.min(QUICK_SECONDS)),
        false => (args.repeat, args.seconds),
    };
    let machine = Machine::describe(two_cpus());
    let folder = tempfile::tempdir().context("cannot make a temporary folder")?;
    let pcap = folder.path().join("64.pcap");
    write_pcap(&pcap)?;
    let _wires = plug()?;
    let figures = measure_all(rounds, seconds, &pcap)?;
    let table = report::rows(&figures);
    let mut output = std::io::stdout().lock();
    if args.json {
        writeln!(
            output,
            "{}",
            serde_json::to_string_pretty(&rows::json("shunt", &machine, &table, &figures))?
        )?;
    } else {
        output.write_all(rows::text(report::NOTE, &machine, &table, &figures).as_bytes())?;
    }
    Ok(if figures.failed.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// Packets of 64 bytes, as many as there are flows in a bench of cards.
fn write_pcap(path: &Path) -> Result<()> {
    let mut writer = engine::pcap::Writer::create(path, 65536).context("cannot write 64.pcap")?;
    for number in 0..256 {
        let packet = engine::nic::i82599::model::generated(SIZE, number);
        writer.write(0, &packet).map_err(|(error, _)| error).context("cannot write 64.pcap")?;
    }
    writer.flush().map_err(|(error, _)| error).context("cannot write 64.pcap")
}

/// The addresses of the source document: `.0` are the cards of the shunt, `.1` those of the
/// packetblasters.
const CARDS: [(&str, &str); 4] = [
    ("0000:82:00.0", "model:8200,cable=8201"),
    ("0000:82:00.1", "model:8201,cable=8200"),
    ("0000:83:00.0", "model:8300,cable=8301"),
    ("0000:83:00.1", "model:8301,cable=8300"),
];

/// The wires, with the end of each that is the shunt's.
type Wires = Vec<(std::sync::Arc<Wire>, usize)>;

fn plug() -> Result<Wires> {
    let mut wires = Wires::new();
    for (address, model) in CARDS {
        let spec: Spec = model.parse()?;
        alias(address, spec.clone());
        if address.ends_with(".0") {
            wires.push(Wire::of(&spec)?);
        }
    }
    Ok(wires)
}

/// Rounds outermost, so that what disturbs the machine disturbs all rows alike.
fn measure_all(rounds: u32, seconds: f64, pcap: &Path) -> Result<Figures> {
    let mut figures = Figures::new(rounds);
    let progress = Progress::new((CASES.len() + HOPS.len()) * rounds as usize);
    for round in 0..rounds {
        let mut turn = |name: &'static str,
                        work: &mut (dyn FnMut(&mut Figures) -> Result<f64> + Send)|
         -> Result<()> {
            if figures.has_failed(name) {
                return Ok(());
            }
            let label = format!("round {}/{rounds}: {name}", round + 1);
            progress.begin(&label);
            let outcome = pinned(|| work(&mut figures)).and_then(|outcome| outcome);
            signals::go_on_unless_interrupted("; nothing that was made for it is left")?;
            match outcome {
                Ok(rate) => progress.end(&label, &format!("{rate:.2} Mpps")),
                Err(error) => {
                    progress.end(&label, &format!("FAILED: {error:#}"));
                    figures.failed.push((name.to_string(), format!("{error:#}")));
                }
            }
            Ok(())
        };
        for case in CASES {
            turn(case.name, &mut |figures| {
                let sample = measure::measure(&case, seconds, pcap)?;
                sample.add_to(figures, case.name);
                Ok(sample.rate())
            })?;
        }
        for (name, kind) in HOPS {
            turn(name, &mut |figures| {
                let rate = measure::hop(kind, seconds)?;
                figures.add(name, rate);
                Ok(rate)
            })?;
        }
    }
    progress.finish();
    Ok(figures)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_networks_run() {
        let folder = tempfile::tempdir().unwrap();
        let pcap = folder.path().join("64.pcap");
        write_pcap(&pcap).unwrap();
        let mut figures = Figures::new(1);
        for case in CASES {
            let sample = pinned(|| measure::measure(&case, 0.02, &pcap)).unwrap().unwrap();
            assert!(
                sample.cost() > 0.0 && sample.model > 0.0 && sample.blasters > 0.0,
                "{}",
                case.name
            );
            assert_eq!(sample.lua > 0.0, case.driver != "native", "{}", case.name);
            sample.add_to(&mut figures, case.name);
        }
        for (name, kind) in HOPS {
            figures.add(name, pinned(|| measure::hop(kind, 0.02)).unwrap().unwrap());
        }
        let rows = report::rows(&figures);
        let text = rows::text(report::NOTE, &Machine::describe(None), &rows, &figures);
        for part in [
            "the document, patched",
            "1.03",
            "26 Mpps",
            "taken off: the models",
            "no figures of a network card",
            "Snabb's hop",
            "0.50 x",
        ] {
            assert!(
                text.contains(part) || part == "1.03" && text.contains("0.97 x"),
                "{part} is missing in\n{text}"
            );
        }
    }

    #[test]
    fn what_is_not_the_shunt_is_taken_off() {
        let sample = measure::Sample {
            packets: 10,
            wall: 1000.0,
            blasters: 400.0,
            model: 300.0,
            ..Default::default()
        };
        assert_eq!((sample.cost(), sample.rate()), (30.0, 1e3 / 30.0));
    }
}
