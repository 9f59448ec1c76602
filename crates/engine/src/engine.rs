//! The engine: a network of apps and links on one thread, and its breath.
//!
//! A breath lets every app that pulls bring packets in, in the order of names, then pushes them through the network in
//! topological order, so that a packet usually crosses all of it in one breath. Counters, timers and pacing come after.

use std::collections::{BTreeMap, HashSet};
use std::rc::Rc;

use crate::app::Io;
use crate::clock::{Clock, cycles};
use crate::config::{AppSpec, Config, LinkSpec};
use crate::link::{Link, LinkStats};
use crate::registry::{Instance, KindInfo, Registry};

mod configure;
mod order;

pub use configure::{ConfigureError, StartError};
pub use order::push_order;

/// How an engine behaves.
#[derive(Debug, Clone)]
pub struct Options {
    /// Ticks of apps per second.
    pub tick: u32,
    /// Number of the thread, for reports and counters.
    pub thread: usize,
    /// Count processor cycles per app.
    pub cycles: bool,
}

impl Default for Options {
    fn default() -> Self {
        Self { tick: 1000, thread: 0, cycles: true }
    }
}

/// An app in the network.
struct Node {
    name: String,
    spec: AppSpec,
    info: KindInfo,
    /// None after a failed start: its inputs are discarded, the rest of the network runs.
    app: Option<Box<dyn Instance>>,
    io: Io,
    cycles: u64,
}

/// A network at work.
pub struct Engine {
    options: Options,
    registry: Registry,
    /// In the order of names.
    nodes: Vec<Node>,
    links: BTreeMap<LinkSpec, Rc<Link>>,
    /// Places in `nodes`.
    pulls: Vec<usize>,
    pushes: Vec<usize>,
    clock: Clock,
    next_tick: u64,
    breaths: u64,
    configs: u64,
}

impl Engine {
    pub fn new(options: Options) -> Self {
        Self::with_registry(options, Registry::standard().clone())
    }

    /// An engine that knows other kinds of apps.
    pub fn with_registry(options: Options, registry: Registry) -> Self {
        Self {
            options,
            registry,
            nodes: Vec::new(),
            links: BTreeMap::new(),
            pulls: Vec::new(),
            pushes: Vec::new(),
            clock: Clock::new(),
            next_tick: 0,
            breaths: 0,
            configs: 0,
        }
    }

    /// One round: pulls, pushes, and the ticks that are due.
    pub fn breathe(&mut self) {
        let mut before = cycles();
        let now = self.clock.at(before);
        for &place in &self.pulls {
            let node = &mut self.nodes[place];
            node.io.now = now;
            if let Some(app) = &mut node.app {
                app.pull(&node.io);
            }
            before = node.spent(self.options.cycles, before);
        }
        for &place in &self.pushes {
            let node = &mut self.nodes[place];
            node.io.now = now;
            match &mut node.app {
                Some(app) => app.push(&node.io),
                None => node.discard_inputs(),
            }
            before = node.spent(self.options.cycles, before);
        }
        self.breaths += 1;
        if now >= self.next_tick {
            self.tick();
        }
    }

    #[cold]
    fn tick(&mut self) {
        let now = self.clock.set();
        // Ticks that were missed are not made up for.
        self.next_tick = now + 1_000_000_000 / u64::from(self.options.tick.max(1));
        for node in &mut self.nodes {
            node.io.now = now;
            if let Some(app) = &mut node.app {
                app.tick(&node.io);
            }
        }
    }

    /// Links with what passed them, in the order of their names.
    pub fn links(&self) -> impl Iterator<Item = (&LinkSpec, LinkStats)> {
        self.links.iter().map(|(spec, link)| (spec, link.stats()))
    }

    /// A link by its name, such as `"a.output -> b.input"`.
    pub fn link(&self, name: &str) -> Option<&Rc<Link>> {
        self.links.get(&name.parse().ok()?)
    }

    /// An app, if it is of this kind.
    pub fn app<K: 'static>(&self, name: &str) -> Option<&K> {
        let app: &dyn std::any::Any = self.node(name)?.app.as_deref()?;
        app.downcast_ref()
    }

    fn node(&self, name: &str) -> Option<&Node> {
        self.nodes.binary_search_by(|node| node.name.as_str().cmp(name)).ok().map(|place| &self.nodes[place])
    }

    pub fn breaths(&self) -> u64 {
        self.breaths
    }

    /// Stops all apps and removes all links.
    pub fn stop(&mut self) -> Result<(), ConfigureError> {
        self.configure(&Config::new())
    }

    /// Puts the steps of a breath in order.
    fn arrange(&mut self) {
        let pulling: HashSet<&str> =
            self.nodes.iter().filter(|node| node.info.pulls).map(|node| node.name.as_str()).collect();
        let place = |name: &str| self.nodes.binary_search_by(|node| node.name.as_str().cmp(name)).ok();
        let pushes = push_order(self.links.keys(), &pulling).into_iter().filter_map(place).collect();
        self.pulls = (0..self.nodes.len()).filter(|&i| self.nodes[i].info.pulls).collect();
        self.pushes = pushes;
    }
}

impl Node {
    #[cold]
    fn discard_inputs(&self) {
        for input in self.io.inputs() {
            input.discard();
        }
    }

    /// Adds the cycles since `before` to the app and returns the counter.
    #[inline(always)]
    fn spent(&mut self, count: bool, before: u64) -> u64 {
        if !count {
            return before;
        }
        let now = cycles();
        self.cycles += now.wrapping_sub(before);
        now
    }
}

impl Drop for Engine {
    fn drop(&mut self) {
        // Apps release what they hold; there is nobody left to tell about failures.
        let _ = self.stop();
    }
}
