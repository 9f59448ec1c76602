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

use std::collections::{HashMap, HashSet};
use std::fmt;
use std::ops::Range;
use std::str::FromStr;
use std::time::Duration;

use serde::Deserialize;
use toml::de::{DeTable, DeValue};
use toml::{Spanned, Table, Value};

use crate::args::{self, ArgError};
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
        let reader = Reader::read(text)?;
        if reader.problems.is_empty() {
            Ok(reader.file)
        } else {
            Err(FileError::sorted(reader.problems))
        }
    }

    /// Reads a network from TOML and checks it as [`Config::check`] does. What is wrong is told all
    /// at once, but for a text that is no TOML.
    pub fn from_toml_checked(text: &str, registry: &Registry) -> Result<ConfigFile, FileError> {
        let Reader { file, mut problems, broken, apps_are_known, .. } = Reader::read(text)?;
        if let Err(Problems(more)) = file.config.check(registry) {
            // What follows from another mistake says nothing new.
            let follows = |problem: &Problem| match problem {
                Problem::App { app, .. } => !apps_are_known || broken.contains(app),
                _ => false,
            };
            let new = more.iter().filter(|problem| !follows(problem));
            problems.extend(new.map(|problem| (file.line_of(problem), problem.to_string())));
        }
        if problems.is_empty() { Ok(file) } else { Err(FileError::sorted(problems)) }
    }
}

impl FileError {
    fn sorted(mut problems: Vec<(usize, String)>) -> Self {
        problems.sort();
        Self(problems)
    }
}

struct Reader {
    file: ConfigFile,
    problems: Vec<(usize, String)>,
    /// Apps that are in the file and could not be put into the configuration.
    broken: HashSet<String>,
    /// Whether all that stands for an app was seen.
    apps_are_known: bool,
    /// Where each line ends.
    ends: Vec<usize>,
}

impl Reader {
    fn read(text: &str) -> Result<Self, FileError> {
        let ends = text.match_indices('\n').map(|(at, _)| at).collect();
        let mut reader = Reader {
            file: ConfigFile::default(),
            problems: Vec::new(),
            broken: HashSet::new(),
            apps_are_known: true,
            ends,
        };
        let (places, errors) = DeTable::parse_recoverable(text);
        let values = toml::from_str::<Table>(text);
        // What the parser does not mind and the table does, a key twice for instance, is told too.
        let errors = if errors.is_empty() {
            values.as_ref().err().cloned().into_iter().collect()
        } else {
            errors
        };
        // A table that is there twice makes all its keys so; that it is says enough.
        let mut twice: Option<usize> = None;
        for error in &errors {
            let place = error.span().unwrap_or(0..0);
            let header = |line: &str| line.trim_start().starts_with('[');
            if error.message().contains("duplicate key") {
                let since = twice.and_then(|table| text.get(table..place.start));
                if since.is_some_and(|since| !since.lines().skip(1).any(header)) {
                    continue;
                }
                let before = text.get(..place.start).unwrap_or(text);
                let line = before.rfind('\n').map_or(0, |end| end + 1);
                twice = header(&text[line..]).then_some(place.start);
            }
            reader.wrong(place, error.message().trim_end());
        }
        let Ok(values) = values else { return Err(FileError::sorted(reader.problems)) };
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
                    reader.apps_are_known = false;
                    reader.wrong(key.span(), format!("unknown key '{other}'{hint}"));
                }
            }
        }
        Ok(reader)
    }

    fn line(&self, place: Range<usize>) -> usize {
        1 + self.ends.partition_point(|end| *end < place.start)
    }

    fn wrong(&mut self, place: Range<usize>, problem: impl ToString) {
        let line = self.line(place);
        self.problems.push((line, problem.to_string()));
    }

    fn apps(&mut self, place: &Spanned<DeValue>, value: &Value) {
        let (Some(places), Some(values)) = (place.get_ref().as_table(), value.as_table()) else {
            self.apps_are_known = false;
            return self.wrong(place.span(), "'apps' is a table: write [apps.NAME]");
        };
        for (key, place) in places {
            let name = key.get_ref().to_string();
            self.file.lines.apps.insert(name.clone(), self.line(key.span()));
            for (argument, _) in place.get_ref().as_table().into_iter().flatten() {
                let at = self.line(argument.span());
                self.file.lines.keys.insert((name.clone(), argument.get_ref().to_string()), at);
            }
            let (spec, problem) = app(&values[&name]);
            if let Some(problem) = problem {
                self.wrong(key.span(), format!("app '{name}': {problem}"));
            }
            match spec.map(|spec| self.file.config.insert(&name, spec)) {
                Some(Ok(())) => {}
                Some(Err(error)) => {
                    self.wrong(key.span(), error);
                    self.broken.insert(name);
                }
                None => drop(self.broken.insert(name)),
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
                    self.file.lines.links.insert(name, self.line(link.span()));
                }
                Err(error) => self.wrong(link.span(), error),
            }
        }
    }

    fn settings(&mut self, place: &Spanned<DeValue>, value: &Value) {
        let (Some(places), Some(table)) = (place.get_ref().as_table(), value.as_table()) else {
            return self.wrong(place.span(), "'engine' is a table: write [engine]");
        };
        let (settings, mut problems) = args::parse_all::<Settings>(table);
        problems.extend(settings.iter().flat_map(Settings::problems));
        for error in problems {
            let key = places
                .iter()
                .find(|(key, _)| key.get_ref() == error.key())
                .map(|(key, _)| key.span());
            self.wrong(key.unwrap_or(place.span()), format!("[engine]: {error}"));
        }
        match settings {
            Some(settings) if settings.hz.is_some() && settings.busywait == Some(true) => {
                self.wrong(place.span(), "[engine]: 'busywait' and 'hz' exclude each other");
            }
            Some(settings) => self.file.settings = settings,
            None => {}
        }
    }
}

