//! A configuration as a TOML file.
//!
//! ```toml
//! links = ["src.output -> tee.input", "tee.a -> sink.input"]
//!
//! [engine]
//! busywait = true
//!
//! [apps]
//! sink = "Sink"            # an app without arguments
//!
//! [apps.src]
//! kind = "Source"          # the keys beside `kind` and `thread` are the app's arguments
//! size = 60
//!
//! [apps.tee]
//! kind = "Tee"
//! thread = 1
//! ```

use std::collections::HashMap;
use std::fmt;
use std::ops::Range;
use std::str::FromStr;
use std::time::Duration;

use serde::Deserialize;
use toml::de::{DeTable, DeValue};
use toml::{Spanned, Table, Value};

use crate::args;
use crate::config::{AppSpec, Config, Problem, Problems};
use crate::engine::{Options, Pace};
use crate::registry::Registry;

/// What a file says: a network, and how its engines behave.
#[derive(Debug, Clone, Default)]
pub struct ConfigFile {
    /// The network.
    pub config: Config,
    /// How its engines behave.
    pub settings: Settings,
    lines: Lines,
}

/// The table `engine` of a file. What is not said is None.
#[derive(Debug, Clone, Default, PartialEq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Settings {
    /// Never sleep.
    pub busywait: Option<bool>,
    /// Breaths per second; excludes `busywait`.
    pub hz: Option<f64>,
    /// Longest sleep of an idle engine in microseconds.
    pub maxsleep: Option<u64>,
    /// Ticks of apps per second.
    pub tick: Option<u32>,
    /// Number of packets that can exist.
    pub packets: Option<usize>,
    /// Count cycles per app.
    pub cycles: Option<bool>,
    /// Keep the latency of breaths.
    pub latency: Option<bool>,
}

/// Where things stand.
#[derive(Debug, Clone, Default)]
struct Lines {
    apps: HashMap<String, usize>,
    keys: HashMap<(String, String), usize>,
    links: HashMap<String, usize>,
}

/// What is wrong with a file, each with its line.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FileError(pub Vec<(usize, String)>);

impl fmt::Display for FileError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (i, (line, problem)) in self.0.iter().enumerate() {
            let end = if i > 0 { "\n" } else { "" };
            write!(f, "{end}line {line}: {problem}")?;
        }
        Ok(())
    }
}

impl std::error::Error for FileError {}

impl Config {
    /// Reads a network from TOML, without looking at kinds and arguments.
    pub fn from_toml(text: &str) -> Result<ConfigFile, FileError> {
        let line =
            |span: Range<usize>| 1 + text[..span.start.min(text.len())].matches('\n').count();
        let refused = |error: toml::de::Error| {
            FileError(vec![(error.span().map_or(1, line), error.message().trim_end().to_string())])
        };
        let places = DeTable::parse(text).map_err(refused)?;
        let values: Table = toml::from_str(text).map_err(refused)?;
        let mut reader = Reader { file: ConfigFile::default(), problems: Vec::new(), line };
        for (key, place) in places.get_ref() {
            let name: &str = key.get_ref();
            let value = &values[name];
            match name {
                "apps" => reader.apps(place, value),
                "links" => reader.links(place),
                "engine" => reader.settings(place, value),
                other => {
                    let near = args::nearest(other, ["apps", "links", "engine"].into_iter());
                    let hint =
                        near.map_or_else(String::new, |near| format!("; did you mean '{near}'?"));
                    reader.wrong(key.span(), format!("unknown key '{other}'{hint}"));
                }
            }
        }
        reader.problems.sort();
        if reader.problems.is_empty() { Ok(reader.file) } else { Err(FileError(reader.problems)) }
    }
}

struct Reader<L> {
    file: ConfigFile,
    problems: Vec<(usize, String)>,
    line: L,
}

impl<L: Fn(Range<usize>) -> usize> Reader<L> {
    fn wrong(&mut self, place: Range<usize>, problem: impl ToString) {
        self.problems.push(((self.line)(place), problem.to_string()));
    }

    fn apps(&mut self, place: &Spanned<DeValue>, value: &Value) {
        let (Some(places), Some(values)) = (place.get_ref().as_table(), value.as_table()) else {
            return self.wrong(place.span(), "'apps' is a table: write [apps.NAME]");
        };
        for (key, place) in places {
            let name = key.get_ref().to_string();
            self.file.lines.apps.insert(name.clone(), (self.line)(key.span()));
            for (argument, _) in place.get_ref().as_table().into_iter().flatten() {
                let at = (self.line)(argument.span());
                self.file.lines.keys.insert((name.clone(), argument.get_ref().to_string()), at);
            }
            match app(&values[&name]) {
                Ok(spec) => {
                    if let Err(error) = self.file.config.insert(&name, spec) {
                        self.wrong(key.span(), error);
                    }
                }
                Err(problem) => self.wrong(key.span(), format!("app '{name}': {problem}")),
            }
        }
    }

