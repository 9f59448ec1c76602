//! What a new configuration touches, and what it leaves alone.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::rc::Rc;

use engine::app::{App, AppError, Context, Direction, Io, Kind, Ports, Reconfigured};
use engine::engine::ConfigureError;
use engine::{Config, Engine, Options, Packet, Registry};
use serde::{Deserialize, Serialize};

thread_local! {
    /// What the apps of the running test were told.
    static LOG: RefCell<Vec<String>> = const { RefCell::new(Vec::new()) };
}

fn log(line: String) {
    LOG.with_borrow_mut(|log| log.push(line));
}

fn logged() -> Vec<String> {
    LOG.take()
}

/// Writes down what happens to it.
struct Probe<const RECONFIGURES: bool> {
    name: String,
    value: i64,
}

#[derive(Serialize, Deserialize, Default, Clone)]
#[serde(deny_unknown_fields)]
struct Value {
    value: i64,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    speed: Option<u32>,
}

fn value(value: i64) -> Value {
    Value { value, speed: None }
}

impl<const R: bool> Kind for Probe<R> {
    const NAME: &'static str = if R { "Supple" } else { "Stiff" };
    const ABOUT: &'static str = "for tests";
    const INPUTS: Ports = Ports::Any;
    const OUTPUTS: Ports = if R { Ports::Any } else { Ports::Named(&["left", "right"]) };
    type Args = Value;

    fn new(args: Value, context: &Context) -> Result<Self, AppError> {
        log(format!("new {} {}", context.name, args.value));
        if args.value < 0 {
            return Err(AppError::new("a negative value"));
        }
        Ok(Self { name: context.name.clone(), value: args.value })
    }

    fn reconfigure(&mut self, args: Value) -> Result<Reconfigured, AppError> {
        if !R {
            return Ok(Reconfigured::NeedsRestart);
        }
        log(format!("reconfigure {} {} -> {}", self.name, self.value, args.value));
        self.value = args.value;
        Ok(Reconfigured::Done)
    }
}

impl<const R: bool> App for Probe<R> {
    fn push(&mut self, _io: &Io) {
        log(format!("push {}", self.name));
    }

    fn link(&mut self, direction: Direction, port: &str, index: usize) {
        log(format!("link {} {direction:?} {port} {index}", self.name));
    }

    fn unlink(&mut self, direction: Direction, port: &str) {
        log(format!("unlink {} {direction:?} {port}", self.name));
    }

    fn stop(&mut self) -> Result<(), AppError> {
        log(format!("stop {}", self.name));
        Ok(())
    }
}

fn engine() -> Engine {
    let mut registry = Registry::standard().clone();
    registry.register::<Probe<true>>();
    registry.register::<Probe<false>>();
    Engine::with_registry(Options::default(), registry)
}

fn network() -> Config {
    let mut config = Config::new();
    config
        .app("a", "Supple", value(1))
        .unwrap()
        .app("b", "Stiff", value(2))
        .unwrap()
        .app("c", "Supple", value(3))
        .unwrap();
    config.link("a.output -> b.input").unwrap().link("b.left -> c.input").unwrap();
    config
}

#[test]
fn what_stays_is_not_touched() {
    let mut engine = engine();
    engine.configure(&network()).unwrap();
    let kept = engine.link("a.output -> b.input").unwrap().clone();
    kept.transmit(Packet::from_slice(b"stays").unwrap());
    let stats = kept.stats();
    logged();

    let mut next = network();
    next.remove("c");
    next.app("d", "Supple", value(4)).unwrap().link("b.right -> d.input").unwrap();
    engine.configure(&next).unwrap();

    assert!(Rc::ptr_eq(&kept, engine.link("a.output -> b.input").unwrap()));
    assert_eq!((kept.length(), kept.stats()), (1, stats));
    assert_eq!(
        logged(),
        [
            "unlink b Output left",
            "unlink c Input input",
            "stop c",
            "new d 4",
            "link b Output right 1",
            "link d Input input 0"
        ]
    );
    engine.configure(&next).unwrap();
    assert_eq!(logged(), [""; 0]);
}

#[test]
fn new_arguments_reconfigure_or_restart() {
    let mut engine = engine();
    engine.configure(&network()).unwrap();
    let kept = engine.link("a.output -> b.input").unwrap().clone();
    kept.transmit(Packet::from_slice(b"stays").unwrap());
    logged();
    let mut next = network();
    for (name, kind, new) in [("a", "Supple", 10), ("b", "Stiff", 20), ("c", "Stiff", 3)] {
        let links = next.links().to_vec();
        next.remove(name);
        next.app(name, kind, value(new)).unwrap();
        for link in links {
            next.link(&link.to_string()).unwrap();
        }
    }
    engine.configure(&next).unwrap();
    assert_eq!(
        logged(),
        [
            "reconfigure a 1 -> 10",
            "stop b",
            "new b 20",
            "stop c",
            "new c 3",
            "link b Input input 0",
            "link b Output left 0",
            "link c Input input 0",
        ]
    );
    assert_eq!(engine.app::<Probe<true>>("a").unwrap().value, 10);
    assert!(Rc::ptr_eq(&kept, engine.link("a.output -> b.input").unwrap()));
    assert_eq!(kept.length(), 1);
}