/// An app: its kind alone, or a table of kind, thread and arguments. There may be one although
/// something is wrong with it, so that the rest of it is looked at, too.
fn app(value: &Value) -> (Option<AppSpec>, Option<&'static str>) {
    if let Value::String(kind) = value {
        let spec = AppSpec { kind: kind.clone(), args: Table::new(), thread: 0 };
        return (Some(spec), None);
    }
    let Some(mut args) = value.as_table().cloned() else {
        return (None, Some("write its kind, or a table with 'kind' and arguments"));
    };
    let kind = match args.remove("kind") {
        Some(Value::String(kind)) => kind,
        Some(_) => return (None, Some("'kind' is a string")),
        None => return (None, Some("missing key 'kind'")),
    };
    let thread = args.remove("thread").map_or(Some(0), |thread| {
        let number = thread.as_integer().and_then(|number| usize::try_from(number).ok());
        number.filter(|number| *number < 1024)
    });
    let problem = thread.is_none().then_some("'thread' is a number from 0 to 1023");
    (Some(AppSpec { kind, args, thread: thread.unwrap_or(0) }), problem)
}

impl ConfigFile {
    /// As [`Config::check`], with the line of each problem.
    pub fn check(&self, registry: &Registry) -> Result<(), FileError> {
        self.config.check(registry).map_err(|Problems(problems)| {
            FileError::sorted(
                problems
                    .iter()
                    .map(|problem| (self.line_of(problem), problem.to_string()))
                    .collect(),
            )
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
            Problem::SameFile { app, .. } => {
                lines.keys.get(&(app.clone(), "file".to_string())).or_else(|| lines.apps.get(app))
            }
            Problem::App { link, .. }
            | Problem::Port { link, .. }
            | Problem::Taken { link, .. } => lines.links.get(&link.to_string()),
        };
        line.copied().unwrap_or(1)
    }
}

impl Settings {
    /// Values that are no rates. An engine that breathes less than once a second answers nobody in
    /// between: with an `hz` of 0, for a quarter of an hour.
    fn problems(&self) -> Vec<ArgError> {
        let hz = self.hz.filter(|hz| !hz.is_finite() || *hz < 1.0);
        let tick = self.tick.filter(|tick| *tick == 0);
        let hz = hz.map(|hz| {
            ArgError::wrong("hz", format!("{hz} is not a number of breaths per second, 1 or more"))
        });
        let tick = tick.map(|tick| {
            ArgError::wrong(
                "tick",
                format!("{tick} is not a number of ticks per second, 1 or more"),
            )
        });
        hz.into_iter().chain(tick).collect()
    }

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
