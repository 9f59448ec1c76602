//! `shortwire engine`: a network from a file, until somebody ends it.

use std::fs;
use std::io::Write;
use std::path::Path;
use std::process::ExitCode;

use ::engine::config::{Config, ConfigFile};
use ::engine::registry::{KindInfo, Registry};
use ::engine::{Ports, arena};
use anyhow::{Context, Result, bail};

use crate::args::Engine;
use crate::{profile, sys};

mod metrics;
mod session;

use session::Session;

pub fn run(args: &Engine) -> Result<ExitCode> {
    let mut output = std::io::stdout();
    let Some(path) = args.config.as_deref().filter(|_| !args.kinds) else {
        sys::default_sigpipe();
        output.write_all(kinds().as_bytes())?;
        return Ok(ExitCode::SUCCESS);
    };
    args.models.apply();
    let file = load(path)?;
    if args.graph {
        output.write_all(file.config.graphviz().as_bytes())?;
    } else if args.check {
        writeln!(output, "{}: {}", path.display(), describe(&file.config))?;
    } else {
        return start(args, path, &file);
    }
    Ok(ExitCode::SUCCESS)
}

fn start(args: &Engine, path: &Path, file: &ConfigFile) -> Result<ExitCode> {
    if let Some(cpus) = &args.cpu {
        sys::run_on(&cpus.0).with_context(|| {
            format!("cannot run on the processors {:?}: see which there are with `nproc --all`", cpus.0)
        })?;
    }
    if let Some(packets) = file.settings.packets {
        arena::set_slots(packets)?;
    }
    profile::load();
    let mut session = Session::start(args, path, file)?;
    session.run()?;
    session.finish()
}

/// Reads and checks a file. Nothing has happened when it is refused.
fn load(path: &Path) -> Result<ConfigFile> {
    let text = fs::read_to_string(path).with_context(|| format!("cannot read {}", path.display()))?;
    let refused = |error| anyhow::anyhow!("{} is not a network:\n{error}", path.display());
    let file = Config::from_toml(&text).map_err(refused)?;
    file.check(Registry::standard()).map_err(refused)?;
    if file.config.apps().next().is_none() {
        bail!("{} has no apps: `shortwire help engine` shows an example", path.display());
    }
    Ok(file)
}

fn describe(config: &Config) -> String {
    let count = |number: usize, what: &str| format!("{number} {what}{}", if number == 1 { "" } else { "s" });
    let (apps, links, threads) = (config.apps().count(), config.links().len(), config.threads().len());
    format!("{}, {} on {}", count(apps, "app"), count(links, "link"), count(threads, "thread"))
}

/// What can be written into a file.
fn kinds() -> String {
    let ports = |ports: Ports| match ports {
        Ports::None => "-".into(),
        Ports::Any => "any".into(),
        Ports::Named(names) => names.join(", "),
    };
    let mut table = crate::table::new(["kind", "inputs", "outputs", "counters", "what it does"]);
    for KindInfo { name, about, inputs, outputs, counters, .. } in Registry::standard().kinds() {
        table.add_row([name.to_string(), ports(*inputs), ports(*outputs), counters.join(", "), about.to_string()]);
    }
    format!("{table}\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn file(text: &str) -> (tempfile::TempDir, std::path::PathBuf) {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("network.toml");
        fs::write(&path, text).unwrap();
        (folder, path)
    }

    #[test]
    fn a_file_is_read_and_described() {
        let (_folder, path) = file("links = [\"a.output -> b.input\"]\n[apps]\na = \"Source\"\nb = \"Sink\"\n");
        assert_eq!(describe(&load(&path).unwrap().config), "2 apps, 1 link on 1 thread");
    }

    #[test]
    fn mistakes_are_told_all_at_once_with_lines_and_nearest_names() {
        let (_folder, path) =
            file("links = [\"a.output -> c.input\"]\n[apps]\na = \"Sourse\"\n[apps.b]\nkind = \"Source\"\nsise = 3\n");
        let said = format!("{:#}", load(&path).unwrap_err());
        for part in ["line 1:", "no such app 'c'", "line 3:", "did you mean 'Source'", "line 6:", "did you mean 'size'"]
        {
            assert!(said.contains(part), "{part} is missing in {said}");
        }
    }

    #[test]
    fn an_empty_network_is_refused() {
        let (_folder, path) = file("");
        assert!(load(&path).is_err_and(|error| error.to_string().contains("no apps")));
    }

    #[test]
    fn all_kinds_are_listed() {
        let text = kinds();
        assert!(Registry::standard().kinds().all(|kind| text.contains(kind.name)));
    }
}
