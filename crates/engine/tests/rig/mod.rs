//! One app between links that tests fill and empty.
#![allow(dead_code)]

use std::collections::BTreeMap;

use engine::{Config, Engine, Options, Packet, Registry};
use serde::Serialize;

/// One app, `x`, with links at these inputs and outputs: fed by hand, and kept for a look.
pub struct Rig(pub Engine);

impl Rig {
    pub fn new(kind: &str, args: impl Serialize, inputs: &[&str], outputs: &[&str]) -> Self {
        let mut config = Config::new();
        config.app("x", kind, args).unwrap();
        for port in inputs {
            config.app(&format!("in_{port}"), "Repeater", ()).unwrap();
            config.link(&format!("in_{port}.output -> x.{port}")).unwrap();
        }
        for port in outputs {
            config
                .app(&format!("out_{port}"), "DelayedStart", BTreeMap::from([("delay", 1e9)]))
                .unwrap();
            config.link(&format!("x.{port} -> out_{port}.input")).unwrap();
        }
        let mut engine = Engine::new(Options::default());
        engine.configure(&config).unwrap();
        Self(engine)
    }

    pub fn send(&mut self, port: &str, frame: &[u8]) -> &mut Self {
        let link = self.0.link(&format!("in_{port}.output -> x.{port}")).unwrap();
        link.transmit(Packet::from_slice(frame).unwrap());
        self.0.breathe();
        self
    }

    pub fn take(&mut self, port: &str) -> Vec<Vec<u8>> {
        let link = self.0.link(&format!("x.{port} -> out_{port}.input")).unwrap();
        std::iter::from_fn(|| link.receive()).map(|packet| packet.to_vec()).collect()
    }

    /// The only frame that came out.
    pub fn one(&mut self, port: &str) -> Vec<u8> {
        let mut all = self.take(port);
        assert_eq!(all.len(), 1, "frames at {port}");
        all.remove(0)
    }

    pub fn count(&mut self, ports: &[&str]) -> Vec<usize> {
        ports.iter().map(|port| self.take(port).len()).collect()
    }

    /// The value of the app's own counter.
    pub fn counter(&self, kind: &str, name: &str) -> u64 {
        let (_, app) = self.0.apps().find(|(name, _)| *name == "x").unwrap();
        let counters = Registry::standard().get(kind).unwrap().counters;
        let place = counters.iter().position(|counter| *counter == name).unwrap();
        let mut values = vec![0; counters.len()];
        app.counters(&mut values);
        values[place]
    }
}