#[test]
fn a_refused_configuration_changes_nothing() {
    let mut engine = engine();
    engine.configure(&network()).unwrap();
    logged();
    let mut bad = network();
    bad.remove("a");
    bad.app("a", "Suple", ()).unwrap().app("e", "Stiff", BTreeMap::from([("valeu", 1)])).unwrap();
    bad.app("f", "Supple", BTreeMap::from([("value", "x")]))
        .unwrap()
        .app("g", "Stiff", ())
        .unwrap();
    bad.app("h", "Tee", BTreeMap::from([("size", 1)])).unwrap();
    bad.link("b.middle -> c.other")
        .unwrap()
        .link("bb.right -> c.more")
        .unwrap()
        .link("b.left -> f.x")
        .unwrap();
    let Err(ConfigureError::Refused(problems)) = engine.configure(&bad) else {
        panic!("it was taken")
    };
    assert_eq!(
        problems.to_string().lines().collect::<Vec<_>>(),
        [
            "app 'a': there is no kind 'Suple'; did you mean 'Supple'?",
            "app 'e' (Stiff): unknown key 'valeu'; did you mean 'value'?",
            "app 'f' (Supple): key 'value': invalid type: string \"x\", expected i64",
            "app 'g' (Stiff): missing key 'value'",
            "app 'h' (Tee): unknown key 'size': this kind takes no arguments",
            "link 'b.middle -> c.other': app 'b' (Stiff) has no output 'middle'; it has left, right",
            "link 'bb.right -> c.more': no such app 'bb'; did you mean 'b'?",
            "link 'b.left -> f.x': output 'left' of app 'b' has another link already",
        ]
    );
    assert_eq!(logged(), [""; 0]);
    assert_eq!(engine.links().count(), 2);
}

#[test]
fn a_failed_start_leaves_the_rest_running() {
    let mut engine = engine();
    let mut config = network();
    config
        .app("src", "Source", ())
        .unwrap()
        .app("bad", "Supple", value(-1))
        .unwrap()
        .app("sink", "Sink", ())
        .unwrap();
    config.link("src.one -> bad.input").unwrap().link("src.two -> sink.input").unwrap();
    let Err(ConfigureError::Apps(failures)) = engine.configure(&config) else {
        panic!("all started")
    };
    assert_eq!(failures.len(), 1);
    assert_eq!(failures[0].to_string(), "app 'bad' (Supple): a negative value");
    for _ in 0..100 {
        engine.breathe();
    }
    for link in ["src.one -> bad.input", "src.two -> sink.input"] {
        let stats = engine.link(link).unwrap().stats();
        assert_eq!((stats.txdrop, stats.rxpackets), (0, stats.txpackets), "{link}");
        assert!(stats.txpackets > 0, "{link}");
    }
    engine.stop().unwrap();
}

#[test]
fn names_and_links_are_checked_at_once() {
    let mut config = Config::new();
    assert_eq!(
        config.app("a b", "Sink", ()).unwrap_err().to_string(),
        "'a b' is not a name: letters, digits and '_' make one"
    );
    config.app("a", "Sink", ()).unwrap();
    assert_eq!(config.app("a", "Tee", ()).unwrap_err().to_string(), "there are two apps named 'a'");
    for bad in ["a.x", "a.x -> b", "a -> b.x", "a.x -> b.y.z", " -> ", "a.x > b.y"] {
        assert_eq!(
            config.link(bad).unwrap_err().to_string(),
            format!("'{bad}' is not a link: write \"app.output -> app.input\"")
        );
    }
    config.link("a.x->a.y").unwrap().link("  a.x  ->  a.y ").unwrap();
    assert_eq!(config.links().iter().map(ToString::to_string).collect::<Vec<_>>(), ["a.x -> a.y"]);
}

#[test]
fn the_graph_as_a_drawing() {
    let mut config = Config::new();
    config.app("src", "Source", ()).unwrap().app_on(1, "sink", "Sink", ()).unwrap();
    config.link("src.output -> sink.input").unwrap();
    assert_eq!(
        config.graphviz(),
        r#"digraph config {
  rankdir=LR;
  node [shape=box];
  subgraph cluster_0 {
  label="thread 0";
  "src" [label="src\nSource"];
  }
  subgraph cluster_1 {
  label="thread 1";
  "sink" [label="sink\nSink"];
  }
  "src" -> "sink" [taillabel="output", headlabel="input"];
}
"#
    );
}
