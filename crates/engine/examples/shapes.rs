//! Packets per second of small networks in memory: `shapes [SHAPE] [SIZE] [SECONDS]`.

use std::time::{Duration, Instant};

use engine::{Config, Engine, Options};

const SHAPES: &[&str] = &["sink", "tee", "hop1", "hop5", "shunt"];

fn main() {
    let mut words = std::env::args().skip(1);
    let shape = words.next().unwrap_or_else(|| "all".into());
    let size: usize = words.next().map_or(60, |word| word.parse().expect("SIZE in bytes"));
    let seconds: f64 = words.next().map_or(1.0, |word| word.parse().expect("SECONDS"));
    for name in SHAPES.iter().filter(|name| shape == "all" || shape == **name) {
        println!("{name:6} {size:5} B {:8.2} Mpps", measure(name, size, seconds));
    }
}

/// Source packets per second, in millions.
fn measure(shape: &str, size: usize, seconds: f64) -> f64 {
    let mut engine = Engine::new(Options::default());
    engine.configure(&network(shape, size)).expect("a valid network");
    run(&mut engine, 0.2);
    let before = sourced(&engine);
    let began = Instant::now();
    run(&mut engine, seconds);
    (sourced(&engine) - before) as f64 / began.elapsed().as_secs_f64() / 1e6
}

fn run(engine: &mut Engine, seconds: f64) {
    let until = Instant::now() + Duration::from_secs_f64(seconds);
    while Instant::now() < until {
        for _ in 0..1000 {
            engine.breathe();
        }
    }
}

fn sourced(engine: &Engine) -> u64 {
    engine.links().filter(|(link, _)| link.from.app.starts_with("src")).map(|(_, stats)| stats.txpackets).sum()
}

fn network(shape: &str, size: usize) -> Config {
    let mut config = Config::new();
    let args = || toml::Table::from_iter([("size".to_string(), toml::Value::Integer(size as i64))]);
    let mut chain = |number: usize, hops: usize| {
        config.app(&format!("src{number}"), "Source", args()).unwrap();
        let mut from = format!("src{number}.output");
        for hop in 0..hops {
            let name = format!("hop{number}_{hop}");
            config.app(&name, "Join", ()).unwrap().link(&format!("{from} -> {name}.input")).unwrap();
            from = format!("{name}.output");
        }
        let sink = format!("sink{number}");
        config.app(&sink, "Sink", ()).unwrap().link(&format!("{from} -> {sink}.input")).unwrap();
    };
    match shape {
        "sink" => chain(0, 0),
        "hop1" => chain(0, 1),
        "hop5" => chain(0, 5),
        "shunt" => (0..2).for_each(|number| chain(number, 1)),
        _ => {
            config.app("src", "Source", args()).unwrap().app("tee", "Tee", ()).unwrap();
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
