//! What an app is: the two traits that every one implements, and what it sees of its surroundings.
//!
//! [`App`] is what the engine calls while packets move: one dynamic call per app and breath.
//! [`Kind`] is what a configuration names: ports, arguments, constructor. Inside of an app
//! everything is static.

use std::any::Any;
use std::fmt;
use std::path::PathBuf;
use std::rc::Rc;

use serde::de::DeserializeOwned;

use crate::args::ArgError;
use crate::link::Link;

/// An instance at work. Every method has a default that does nothing.
pub trait App: Any {
    /// Brings packets into the engine: from an interface, a file, thin air. Once per breath, for
    /// kinds with [`Kind::PULLS`].
    fn pull(&mut self, _io: &Io) {}

    /// Takes what waits on the inputs. Once per breath, for apps with an input link.
    fn push(&mut self, _io: &Io) {}

    /// About every millisecond ([`crate::engine::Options::tick`]).
    fn tick(&mut self, _io: &Io) {}

    /// After a link was attached to a port. `index` is what [`Io::input`] or [`Io::output`] takes.
    fn link(&mut self, _direction: Direction, _port: &str, _index: usize) {}

    /// After the link of a port was removed. Indices of [`Ports::Any`] may have moved: `link`
    /// follows for each that did.
    fn unlink(&mut self, _direction: Direction, _port: &str) {}

    /// Values for [`Kind::COUNTERS`], in that order; they count up from the start of the app.
    /// Called when counters are published, not per packet.
    fn counters(&self, _values: &mut [u64]) {}

    /// Lines for the report of apps.
    fn report(&self, _out: &mut dyn fmt::Write) -> fmt::Result {
        Ok(())
    }

    /// Something that an operator should hear now: an interface went away or came back. Asked at
    /// each tick.
    fn notice(&mut self) -> Option<String> {
        None
    }

    /// What keeps the work of this app from being whole, though it runs: packets that were lost at
    /// the end of the engine, an input that is damaged. Whoever ends an engine ends with an error.
    fn problem(&self) -> Option<&str> {
        None
    }

    /// True when nothing will come from this app any more, such as a reader at the end of its file.
    fn finished(&self) -> bool {
        false
    }

    /// Before the app is removed or restarted. Files are flushed and interfaces released here.
    fn stop(&mut self) -> Result<(), AppError> {
        Ok(())
    }
}

/// A kind of app, as a configuration names it.
pub trait Kind: App + Sized {
    /// What a configuration calls it; unique in a registry.
    const NAME: &'static str;
    /// One line for listings.
    const ABOUT: &'static str;
    /// Ports that packets come in by.
    const INPUTS: Ports = Ports::None;
    /// Ports that packets leave by.
    const OUTPUTS: Ports = Ports::None;
    /// Whether [`App::pull`] does anything. Such apps are where the order of a breath starts.
    const PULLS: bool = false;
    /// Names of the app's own counters.
    const COUNTERS: &'static [&'static str] = &[];

    /// The arguments. Unknown keys, missing ones and wrong types are reported with the app and the
    /// key.
    type Args: DeserializeOwned;

    /// What the types of the arguments cannot say, checked before anything is changed.
    fn check(_args: &Self::Args) -> Result<(), ArgError> {
        Ok(())
    }

    /// The file that an instance would read or write. A configuration in which one app writes what
    /// another reads or writes is refused: the file would be emptied under it.
    fn file(_args: &Self::Args) -> Option<FileUse> {
        None
    }

    /// Makes an instance, which owns what it opens. An error is told and leaves the rest of the
    /// network running.
    fn new(args: Self::Args, context: &Context) -> Result<Self, AppError>;

    /// Takes new arguments over without a stop.
    fn reconfigure(&mut self, _args: Self::Args) -> Result<Reconfigured, AppError> {
        Ok(Reconfigured::NeedsRestart)
    }
}

/// A file, as an app uses it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum FileUse {
    /// From its beginning.
    Reads(PathBuf),
    /// It is made, or emptied first.
    Writes(PathBuf),
}

/// How an app took its new arguments.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Reconfigured {
    /// It goes on with them, and with its state.
    Done,
    /// Stop it and make a new one.
    NeedsRestart,
}

/// The ports of one direction.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Ports {
    /// There is none in this direction.
    None,
    /// Exactly these names; the index of a port is its place here, linked or not.
    Named(&'static [&'static str]),
    /// Any names; the indices are the order of the names of those that are linked.
    Any,
}

/// Which way packets go through a port, as its app sees it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Direction {
    /// Into the app.
    Input,
    /// Out of the app.
    Output,
}

/// What a constructor knows beside its arguments.
#[derive(Debug, Clone)]
pub struct Context {
    /// The app's name in the configuration.
    pub name: String,
    /// Number of the engine's thread.
    pub thread: usize,
}

/// Why an app could not start or stop. A sentence for people that says what to do.
#[derive(Debug, thiserror::Error)]
pub enum AppError {
    /// A sentence for people.
    #[error("{0}")]
    Failed(String),
    /// The system refused something.
    #[error("{what}: {error}")]
    Os {
        /// What was tried, and on what.
        what: String,
        /// The system's answer, which the sentence tells: it is no `source`, or it would be told
        /// twice.
        error: std::io::Error,
    },
    /// The arguments cannot be used, or not any more.
    #[error(transparent)]
    Args(#[from] ArgError),
}

impl AppError {
    /// [`Self::Failed`] with this sentence.
    pub fn new(sentence: impl Into<String>) -> Self {
        Self::Failed(sentence.into())
    }

    /// [`Self::Os`]: an operation of the system that was refused.
    pub fn os(what: impl Into<String>, error: impl Into<std::io::Error>) -> Self {
        Self::Os { what: what.into(), error: error.into() }
    }
}

/// The links of an app, and the time of the breath.
pub struct Io {
    pub(crate) inputs: Vec<Option<Rc<Link>>>,
    pub(crate) outputs: Vec<Option<Rc<Link>>>,
    pub(crate) now: u64,
}

impl Io {
    /// Links for an app outside of an engine, for tests of apps: by index, as [`Ports`] says.
    pub fn new(inputs: Vec<Option<Rc<Link>>>, outputs: Vec<Option<Rc<Link>>>, now: u64) -> Self {
        Self { inputs, outputs, now }
    }

    /// The link at an input port; None if it is not linked.
    #[inline]
    pub fn input(&self, index: usize) -> Option<&Link> {
        self.inputs.get(index)?.as_deref()
    }

    /// The link at an output port; None if it is not linked.
    #[inline]
    pub fn output(&self, index: usize) -> Option<&Link> {
        self.outputs.get(index)?.as_deref()
    }

    /// All linked inputs.
    #[inline]
    pub fn inputs(&self) -> impl DoubleEndedIterator<Item = &Link> {
        self.inputs.iter().flatten().map(|link| &**link)
    }

    /// All linked outputs.
    #[inline]
    pub fn outputs(&self) -> impl DoubleEndedIterator<Item = &Link> {
        self.outputs.iter().flatten().map(|link| &**link)
    }

    /// Time of this breath: nanoseconds of CLOCK_MONOTONIC.
    #[inline]
    pub fn now(&self) -> u64 {
        self.now
    }
}
