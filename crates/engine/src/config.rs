//! A network of apps and links as a plain value. Nothing happens until an engine takes it over.

use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::fmt;
use std::str::FromStr;

use serde::Serialize;
use toml::Table;

mod check;
mod file;
mod graphviz;

pub(crate) use check::Problem;
pub use check::Problems;
pub use file::{ConfigFile, FileError, Settings};

/// What an app is to be.
#[derive(Debug, Clone, PartialEq)]
pub struct AppSpec {
    /// Name of the kind, in a [`Registry`](crate::Registry).
    pub kind: String,
    /// Arguments, by key.
    pub args: Table,
    /// Number of the thread whose engine runs it.
    pub thread: usize,
}

/// `from.output -> to.input`
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct LinkSpec {
    /// The output.
    pub from: PortSpec,
    /// The input.
    pub to: PortSpec,
}

/// `app.port`
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct PortSpec {
    /// Name of the app.
    pub app: String,
    /// Name of its input or output.
    pub port: String,
}

/// Why something could not be put into a configuration.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ConfigError {
    /// This cannot be the name of an app or a port.
    #[error("'{0}' is not a name: letters, digits and '_' make one")]
    Name(String),
    /// A second app of this name.
    #[error("there are two apps named '{0}'")]
    Twice(String),
    /// This is no link as [`LinkSpec`] is written.
    #[error("'{0}' is not a link: write \"app.output -> app.input\"")]
    Link(String),
    /// The app, and why its arguments make no table.
    #[error("app '{0}': arguments cannot be written as a table: {1}")]
    Args(String, String),
}

/// Apps and links by name.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Config {
    apps: BTreeMap<String, AppSpec>,
    links: Vec<LinkSpec>,
    /// The same, to find one among many.
    linked: HashSet<LinkSpec>,
}

impl Config {
    /// Without apps and links.
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds an app. `args` is the kind's own arguments struct, a [`Table`], or `()` for none.
    pub fn app(
        &mut self,
        name: &str,
        kind: &str,
        args: impl Serialize,
    ) -> Result<&mut Self, ConfigError> {
        self.app_on(0, name, kind, args)
    }

    /// Adds an app that runs on another thread.
    pub fn app_on(
        &mut self,
        thread: usize,
        name: &str,
        kind: &str,
        args: impl Serialize,
    ) -> Result<&mut Self, ConfigError> {
        let args =
            to_table(&args).map_err(|problem| ConfigError::Args(name.to_string(), problem))?;
        self.insert(name, AppSpec { kind: kind.to_string(), args, thread })?;
        Ok(self)
    }

    pub(crate) fn insert(&mut self, name: &str, spec: AppSpec) -> Result<(), ConfigError> {
        check_name(name)?;
        if self.apps.contains_key(name) {
            return Err(ConfigError::Twice(name.to_string()));
        }
        self.apps.insert(name.to_string(), spec);
        Ok(())
    }

    /// Adds a link, written `"a.output -> b.input"`. The same link twice is one link.
    pub fn link(&mut self, link: &str) -> Result<&mut Self, ConfigError> {
        let link: LinkSpec = link.parse()?;
        if self.linked.insert(link.clone()) {
            self.links.push(link);
        }
        Ok(self)
    }

    /// Apps in the order of their names.
    pub fn apps(&self) -> impl Iterator<Item = (&str, &AppSpec)> {
        self.apps.iter().map(|(name, spec)| (name.as_str(), spec))
    }

    /// Links in the order in which they were added.
    pub fn links(&self) -> &[LinkSpec] {
        &self.links
    }

    /// The apps of a thread, and the links with at least one end there.
    pub fn part(&self, thread: usize) -> Self {
        let mut part = self.clone();
        part.apps.retain(|_, spec| spec.thread == thread);
        let apps = &part.apps;
        let here =
            |link: &LinkSpec| apps.contains_key(&link.from.app) || apps.contains_key(&link.to.app);
        part.links.retain(here);
        part.linked.retain(here);
        part
    }

    /// The threads that have apps, in order.
    pub fn threads(&self) -> Vec<usize> {
        let threads: BTreeSet<usize> = self.apps.values().map(|spec| spec.thread).collect();
        threads.into_iter().collect()
    }

    /// The app of this name.
    pub fn get(&self, app: &str) -> Option<&AppSpec> {
        self.apps.get(app)
    }

    /// Takes an app and its links out.
    pub fn remove(&mut self, app: &str) -> Option<AppSpec> {
        let elsewhere = |link: &LinkSpec| link.from.app != app && link.to.app != app;
        self.links.retain(elsewhere);
        self.linked.retain(elsewhere);
        self.apps.remove(app)
    }
}

fn to_table(args: &impl Serialize) -> Result<Table, String> {
    // A unit and unit structs mean no arguments; TOML has no word for them.
    match toml::Value::try_from(args) {
        Ok(toml::Value::Table(table)) => Ok(table),
        Ok(other) => Err(format!("{} is not a table", other.type_str())),
        Err(_) if size_of_val(args) == 0 => Ok(Table::new()),
        Err(error) => Err(error.to_string()),
    }
}

fn check_name(name: &str) -> Result<(), ConfigError> {
    let valid = !name.is_empty() && name.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'_');
    if valid { Ok(()) } else { Err(ConfigError::Name(name.to_string())) }
}

impl FromStr for LinkSpec {
    type Err = ConfigError;

    fn from_str(text: &str) -> Result<Self, ConfigError> {
        let wrong = || ConfigError::Link(text.to_string());
        let (from, to) = text.split_once("->").ok_or_else(wrong)?;
        let port = |text: &str| {
            let (app, port) = text.trim().split_once('.').ok_or_else(wrong)?;
            let (app, port) = (app.trim(), port.trim());
            check_name(app).and(check_name(port)).map_err(|_| wrong())?;
            Ok(PortSpec { app: app.to_string(), port: port.to_string() })
        };
        Ok(Self { from: port(from)?, to: port(to)? })
    }
}

impl fmt::Display for LinkSpec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{} -> {}.{}", self.from.app, self.from.port, self.to.app, self.to.port)
    }
}
