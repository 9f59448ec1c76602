//! From one configuration to the next by their difference.
//!
//! Order: links that go, apps that go, apps that come or change, links that come. What is in both
//! and equal is not touched: such an app keeps its state, such a link its packets and counters.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::rc::Rc;

use crate::app::{AppError, Context, Direction, Io, Ports, Reconfigured};
use crate::config::{AppSpec, Config, LinkSpec, Problems};
use crate::engine::{Crossing, Engine, Node};
use crate::link::Link;

/// Why a configuration was not, or not wholly, taken over.
#[derive(Debug, thiserror::Error)]
pub enum ConfigureError {
    /// Nothing was changed.
    #[error(transparent)]
    Refused(#[from] Problems),
    /// Everything else was changed; these apps do not run and what is sent to them is discarded.
    #[error("{}", .0.iter().map(ToString::to_string).collect::<Vec<_>>().join("\n"))]
    Apps(Vec<StartError>),
}

/// An app that could not start, or not stop in order.
#[derive(Debug, thiserror::Error)]
#[error("app '{app}' ({kind}): {error}")]
pub struct StartError {
    /// Its name in the configuration.
    pub app: String,
    /// Its kind.
    pub kind: String,
    /// What it said.
    pub error: AppError,
}

impl Engine {
    /// Makes the network what `config` says. Its threads are not looked at: this engine runs all of
    /// it.
    pub fn configure(&mut self, config: &Config) -> Result<(), ConfigureError> {
        config.check(&self.registry)?;
        self.take_over(config, HashMap::new())
    }

    /// Takes over the part of a checked configuration that is this thread's. `crossings` holds the
    /// ends of those links to and from other threads that are new or were remade; those that stay
    /// are not in it.
    pub(crate) fn configure_part(
        &mut self,
        config: &Config,
        crossings: HashMap<LinkSpec, Crossing>,
    ) -> Result<(), ConfigureError> {
        self.take_over(&config.part(self.options.thread), crossings)
    }

    fn take_over(
        &mut self,
        config: &Config,
        crossings: HashMap<LinkSpec, Crossing>,
    ) -> Result<(), ConfigureError> {
        let mut failures = Vec::new();
        let wanted: HashSet<&LinkSpec> = config.links().iter().collect();
        let crosses = |link: &LinkSpec| {
            config.get(&link.from.app).is_none() || config.get(&link.to.app).is_none()
        };
        let stays = |link: &LinkSpec, crossing: bool| {
            wanted.contains(link) && crosses(link) == crossing && !crossings.contains_key(link)
        };
        let had: HashSet<LinkSpec> = self.crossings.keys().cloned().collect();
        self.remove_links(|link| !stays(link, had.contains(link)));
        self.crossings.retain(|link, _| stays(link, true));
        self.crossings.extend(crossings);
        self.remove_apps(config, &mut failures);
        let mut fresh = HashSet::new();
        // Those that come are put behind these, and into their places at the end.
        let known = self.nodes.len();
        for (name, spec) in config.apps() {
            if self.put_app(known, name, spec, &mut failures) {
                fresh.insert(name.to_string());
            }
        }
        self.nodes.sort_by(|one, other| one.name.cmp(&other.name));
        self.add_links(config, &fresh);
        self.configs += 1;
        self.arrange();
        self.publish_objects();
        self.renew_watch();
        if failures.is_empty() { Ok(()) } else { Err(ConfigureError::Apps(failures)) }
    }

    fn remove_links(&mut self, goes: impl Fn(&LinkSpec) -> bool) {
        let gone: Vec<LinkSpec> = self.links.keys().filter(|link| goes(link)).cloned().collect();
        for link in &gone {
            self.links.remove(link);
        }
        if gone.is_empty() {
            return;
        }
        let mut ends: HashMap<&str, Vec<(Direction, &str)>> = HashMap::new();
        for link in &gone {
            for (direction, end) in [(Direction::Output, &link.from), (Direction::Input, &link.to)]
            {
                ends.entry(&end.app).or_default().push((direction, &end.port));
            }
        }
        let ports = PortLinks::of(&self.links);
        for node in &mut self.nodes {
            let Some(ends) = ends.get(node.name.as_str()) else { continue };
            for (direction, port) in ends {
                node.detach(*direction, port);
            }
            node.attach(&ports, false);
        }
    }

    fn remove_apps(&mut self, config: &Config, failures: &mut Vec<StartError>) {
        self.nodes.retain_mut(|node| {
            let stays = config.get(&node.name).is_some();
            if !stays {
                node.stop(failures);
            }
            stays
        });
    }

