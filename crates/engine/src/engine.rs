//! The engine: a network of apps and links on one thread, and its breath.
//!
//! A breath lets every app that pulls bring packets in, in the order of names, then pushes them
//! through the network in topological order, so that a packet usually crosses all of it in one
//! breath. Counters, timers and pacing come after.

use std::collections::{BTreeMap, HashSet};
use std::rc::Rc;
use std::sync::Arc;
use std::time::Instant;

use crate::app::Io;
use crate::clock::{Clock, cycles};
use crate::config::{AppSpec, Config, LinkSpec};
use crate::counters::{self, RunDir};
use crate::crossing::{Receiver, Sender};
use crate::histogram::Histogram;
use crate::link::{Link, LinkStats};
use crate::registry::{Instance, KindInfo, Registry};
use crate::stop::{Call, Stop};
use pace::Pacer;
use publish::Publisher;
use turns::{Turn, Turns};
use watch::Watch;

mod configure;
mod order;
mod pace;
mod publish;
mod run;
mod solo;
mod timers;
mod turns;
mod watch;

pub use configure::{ConfigureError, StartError};
pub use order::push_order;
pub use pace::Pace;
pub use run::{Ended, Until};
pub use solo::{Solo, SoloError};
pub use timers::{TimerId, Timers};

/// How an engine behaves.
#[derive(Debug, Clone)]
pub struct Options {
    /// How long it rests between breaths.
    pub pace: Pace,
    /// Ticks of apps per second.
    pub tick: u32,
    /// Number of the thread, for reports and counters.
    pub thread: usize,
    /// Count processor cycles per app.
    pub cycles: bool,
    /// Keep a histogram of the durations of breaths.
    pub latency: bool,
    /// Take turns of apps that follow each other by one call, where they can be (see
    /// [`together`](crate::together)). False, to compare: one by one.
    pub together: bool,
    /// Where counters are published; None: nowhere.
    pub run_dir: Option<Arc<RunDir>>,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            pace: Pace::default(),
            tick: 1000,
            thread: 0,
            cycles: true,
            latency: true,
            together: true,
            run_dir: None,
        }
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
    /// The far halves of links whose other end is on another thread.
    crossings: BTreeMap<LinkSpec, Crossing>,
    /// Their near halves, in the same order.
    crossing_links: Vec<Option<Rc<Link>>>,
    turns: Turns,
    clock: Clock,
    next_tick: u64,
    timers: Timers,
    breaths: u64,
    configs: u64,
    /// Packets that went to or came from other threads.
    crossed: u64,
    latency: Histogram,
    /// The app that is being called, for whoever finds that it panicked.
    calling: Option<usize>,
    notices: Vec<String>,
    publisher: Publisher,
    watch: Watch,
    pacer: Pacer,
    /// When the next breath is due, if the engine rests until then.
    rests_until: Option<Instant>,
    stop: Stop,
    call: Call,
}

/// The end of a link towards another thread.
pub(crate) enum Crossing {
    Out(Sender),
    In(Receiver),
}

impl Engine {
    /// An engine without apps, which knows the kinds of this crate.
    pub fn new(options: Options) -> Self {
        Self::with_registry(options, Registry::standard().clone())
    }

    /// An engine that knows other kinds of apps.
    pub fn with_registry(options: Options, registry: Registry) -> Self {
        Self {
            publisher: Publisher::new(&options),
            options,
            registry,
            nodes: Vec::new(),
            links: BTreeMap::new(),
            crossings: BTreeMap::new(),
            crossing_links: Vec::new(),
            turns: Turns::default(),
            clock: Clock::new(),
            next_tick: 0,
            timers: Timers::default(),
            breaths: 0,
            configs: 0,
            crossed: 0,
            latency: Histogram::default(),
            calling: None,
            notices: Vec::new(),
            watch: Watch::default(),
            pacer: Pacer::default(),
            rests_until: None,
            stop: Stop::new(),
            call: Call::default(),
        }
    }

    /// The kinds that a configuration can name.
    pub fn registry(&self) -> &Registry {
        &self.registry
    }

    /// The kinds that the next configuration can name.
    pub fn registry_mut(&mut self) -> &mut Registry {
        &mut self.registry
    }

    /// Changes the pace, the rate of ticks, or whether breaths are timed, from the next breath on.
    pub fn options_mut(&mut self) -> &mut Options {
        &mut self.options
    }

    /// The present rest between two breaths.
    pub fn resting(&self) -> std::time::Duration {
        std::time::Duration::from_micros(self.pacer.rest())
    }

