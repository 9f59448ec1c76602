//! One network, measured: what passed, and whose time it took.

use std::path::Path;
use std::time::Instant;

use anyhow::{Result, ensure};
use engine::clock::cycles;
use engine::lua::{Session, Settings};

use super::{Case, Figures, Wires, plug};

/// Time before a measurement, in which the compiler records its traces.
const WARM_UP: f64 = 0.3;

/// Over the measured time, in nanoseconds.
#[derive(Clone, Copy, Default)]
pub struct Sample {
    /// Packets that the shunt sent, both ways.
    pub packets: u64,
    pub wall: f64,
    /// The time of the packetblasters, with that which the models take in their calls.
    pub blasters: f64,
    /// The time that the models take in the calls of the shunt's cards.
    pub model: f64,
    /// The time of the apps in Lua.
    pub lua: f64,
    /// Packets that found no place in a card or a link.
    pub lost: u64,
}

impl Sample {
    /// Nanoseconds per packet of the shunt itself.
    pub fn cost(&self) -> f64 {
        (self.wall - self.blasters - self.model) / self.packets as f64
    }

    /// Millions of packets per second with all that runs beside the shunt taken off.
    pub fn rate(&self) -> f64 {
        1e3 / self.cost()
    }

    pub fn add_to(&self, figures: &mut Figures, name: &str) {
        let each = |nanos: f64| nanos / self.packets as f64;
        for (part, value) in [
            ("cost", self.cost()),
            ("model", each(self.model)),
            ("blasters", each(self.blasters)),
            ("lua", each(self.lua)),
            ("whole", 1e3 * self.packets as f64 / self.wall),
            ("lost", 100.0 * self.lost as f64 / (self.packets + self.lost) as f64),
        ] {
            figures.add(&format!("{name}: {part}"), value);
        }
    }
}

pub fn measure(case: &Case, seconds: f64, pcap: &Path) -> Result<Sample> {
    let wires = plug()?;
    let session = Session::new(Settings { shared: case.shared, ..Settings::default() })?;
    let arguments =
        [pcap.display().to_string(), case.instances.to_string(), case.driver.to_string()];
    session.run_code(include_str!("network.lua"), &arguments)?;
    breathe(&session, WARM_UP)?;
    let (before, began, ticks) = (State::of(&session, &wires), Instant::now(), cycles());
    breathe(&session, seconds)?;
    let (wall, ticks) = (began.elapsed().as_nanos() as f64, cycles() - ticks);
    let after = State::of(&session, &wires);
    ensure!(session.failures() == 0, "an app in Lua failed");
    let sample = Sample {
        packets: after.packets - before.packets,
        wall,
        blasters: (after.blasters - before.blasters) as f64,
        model: (after.model - before.model) as f64 * wall / ticks as f64,
        lua: (after.lua - before.lua) as f64,
        lost: after.lost - before.lost,
    };
    ensure!(sample.packets > 0, "no packet passed");
    Ok(sample)
}

/// Millions of packets per second through one app in memory, "lua" or "native".
pub fn hop(kind: &str, seconds: f64) -> Result<f64> {
    let session = Session::new(Settings::default())?;
    session.run_code(include_str!("hop.lua"), &[kind.to_string()])?;
    breathe(&session, WARM_UP)?;
    let passed = || {
        let to_sink = |engine: &engine::Engine| -> u64 {
            engine
                .links()
                .filter(|(link, _)| link.to.app == "sink")
                .map(|(_, stats)| stats.rxpackets)
                .sum()
        };
        session.with_engine(to_sink)
    };
    let (before, began) = (passed(), Instant::now());
    breathe(&session, seconds)?;
    let rate = (passed() - before) as f64 / began.elapsed().as_secs_f64() / 1e6;
    ensure!(session.failures() == 0 && rate > 0.0, "no packet passed");
    Ok(rate)
}

fn breathe(session: &Session, seconds: f64) -> Result<()> {
    Ok(session
        .run_code(&format!("engine.main({{ duration = {seconds}, no_report = true }})"), &[])?)
}

/// Sums since the start.
struct State {
    packets: u64,
    blasters: u64,
    lua: u64,
    lost: u64,
    /// In cycles of the processor.
    model: u64,
}

impl State {
    fn of(session: &Session, wires: &Wires) -> Self {
        session.with_engine(|engine| {
            let to_cards = || {
                engine
                    .links()
                    .filter(|(link, _)| link.to.app.starts_with("if") && link.to.port == "rx")
            };
            let to_shunt = to_cards().filter(|(link, _)| !link.to.app.ends_with("_lua"));
            let time = |of: fn(&str) -> bool| {
                engine.app_times().filter(|(app, _)| of(app)).map(|(_, time)| time).sum()
            };
            let dropped: u64 = engine
                .links()
                .filter(|(l, _)| l.from.app.starts_with("if"))
                .map(|(_, s)| s.txdrop)
                .sum();
            Self {
                packets: to_shunt.map(|(_, stats)| stats.rxpackets).sum(),
                blasters: time(|app| app.starts_with("blaster")),
                lua: time(|app| app.ends_with("_lua")),
                lost: dropped,
                model: wires.iter().map(|(wire, end)| wire.stats(*end).cycles).sum(),
            }
        })
    }
}