    /// Adds or changes an app; the first `known` nodes are in order. True if there is a new
    /// instance.
    fn put_app(
        &mut self,
        known: usize,
        name: &str,
        spec: &AppSpec,
        failures: &mut Vec<StartError>,
    ) -> bool {
        let Some(info) = self.registry.get(&spec.kind).copied() else { return false };
        match self.nodes[..known].binary_search_by(|node| node.name.as_str().cmp(name)) {
            Err(_) => {
                let io = Io::new(Vec::new(), Vec::new(), 0);
                let mut node = Node {
                    name: name.to_string(),
                    spec: spec.clone(),
                    info,
                    app: None,
                    io,
                    cycles: 0,
                };
                node.start(self.options.thread, failures);
                self.nodes.push(node);
                true
            }
            Ok(place) => {
                let node = &mut self.nodes[place];
                let same_kind = node.spec.kind == spec.kind;
                if same_kind && node.spec.args == spec.args && node.app.is_some() {
                    return false;
                }
                node.spec = spec.clone();
                if same_kind && node.reconfigure(failures) {
                    return false;
                }
                node.stop(failures);
                node.info = info;
                node.start(self.options.thread, failures);
                true
            }
        }
    }

    fn add_links(&mut self, config: &Config, fresh: &HashSet<String>) {
        for spec in config.links() {
            self.links.entry(spec.clone()).or_insert_with(|| Rc::new(Link::new()));
        }
        let ports = PortLinks::of(&self.links);
        for node in &mut self.nodes {
            let again = fresh.contains(&node.name);
            node.attach(&ports, again);
        }
    }
}

/// The links of each app, by port: a look through all links for every app would take a second for
/// each ten thousand of them.
#[derive(Default)]
struct PortLinks<'a> {
    inputs: HashMap<&'a str, HashMap<&'a str, &'a Rc<Link>>>,
    outputs: HashMap<&'a str, HashMap<&'a str, &'a Rc<Link>>>,
}

impl<'a> PortLinks<'a> {
    fn of(links: &'a BTreeMap<LinkSpec, Rc<Link>>) -> Self {
        let mut all = Self::default();
        for (LinkSpec { from, to }, link) in links {
            all.inputs.entry(&to.app).or_default().insert(&to.port, link);
            all.outputs.entry(&from.app).or_default().insert(&from.port, link);
        }
        all
    }
}

impl Node {
    fn start(&mut self, thread: usize, failures: &mut Vec<StartError>) {
        let context = Context { name: self.name.clone(), thread };
        match (self.info.make)(&self.spec.args, &context) {
            Ok(app) => self.app = Some(app),
            Err(error) => self.fail(error, failures),
        }
    }

    fn stop(&mut self, failures: &mut Vec<StartError>) {
        if let Some(mut app) = self.app.take()
            && let Err(error) = app.stop()
        {
            self.fail(error, failures);
        }
    }

    /// True if the app goes on with its new arguments, or failed to.
    fn reconfigure(&mut self, failures: &mut Vec<StartError>) -> bool {
        let Some(app) = &mut self.app else { return false };
        match app.reconfigure_from(&self.spec.args) {
            Ok(Reconfigured::Done) => true,
            Ok(Reconfigured::NeedsRestart) => false,
            Err(error) => {
                self.fail(error, failures);
                true
            }
        }
    }

    fn fail(&self, error: AppError, failures: &mut Vec<StartError>) {
        failures.push(StartError { app: self.name.clone(), kind: self.spec.kind.clone(), error });
    }

    fn detach(&mut self, direction: Direction, port: &str) {
        if let Some(app) = &mut self.app {
            app.unlink(direction, port);
        }
    }

    /// Brings the ports into line with the links, and tells the app what is new; all of it `again`
    /// after a restart.
    fn attach(&mut self, ports: &PortLinks, again: bool) {
        let none = HashMap::new();
        let inputs = ports.inputs.get(self.name.as_str()).unwrap_or(&none);
        self.attach_ports(Direction::Input, self.info.inputs, inputs, again);
        let outputs = ports.outputs.get(self.name.as_str()).unwrap_or(&none);
        self.attach_ports(Direction::Output, self.info.outputs, outputs, again);
    }

    fn attach_ports(
        &mut self,
        direction: Direction,
        ports: Ports,
        links: &HashMap<&str, &Rc<Link>>,
        again: bool,
    ) {
        let mut names: Vec<&str> = match ports {
            Ports::None => Vec::new(),
            Ports::Named(names) => names.to_vec(),
            Ports::Any => links.keys().copied().collect(),
        };
        if ports == Ports::Any {
            names.sort_unstable();
        }
        let new: Vec<Option<Rc<Link>>> =
            names.iter().map(|name| links.get(name).map(|link| Rc::clone(link))).collect();
        let slots = match direction {
            Direction::Input => &mut self.io.inputs,
            Direction::Output => &mut self.io.outputs,
        };
        let old = std::mem::replace(slots, new.clone());
        let Some(app) = &mut self.app else { return };
        for (index, (name, link)) in names.iter().zip(&new).enumerate() {
            let same = match (link, old.get(index)) {
                (Some(new), Some(Some(old))) => Rc::ptr_eq(new, old),
                (None, _) => true,
                _ => false,
            };
            if again && link.is_some() || !same {
                app.link(direction, name, index);
            }
        }
    }
}