    /// One round: pulls, pushes, and the ticks that are due.
    pub fn breathe(&mut self) {
        if self.watch.is_idle() {
            self.breath::<false>();
        } else {
            self.breathe_watched();
        }
    }

    /// Out of the way of the usual breath.
    #[cold]
    #[inline(never)]
    fn breathe_watched(&mut self) {
        self.breath::<true>();
    }

    /// `WATCHED` if others look at packets.
    #[inline(always)]
    fn breath<const WATCHED: bool>(&mut self) {
        let began = cycles();
        let now = self.clock.at(began);
        if !self.crossings.is_empty() {
            self.cross(true);
            if WATCHED {
                self.show_crossed(now);
            }
        }
        self.take_turns::<WATCHED>(now, began);
        if !self.crossings.is_empty() {
            self.cross(false);
        }
        self.breaths += 1;
        if self.options.latency {
            self.latency.record(self.clock.nanos(cycles().saturating_sub(began)));
        }
        if now >= self.next_tick {
            self.tick();
        }
    }

    /// Moves packets from or to other threads.
    fn cross(&mut self, inwards: bool) {
        for (crossing, link) in self.crossings.values_mut().zip(&self.crossing_links) {
            let Some(link) = link else { continue };
            self.crossed += match crossing {
                Crossing::In(receiver) if inwards => receiver.receive_into(link),
                Crossing::Out(sender) if !inwards => sender.send_from(link),
                _ => 0,
            } as u64;
        }
    }

    #[cold]
    fn show_crossed(&mut self, now: u64) {
        for (crossing, link) in self.crossings.values().zip(&self.crossing_links) {
            if let (Crossing::In(_), Some(link)) = (crossing, link) {
                self.watch.crossed(link, now);
            }
        }
    }

    #[cold]
    fn tick(&mut self) {
        let now = self.clock.set();
        self.look_for_lookers(now);
        // Ticks that were missed are not made up for.
        self.next_tick = now + 1_000_000_000 / u64::from(self.options.tick.max(1));
        for (place, node) in self.nodes.iter_mut().enumerate() {
            self.calling = Some(place);
            node.io.now = now;
            if let Some(app) = &mut node.app {
                app.tick(&node.io);
                if let Some(notice) = app.notice() {
                    self.notices.push(format!("app '{}': {notice}", node.name));
                }
            }
            // What was sent here may be taken before this app has its turn.
            if !self.watch.is_idle() {
                self.watch.after(place, node, now);
            }
        }
        self.calling = None;
        self.timers.run(now);
        self.publish();
    }

    /// Functions to be called at a time, to the precision of a tick.
    pub fn timers(&mut self) -> &mut Timers {
        &mut self.timers
    }

    /// Nanoseconds of CLOCK_MONOTONIC.
    pub fn now(&mut self) -> u64 {
        self.clock.set()
    }

    /// What an operator should hear, since the last call.
    pub fn take_notices(&mut self) -> Vec<String> {
        std::mem::take(&mut self.notices)
    }

    /// A way to stop [`Self::run`] from another thread.
    pub fn stopper(&self) -> Stop {
        self.stop.clone()
    }

    /// Whose requests end a rest.
    pub(crate) fn listen_to(&mut self, call: Call) {
        self.call = call;
    }

    /// Durations of breaths in nanoseconds.
    pub fn latency(&self) -> &Histogram {
        &self.latency
    }

    /// Nanoseconds that apps took, by name. Zeros if cycles are not counted.
    pub fn app_times(&self) -> impl Iterator<Item = (&str, u64)> {
        self.nodes.iter().map(|node| (node.name.as_str(), self.clock.nanos(node.cycles)))
    }

