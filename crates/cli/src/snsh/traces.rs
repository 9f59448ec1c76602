//! `--traces`: what the compiler did with a script, as a picture, a graph, data or a list; and in
//! short on the terminal.

use std::fs::{File, OpenOptions};
use std::io::Write;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
use engine::lua::traces::{Finding, TraceFacts, findings};
use serde::Serialize;

mod dot;
mod svg;
mod text;

/// Where to, and in which form.
#[derive(Clone, Debug)]
pub struct Target {
    path: PathBuf,
    form: Form,
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum Form {
    Svg,
    Dot,
    Json,
    Text,
    /// Nothing but the summary.
    None,
}

impl std::str::FromStr for Target {
    type Err = String;

    fn from_str(word: &str) -> Result<Self, String> {
        let path = PathBuf::from(word);
        let form = match path.extension().and_then(|extension| extension.to_str()) {
            _ if word == "-" => Form::None,
            Some("svg") => Form::Svg,
            Some("dot") => Form::Dot,
            Some("json") => Form::Json,
            Some("txt") => Form::Text,
            _ => {
                return Err(
                    "the name must end in .svg, .dot, .json or .txt; - prints the summary only"
                        .to_string(),
                );
            }
        };
        Ok(Self { path, form })
    }
}

/// What goes into a file of data.
#[derive(Serialize)]
struct Everything<'a> {
    findings: &'a [Finding],
    #[serde(flatten)]
    facts: &'a TraceFacts,
}

impl Target {
    /// Finds out before the script runs whether its traces can be kept.
    pub fn check(&self) -> Result<()> {
        if self.form != Form::None {
            OpenOptions::new()
                .append(true)
                .create(true)
                .open(&self.path)
                .with_context(|| self.problem())?;
        }
        Ok(())
    }

    /// Writes the file, and the summary to standard error.
    pub fn write(&self, facts: &TraceFacts, script: &str) -> Result<()> {
        let found = findings(facts);
        let content = match self.form {
            Form::Svg => svg::draw(facts, &found, script),
            Form::Dot => dot::graph(facts),
            Form::Json => {
                serde_json::to_string_pretty(&Everything { findings: &found, facts })? + "\n"
            }
            Form::Text => text::list(facts, &found, usize::MAX),
            Form::None => String::new(),
        };
        if self.form != Form::None {
            File::create(&self.path)
                .and_then(|mut file| file.write_all(content.as_bytes()))
                .with_context(|| self.problem())?;
        }
        eprint!("{}", text::list(facts, &found, SHOWN));
        if self.form != Form::None {
            eprintln!("written to {}", self.path.display());
        }
        if facts.traces.is_empty() && facts.samples() == 0 {
            bail!("the script did not run");
        }
        Ok(())
    }

    fn problem(&self) -> String {
        format!("cannot write {}", self.path.display())
    }
}

/// Traces on the terminal; the file has all.
const SHOWN: usize = 12;

/// The last two parts of a path: what tells files apart without filling the line.
fn short(file: &str) -> String {
    let path = Path::new(file);
    let name = path.file_name().map_or(file.into(), |name| name.to_string_lossy());
    match path.parent().and_then(Path::file_name) {
        Some(folder) => format!("{}/{name}", folder.to_string_lossy()),
        None => name.into_owned(),
    }
}

fn percent(part: u64, whole: u64) -> f64 {
    part as f64 * 100.0 / whole.max(1) as f64
}