    fn links(&mut self, place: &Spanned<DeValue>) {
        let Some(links) = place.get_ref().as_array() else {
            return self.wrong(
                place.span(),
                "'links' is an array: write links = [\"a.output -> b.input\", ...]",
            );
        };
        for link in links {
            let Some(text) = link.get_ref().as_str() else {
                self.wrong(link.span(), "a link is a string: write \"a.output -> b.input\"");
                continue;
            };
            match self.file.config.link(text) {
                Ok(_) => {
                    let name = crate::config::LinkSpec::from_str(text)
                        .map(|link| link.to_string())
                        .unwrap_or_default();
                    self.file.lines.links.insert(name, (self.line)(link.span()));
                }
                Err(error) => self.wrong(link.span(), error),
            }
        }
    }

    fn settings(&mut self, place: &Spanned<DeValue>, value: &Value) {
        let (Some(places), Some(table)) = (place.get_ref().as_table(), value.as_table()) else {
            return self.wrong(place.span(), "'engine' is a table: write [engine]");
        };
        match args::parse::<Settings>(table) {
            Ok(settings) if settings.hz.is_some() && settings.busywait == Some(true) => {
                self.wrong(place.span(), "[engine]: 'busywait' and 'hz' exclude each other");
            }
            Ok(settings) => self.file.settings = settings,
            Err(error) => {
                let key = places
                    .iter()
                    .find(|(key, _)| key.get_ref() == error.key())
                    .map(|(key, _)| key.span());
                self.wrong(key.unwrap_or(place.span()), format!("[engine]: {error}"));
            }
        }
    }
}

/// An app: its kind alone, or a table of kind, thread and arguments.
fn app(value: &Value) -> Result<AppSpec, String> {
    if let Value::String(kind) = value {
        return Ok(AppSpec { kind: kind.clone(), args: Table::new(), thread: 0 });
    }
    let mut args =
        value.as_table().ok_or("write its kind, or a table with 'kind' and arguments")?.clone();
    let kind = match args.remove("kind") {
        Some(Value::String(kind)) => kind,
        Some(_) => return Err("'kind' is a string".into()),
        None => return Err("missing key 'kind'".into()),
    };
    let thread = match args.remove("thread") {
        None => 0,
        Some(thread) => {
            let number = thread.as_integer().and_then(|number| usize::try_from(number).ok());
            number.filter(|number| *number < 1024).ok_or("'thread' is a number from 0 to 1023")?
        }
    };
    Ok(AppSpec { kind, args, thread })
}

impl ConfigFile {
    /// As [`Config::check`], with the line of each problem.
    pub fn check(&self, registry: &Registry) -> Result<(), FileError> {
        self.config.check(registry).map_err(|Problems(problems)| {
            let mut lines: Vec<_> = problems
                .iter()
                .map(|problem| (self.line_of(problem), problem.to_string()))
                .collect();
            lines.sort();
            FileError(lines)
        })
    }

    fn line_of(&self, problem: &Problem) -> usize {
        let lines = &self.lines;
        let line = match problem {
            Problem::Kind { app, .. } => {
                lines.keys.get(&(app.clone(), "kind".to_string())).or_else(|| lines.apps.get(app))
            }
            Problem::Args { app, error, .. } => lines
                .keys
                .get(&(app.clone(), error.key().to_string()))
                .or_else(|| lines.apps.get(app)),
            Problem::App { link, .. }
            | Problem::Port { link, .. }
            | Problem::Taken { link, .. } => lines.links.get(&link.to_string()),
        };
        line.copied().unwrap_or(1)
    }
}

impl Settings {
    /// Puts what the file says in place of the defaults. The number of packets is the process's:
    /// see [`crate::arena::set_slots`].
    pub fn apply(&self, options: &mut Options) {
        let longest = Duration::from_micros(self.maxsleep.unwrap_or(100));
        options.pace = match (self.busywait, self.hz) {
            (_, Some(rate)) => Pace::Hertz(rate),
            (Some(true), None) => Pace::Busy,
            (Some(false), None) => Pace::Adaptive { longest },
            (None, None) if self.maxsleep.is_some() => Pace::Adaptive { longest },
            (None, None) => options.pace,
        };
        options.tick = self.tick.unwrap_or(options.tick);
        options.cycles = self.cycles.unwrap_or(options.cycles);
        options.latency = self.latency.unwrap_or(options.latency);
    }
}