    /// Whether all apps that can tell have nothing more to send, and nothing waits on links.
    pub fn finished(&self) -> bool {
        // An interface with nothing linked to its output only sends: it keeps nobody waiting.
        let sources =
            self.nodes.iter().filter(|node| node.info.pulls && node.io.outputs().next().is_some());
        let apps = sources.map(|node| &node.app).all(|app| match app {
            Some(app) => app.finished(),
            None => true,
        });
        let arrived = self.crossings.values().all(|crossing| match crossing {
            Crossing::In(receiver) => receiver.is_empty(),
            Crossing::Out(_) => true,
        });
        apps && arrived && self.links.values().all(|link| link.is_empty())
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

    /// All apps that run, in the order of their names.
    pub fn apps(&self) -> impl Iterator<Item = (&str, &dyn crate::app::App)> {
        self.nodes.iter().filter_map(|node| {
            let app: &dyn crate::app::App = node.app.as_deref()?;
            Some((node.name.as_str(), app))
        })
    }

    /// Apps that could not start, or failed to take over new arguments, in the order of their names.
    pub fn failed(&self) -> impl Iterator<Item = &str> {
        self.nodes.iter().filter(|node| node.app.is_none()).map(|node| node.name.as_str())
    }

    /// Apps that run and whose work is not whole, and why.
    pub fn problems(&self) -> impl Iterator<Item = (&str, &str)> {
        self.apps().filter_map(|(name, app)| Some((name, app.problem()?)))
    }

    /// Packets that an app had taken from its links and could not pass on, where there are some.
    pub fn lost(&self) -> impl Iterator<Item = (&str, u64)> {
        self.nodes.iter().filter_map(|node| {
            let lost = crate::report::lost(node.info.counters, node.app.as_deref()?);
            (lost > 0).then_some((node.name.as_str(), lost))
        })
    }

    /// How many apps bring packets into the network, and how many of them run.
    pub fn sources(&self) -> (usize, usize) {
        let sources =
            self.nodes.iter().filter(|node| node.info.pulls && node.io.outputs().next().is_some());
        sources.fold((0, 0), |(all, run), node| (all + 1, run + usize::from(node.app.is_some())))
    }

    fn node(&self, name: &str) -> Option<&Node> {
        self.nodes
            .binary_search_by(|node| node.name.as_str().cmp(name))
            .ok()
            .map(|place| &self.nodes[place])
    }

    /// The app that was called last and did not return.
    pub(crate) fn calling(&self) -> Option<&str> {
        self.calling.map(|place| self.nodes[place].name.as_str())
    }

    /// Packets that went to or came from other threads.
    pub fn crossed(&self) -> u64 {
        self.crossed
    }

    /// Breaths so far.
    pub fn breaths(&self) -> u64 {
        self.breaths
    }

    /// Stops all apps and removes all links.
    pub fn stop(&mut self) -> Result<(), ConfigureError> {
        self.configure(&Config::new())
    }

    /// Puts the steps of a breath in order.
    fn arrange(&mut self) {
        let mut pulling: HashSet<&str> = self
            .nodes
            .iter()
            .filter(|node| node.info.pulls)
            .map(|node| node.name.as_str())
            .collect();
        // What other threads send is pulled in, too.
        pulling.extend(
            self.links
                .keys()
                .map(|link| link.from.app.as_str())
                .filter(|app| self.node(app).is_none()),
        );
        let place =
            |name: &str| self.nodes.binary_search_by(|node| node.name.as_str().cmp(name)).ok();
        let pushes: Vec<usize> =
            push_order(self.links.keys(), &pulling).into_iter().filter_map(place).collect();
        // Each app leads to another one of its group, by and by to the first of them, which names it.
        let mut group: Vec<usize> = (0..self.nodes.len()).collect();
        for link in self.links.keys() {
            if let (Some(from), Some(to)) = (place(&link.from.app), place(&link.to.app)) {
                let (from, to) = (first_of(&mut group, from), first_of(&mut group, to));
                group[from.max(to)] = from.min(to);
            }
        }
        // One group breathes after the other, so that the packets of one are out of the way, and of the
        // cache, before the next begins: a network is no slower beside others.
        let mut groups: BTreeMap<usize, [Vec<Turn>; 2]> = BTreeMap::new();
        for (place, _) in self.nodes.iter().enumerate().filter(|(_, node)| node.info.pulls) {
            let [pulls, _] = groups.entry(first_of(&mut group, place)).or_default();
            pulls.push(Turn { place, pulls: true });
        }
        for place in pushes {
            let [_, pushes] = groups.entry(first_of(&mut group, place)).or_default();
            pushes.push(Turn { place, pulls: false });
        }
        self.set_turns(groups.into_values().flatten().flatten().collect());
        self.crossing_links =
            self.crossings.keys().map(|spec| self.links.get(spec).cloned()).collect();
    }
}

/// Follows an app to the first of its group, and halves the way for who comes next.
fn first_of(group: &mut [usize], mut place: usize) -> usize {
    while group[place] != place {
        group[place] = group[group[place]];
        place = group[place];
    }
    place
}

impl Node {
    /// The counters of its kind.
    fn own_counters(&self) -> [u64; counters::MOST] {
        let mut values = [0; counters::MOST];
        let count = self.info.counters.len().min(values.len());
        if let Some(app) = &self.app {
            app.counters(&mut values[..count]);
        }
        values
    }

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
