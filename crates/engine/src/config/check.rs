//! What can be said against a configuration before anything is changed.

use std::collections::HashSet;
use std::fmt;
use std::path::{Path, PathBuf};

use crate::app::{FileUse, Ports};
use crate::args::{ArgError, nearest};
use crate::config::{AppSpec, Config, LinkSpec, PortSpec};
use crate::pcap::is_same_file;
use crate::registry::Registry;

/// One thing that is wrong.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Problem {
    #[error("app '{app}': there is no kind '{kind}'{}", hint(.near))]
    Kind { app: String, kind: String, near: Option<String> },
    #[error("app '{app}' ({kind}): {error}")]
    Args { app: String, kind: String, error: ArgError },
    #[error("link '{link}': no such app '{app}'{}", hint(.near))]
    App { link: LinkSpec, app: String, near: Option<String> },
    #[error("link '{link}': app '{app}' ({kind}) has no {direction} '{port}'{}", has(.known))]
    Port {
        link: LinkSpec,
        app: String,
        kind: String,
        direction: &'static str,
        port: String,
        known: &'static [&'static str],
    },
    #[error("link '{link}': {direction} '{port}' of app '{app}' has another link already")]
    Taken { link: LinkSpec, app: String, direction: &'static str, port: String },
    #[error(
        "app '{app}' would empty {}, which app '{other}' {does}{}: give it another file",
        .file.display(), other_name(.file, .others)
    )]
    SameFile { app: String, file: PathBuf, other: String, others: PathBuf, does: &'static str },
}

/// Everything that is wrong, one line each.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Problems(pub Vec<Problem>);

impl fmt::Display for Problems {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (i, problem) in self.0.iter().enumerate() {
            if i > 0 {
                f.write_str("\n")?;
            }
            write!(f, "{problem}")?;
        }
        Ok(())
    }
}

impl std::error::Error for Problems {}

fn hint(near: &Option<String>) -> String {
    near.as_ref().map_or_else(String::new, |near| format!("; did you mean '{near}'?"))
}

/// A link, or the same path in other words.
fn other_name(file: &Path, other: &Path) -> String {
    if file == other { String::new() } else { format!(" as {}", other.display()) }
}

fn has(known: &[&str]) -> String {
    match known {
        [] => String::from("; it has none"),
        known => format!("; it has {}", known.join(", ")),
    }
}

impl Config {
    /// Checks kinds, arguments, links and ports.
    pub fn check(&self, registry: &Registry) -> Result<(), Problems> {
        let mut problems = Vec::new();
        for (name, spec) in self.apps() {
            match registry.get(&spec.kind) {
                None => problems.push(Problem::Kind {
                    app: name.to_string(),
                    kind: spec.kind.clone(),
                    near: nearest(&spec.kind, registry.kinds().map(|kind| kind.name))
                        .map(str::to_string),
                }),
                Some(kind) => problems.extend((kind.check)(&spec.args).into_iter().map(|error| {
                    Problem::Args { app: name.to_string(), kind: spec.kind.clone(), error }
                })),
            }
        }
        let mut taken = HashSet::new();
        for link in self.links() {
            for (direction, end) in [("output", &link.from), ("input", &link.to)] {
                match self.end_problem(registry, link, direction, end) {
                    Some(problem) => problems.push(problem),
                    None if !taken.insert((direction, end)) => problems.push(Problem::Taken {
                        link: link.clone(),
                        app: end.app.clone(),
                        direction,
                        port: end.port.clone(),
                    }),
                    None => {}
                }
            }
        }
        problems.extend(self.same_files(registry));
        if problems.is_empty() { Ok(()) } else { Err(Problems(problems)) }
    }

    /// Apps that write what others read or write.
    fn same_files(&self, registry: &Registry) -> Vec<Problem> {
        let used =
            |spec: &AppSpec| registry.get(&spec.kind).and_then(|kind| (kind.file)(&spec.args));
        let files: Vec<(&str, FileUse)> =
            self.apps().filter_map(|(name, spec)| Some((name, used(spec)?))).collect();
        let mut problems = Vec::new();
        for (at, (app, file)) in files.iter().enumerate() {
            let FileUse::Writes(file) = file else { continue };
            for (before, (other, theirs)) in files.iter().enumerate() {
                let (others, does) = match theirs {
                    FileUse::Reads(path) => (path, "reads"),
                    // Of two that write each is told once.
                    FileUse::Writes(path) if before < at => (path, "writes"),
                    FileUse::Writes(_) => continue,
                };
                if is_same_file(file, others) {
                    problems.push(Problem::SameFile {
                        app: app.to_string(),
                        file: file.clone(),
                        other: other.to_string(),
                        others: others.clone(),
                        does,
                    });
                }
            }
        }
        problems
    }

    fn end_problem(
        &self,
        registry: &Registry,
        link: &LinkSpec,
        direction: &'static str,
        end: &PortSpec,
    ) -> Option<Problem> {
        let Some(spec) = self.get(&end.app) else {
            return Some(Problem::App {
                link: link.clone(),
                app: end.app.clone(),
                near: nearest(&end.app, self.apps().map(|(name, _)| name)).map(str::to_string),
            });
        };
        let kind = registry.get(&spec.kind)?;
        let known = match if direction == "input" { kind.inputs } else { kind.outputs } {
            Ports::Any => return None,
            Ports::None => &[],
            Ports::Named(names) if names.contains(&end.port.as_str()) => return None,
            Ports::Named(names) => names,
        };
        Some(Problem::Port {
            link: link.clone(),
            app: end.app.clone(),
            kind: spec.kind.clone(),
            direction,
            port: end.port.clone(),
            known,
        })
    }
}
