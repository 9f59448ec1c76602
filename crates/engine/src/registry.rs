//! The kinds of apps that a configuration can name.

use std::collections::BTreeMap;
use std::sync::OnceLock;

use toml::Table;

use crate::app::{App, AppError, Context, FileUse, Kind, Ports, Reconfigured};
use crate::args::{self, ArgError};
use crate::together::Together;

/// A kind without its type.
#[derive(Clone, Copy)]
pub struct KindInfo {
    /// [`Kind::NAME`].
    pub name: &'static str,
    /// [`Kind::ABOUT`].
    pub about: &'static str,
    /// [`Kind::INPUTS`].
    pub inputs: Ports,
    /// [`Kind::OUTPUTS`].
    pub outputs: Ports,
    /// [`Kind::PULLS`].
    pub pulls: bool,
    /// [`Kind::COUNTERS`].
    pub counters: &'static [&'static str],
    /// Everything that is wrong with arguments: their keys, their types, and what [`Kind::check`]
    /// says.
    pub check: fn(&Table) -> Vec<ArgError>,
    /// [`Kind::file`]; None also for arguments that are wrong.
    pub file: fn(&Table) -> Option<FileUse>,
    /// [`Kind::new`].
    pub make: Make,
}

/// A constructor without its type.
pub type Make = fn(&Table, &Context) -> Result<Box<dyn Instance>, AppError>;

/// An instance without its type: an app that takes its arguments as a table.
pub trait Instance: App {
    /// [`Kind::reconfigure`], behind the check of keys and types.
    fn reconfigure_from(&mut self, args: &Table) -> Result<Reconfigured, AppError>;

    /// How the app can take its turn together with those of others: one in which it `pulls`, or
    /// else pushes. None: it is called by itself.
    fn together(&self, _pulls: bool) -> Option<Together> {
        None
    }

    /// A turn that was taken together with others ended in this error.
    fn turn_failed(&mut self, _problem: String) {}
}

impl<K: Kind> Instance for K {
    fn reconfigure_from(&mut self, args: &Table) -> Result<Reconfigured, AppError> {
        self.reconfigure(args::parse(args)?)
    }
}

/// Kinds by name.
#[derive(Clone, Default)]
pub struct Registry(BTreeMap<&'static str, KindInfo>);

impl Registry {
    /// All kinds of this crate.
    pub fn standard() -> &'static Self {
        static STANDARD: OnceLock<Registry> = OnceLock::new();
        STANDARD.get_or_init(|| {
            let mut registry = Self::default();
            crate::apps::register(&mut registry);
            registry
        })
    }

    /// Adds a kind, or replaces the one of that name.
    pub fn register<K: Kind>(&mut self) {
        let info = KindInfo {
            name: K::NAME,
            about: K::ABOUT,
            inputs: K::INPUTS,
            outputs: K::OUTPUTS,
            pulls: K::PULLS,
            counters: K::COUNTERS,
            check: |table| {
                let (args, mut problems) = args::parse_all(table);
                problems.extend(args.and_then(|args| K::check(&args).err()));
                problems
            },
            file: |table| K::file(&args::parse(table).ok()?),
            make: |table, context| Ok(Box::new(K::new(args::parse(table)?, context)?)),
        };
        self.add(info);
    }

    /// Adds a kind that is not a type of its own, or replaces the one of that name.
    pub fn add(&mut self, info: KindInfo) {
        self.0.insert(info.name, info);
    }

    /// The kind of this name.
    pub fn get(&self, name: &str) -> Option<&KindInfo> {
        self.0.get(name)
    }

    /// All kinds in the order of their names.
    pub fn kinds(&self) -> impl Iterator<Item = &KindInfo> {
        self.0.values()
    }
}
