//! Packets per second of small networks in memory: `shapes [SHAPE] [SIZE] [SECONDS]`.
//!
//! Shapes: sink, tee, hop1, hop5, shunt, threads, same1 same16 (a hop, alone and beside 15 of its kind), kinds16 (beside 15
//! hops of different kinds). "Mpps" counts what sources send; for a tee each packet is two at the sinks.

use std::time::{Duration, Instant};

use engine::link::LinkStats;
use engine::{Config, Engine, Options, Pace, Registry, Threads};
use toml::{Table, Value};

const SHAPES: &[&str] = &["sink", "tee", "hop1", "hop5", "shunt", "same1", "same16", "kinds16", "threads"];

fn main() {
    let mut words = std::env::args().skip(1);
    let shape = words.next().unwrap_or_else(|| "all".into());
    let size: usize = words.next().map_or(60, |word| word.parse().expect("SIZE in bytes"));
    let seconds: f64 = words.next().map_or(1.0, |word| word.parse().expect("SECONDS"));
    for name in SHAPES.iter().filter(|name| shape == "all" || shape == **name) {
        let rate = if *name == "threads" { threads(size, seconds) } else { measure(name, size, seconds) };
        println!("{name:8} {size:5} B {rate:8.2} Mpps {:6.2} ns/packet", 1e3 / rate);
    }
}

/// Packets that arrive on the last link of each chain, in millions per second.
fn measure(shape: &str, size: usize, seconds: f64) -> f64 {
    let mut engine = Engine::new(Options::default());
    engine.configure(&network(shape, size)).expect("a valid network");
    let count = |engine: &Engine| -> u64 {
        engine.links().filter(|(link, _)| link.from.app.starts_with("src")).map(|(_, stats)| stats.rxpackets).sum()
    };
    run(&mut engine, 0.2);
    let (before, began) = (count(&engine), Instant::now());
    run(&mut engine, seconds);
    (count(&engine) - before) as f64 / began.elapsed().as_secs_f64() / 1e6
}

fn run(engine: &mut Engine, seconds: f64) {
    let until = Instant::now() + Duration::from_secs_f64(seconds);
    while Instant::now() < until {
        for _ in 0..100 {
            engine.breathe();
        }
    }
}

/// Packets that the second thread received.
fn threads(size: usize, seconds: f64) -> f64 {
    let mut config = Config::new();
    config.app_on(0, "src", "Source", args(size)).unwrap().app_on(1, "sink", "Sink", ()).unwrap();
    config.link("src.output -> sink.input").unwrap();
    let mut threads = Threads::new(Options { pace: Pace::Busy, ..Options::default() }, Registry::standard().clone());
    threads.configure(&config).expect("a valid network");
    let received = |threads: &mut Threads| threads.links().values().next().map_or(0, |s: &LinkStats| s.rxpackets);
    std::thread::sleep(Duration::from_millis(200));
    let (before, began) = (received(&mut threads), Instant::now());
    std::thread::sleep(Duration::from_secs_f64(seconds));
    (received(&mut threads) - before) as f64 / began.elapsed().as_secs_f64() / 1e6
}

fn args(size: usize) -> Table {
    Table::from_iter([("size".to_string(), Value::Integer(size as i64))])
}

/// Pass-through apps of different kinds, with arguments that let everything through.
const HOPS: &[(&str, Option<(&str, f64)>)] = &[
    ("Join", None),
    ("Sample", Some(("every", 1.0))),
    ("Split", None),
    ("Tee", None),
    ("RateLimiter", Some(("rate", 1e15))),
    ("DelayedStart", Some(("delay", 0.0))),
];

fn network(shape: &str, size: usize) -> Config {
    let mut config = Config::new();
    match shape {
        "sink" => chain(&mut config, size, 0, &[]),
        "hop1" | "same1" => chain(&mut config, size, 0, &[HOPS[0]]),
        "hop5" => chain(&mut config, size, 0, &[HOPS[0]; 5]),
        "shunt" => (0..2).for_each(|number| chain(&mut config, size, number, &[HOPS[0]])),
        "same16" => (0..16).for_each(|number| chain(&mut config, size, number, &[HOPS[0]])),
        "kinds16" => (0..16).for_each(|number| chain(&mut config, size, number, &[HOPS[number % HOPS.len()]])),
        _ => {
            config.app("src", "Source", args(size)).unwrap().app("tee", "Tee", ()).unwrap();
            config.link("src.output -> tee.input").unwrap();
            for number in 0..2 {
                let sink = format!("sink{number}");
                config.app(&sink, "Sink", ()).unwrap();
                config.link(&format!("tee.output{number} -> {sink}.input")).unwrap();
            }
        }
    }
    config
}

/// A source, hops and a sink.
fn chain(config: &mut Config, size: usize, number: usize, hops: &[(&str, Option<(&str, f64)>)]) {
    config.app(&format!("src{number}"), "Source", args(size)).unwrap();
    let mut from = format!("src{number}.output");
    for (hop, (kind, argument)) in hops.iter().enumerate() {
        let name = format!("hop{number}_{hop}");
        let value = |value: f64| if value == 1.0 { Value::Integer(1) } else { Value::Float(value) };
        let table: Table = argument.iter().map(|(key, number)| (key.to_string(), value(*number))).collect();
        config.app(&name, kind, table).unwrap().link(&format!("{from} -> {name}.input")).unwrap();
        from = format!("{name}.output");
    }
    let sink = format!("sink{number}");
    config.app(&sink, "Sink", ()).unwrap().link(&format!("{from} -> {sink}.input")).unwrap();
}
