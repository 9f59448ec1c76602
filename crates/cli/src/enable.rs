//! `shortwire enable` and `disable`: a unit, or a program, loads the library from its next start
//! on, or no more.

mod place;

use std::env;
use std::ffi::OsStr;
use std::fmt;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};

use anyhow::{Result, bail};
use serde::Serialize;
use smc::setting::NAMES;
use terminal::near::nearest;

use crate::finding::{Finding, in_quotes, lines_of, obstacle};
use crate::run::{compose_preload, find_library, find_program, obstacles};
use crate::units::{Scope, Unit, full_name, quoted, sandbox};
use place::Place;

/// The name of our drop-ins.
const DROP_IN: &str = "50-shortwire.conf";

#[derive(clap::Args)]
#[command(about = "Let a service or a program share memory from its next start on")]
#[command(
    long_about = "For a unit of systemd, writes a drop-in that loads the library into it (LD_PRELOAD, in front of one that is there), with \
settings, and with what the unit's sandbox needs for it. For PostgreSQL of Debian, whose units pass no environment on, writes to the cluster's file \
`environment`. For any other program, writes a script of its name to /usr/local/bin, or ~/.local/bin with --user, that starts it under `shortwire run`.

Nothing changes for what runs: a service is to be restarted. `shortwire disable` removes what was written. `shortwire doctor UNIT` says what a \
unit's settings mean."
)]
#[command(after_help = "Examples:
  shortwire enable redis-server memcached  and then: systemctl restart
                                           redis-server memcached
  shortwire enable nginx --dry-run         say what would be written
  shortwire enable postgresql@15-main
  shortwire enable redis-server --set AFTER=4
      with $SHORTWIRE_AFTER
  shortwire enable --user redis-benchmark  a script in ~/.local/bin

Exit status: 0 if all are enabled now, or were before; 1 if one could not be (the others are), or if systemd could not be told to read \
its units again; 2 for a wrong command line, and then nothing was written.")]
pub struct Enable {
    #[command(flatten)]
    pub which: Which,
    /// Setting for it: the name of a variable without SHORTWIRE_, and its value
    #[arg(long = "set", value_name = "NAME=VALUE", value_parser = parse_setting)]
    pub settings: Vec<String>,
}

#[derive(clap::Args)]
#[command(about = "Take back what `shortwire enable` has written")]
#[command(
    long_about = "Removes the drop-in, the lines or the script that `shortwire enable` has written. What runs goes on as it is until its next start; \
`shortwire run --disable` and `--peer-policy off` are for single starts."
)]
#[command(after_help = "Examples:
  shortwire disable redis-server
  shortwire disable --user redis-benchmark

Exit status: 0 if nothing of it is left, or never was; 1 if something could not be removed (the others are), or if systemd could not be told; 2 for a \
wrong command line.")]
pub struct Disable {
    #[command(flatten)]
    pub which: Which,
}

#[derive(clap::Args)]
pub struct Which {
    /// Units of systemd, with or without .service, or programs
    #[arg(value_name = "UNIT|PROG", required = true)]
    pub subjects: Vec<String>,
    /// Units and scripts of this user, not the system's
    #[arg(long)]
    pub user: bool,
    /// Take the names for programs, also where there are units of these names
    #[arg(long)]
    pub program: bool,
    /// Say what would be done, and do nothing
    #[arg(long)]
    pub dry_run: bool,
    /// Print one JSON object
    #[arg(long)]
    pub json: bool,
    /// Directory in which the system lies
    #[arg(long, value_name = "DIR", default_value = "/")]
    pub root: PathBuf,
}

/// A setting in full, checked as the library reads it.
pub fn parse_setting(text: &str) -> Result<String, String> {
    let Some((name, value)) = text.split_once('=') else {
        return Err("NAME=VALUE, such as AFTER=4".into());
    };
    let name = name.strip_prefix("SHORTWIRE_").unwrap_or(name);
    // Of what it does not know, the library would say nothing.
    if !NAMES.contains(&name) {
        let names = NAMES.map(str::to_lowercase);
        let near = nearest(name, names.iter().map(String::as_str)).join(" or ").to_uppercase();
        let hint = if near.is_empty() {
            "; libshortwire(7) lists them".into()
        } else {
            format!("; did you mean {}?", near.replace(" OR ", " or "))
        };
        return Err(format!("there is no setting {name}{hint}"));
    }
    match smc::setting::check(name.as_bytes(), value.as_bytes()) {
        Ok(()) => Ok(format!("SHORTWIRE_{name}={value}")),
        Err(expected) => Err(format!("{name} is {expected}")),
    }
}

/// What was done about one name.
#[derive(Serialize)]
struct Outcome {
    name: String,
    /// written, unchanged, removed, absent, refused; of a dry run would_write, would_remove.
    done: &'static str,
    path: Option<PathBuf>,
    text: Option<String>,
    findings: Vec<Finding>,
    /// What is to be done for it to take effect.
    next: Option<String>,
}

/// There is neither a unit nor a program of a name.
#[derive(Debug)]
struct Unknown(String);

impl fmt::Display for Unknown {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for Unknown {}

impl Outcome {
    /// Nothing of ours is left of what is not there either, such as a package that was removed.
    fn absent(name: &str, why: &Unknown) -> Self {
        Outcome {
            name: name.into(),
            done: "absent",
            path: None,
            text: None,
            findings: vec![Finding::note(why.to_string(), "Is the name right?")],
            next: None,
        }
    }
}

/// What a name stands for, and where something of ours is written for it.
struct Subject {
    name: String,
    place: Place,
    findings: Vec<Finding>,
    forbidden: bool,
    restart: String,
}

pub fn enable(args: &Enable) -> Result<ExitCode> {
    each(&args.which, |name| {
        let subject = subject(&args.which, name, &args.settings)?;
        let done = match &subject {
            Subject { forbidden: true, .. } => "refused",
            subject if subject.place.stands()? => "unchanged",
            _ if args.which.dry_run => "would_write",
            subject => {
                subject.place.put()?;
                "written"
            }
        };
        Ok(subject.outcome(done, "From its next start on it shares memory"))
    })
}

pub fn disable(args: &Disable) -> Result<ExitCode> {
    each(&args.which, |name| {
        let subject = match subject(&args.which, name, &[]) {
            Ok(subject) => subject,
            Err(error) => match (left_of(&args.which, name)?, error.downcast::<Unknown>()) {
                (Some(subject), _) => subject,
                (None, Ok(unknown)) => return Ok(Outcome::absent(name, &unknown)),
                (None, Err(error)) => return Err(error),
            },
        };
        let done = match &subject {
            subject if !subject.place.is_there()? => "absent",
            _ if args.which.dry_run => "would_remove",
            subject => {
                subject.place.take()?;
                "removed"
            }
        };
        let subject = Subject { findings: Vec::new(), ..subject };
        Ok(subject.outcome(done, "From its next start on it is without the library"))
    })
}

impl Subject {
    fn outcome(self, done: &'static str, what: &str) -> Outcome {
        let changes = matches!(done, "written" | "removed" | "would_write" | "would_remove");
        Outcome {
            name: self.name,
            done,
            path: Some(self.place.path().into()).filter(|_| done != "refused"),
            text: Some(self.place.text().into())
                .filter(|_| matches!(done, "written" | "would_write" | "unchanged")),
            findings: self.findings,
            next: changes.then(|| format!("{what}: {}", self.restart)),
        }
    }
}

fn each(which: &Which, act: impl Fn(&str) -> Result<Outcome>) -> Result<ExitCode> {
    let mut failed = false;
    let mut outcomes = Vec::new();
    for name in &which.subjects {
        let outcome = act(name).unwrap_or_else(|error| Outcome {
            name: name.clone(),
            done: "refused",
            path: None,
            text: None,
            findings: vec![Finding::obstacle(format!("{error:#}"), "Nothing was written for it.")],
            next: None,
        });
        failed |= outcome.done == "refused";
        if !which.json {
            terminal::out!("{}", text(&outcome))?;
        }
        outcomes.push(outcome);
    }
    if which.json {
        let all = serde_json::json!({ "dry_run": which.dry_run, "subjects": outcomes });
        crate::json::print(&all)?;
    }
    let changed = outcomes.iter().any(|outcome| outcome.next.is_some());
    if changed && !which.dry_run && !reload(which) {
        eprintln!(
            "shortwire: `systemctl daemon-reload` failed: say it before you restart anything"
        );
        failed = true;
    }
    Ok(if failed { ExitCode::FAILURE } else { ExitCode::SUCCESS })
}

/// systemd reads the units again, if it runs here.
fn reload(which: &Which) -> bool {
    if which.root != Path::new("/") || !Path::new("/run/systemd/system").exists() {
        return true;
    }
    let mut systemctl = Command::new("systemctl");
    if which.user {
        systemctl.arg("--user");
    }
    systemctl.arg("daemon-reload").status().is_ok_and(|status| status.success())
}

fn text(outcome: &Outcome) -> String {
    let mut text = format!("{}\n", outcome.name);
    let path = outcome.path.as_deref().unwrap_or(Path::new("")).display();
    text += &match outcome.done {
        "would_write" => format!("  would write {path}\n"),
        "written" => format!("  wrote {path}\n"),
        "would_remove" => format!("  would remove what stands in {path}\n"),
        "removed" => format!("  removed what stood in {path}\n"),
        "unchanged" => format!("  enabled already: {path}\n"),
        "absent" if outcome.path.is_none() => "  nothing of Shortwire is left for it\n".into(),
        "absent" => format!("  was not enabled: nothing of Shortwire in {path}\n"),
        _ => "  is left as it is\n".into(),
    };
    let is_new = matches!(outcome.done, "written" | "would_write");
    for line in outcome.text.iter().filter(|_| is_new).flat_map(|text| text.lines()) {
        text += &format!("    {line}\n");
    }
    text += &lines_of(&outcome.findings);
    text += &outcome.next.as_ref().map_or_else(String::new, |next| format!("  {next}\n"));
    text
}

fn subject(which: &Which, name: &str, settings: &[String]) -> Result<Subject> {
    let scope = Scope { root: which.root.clone(), user: which.user };
    let is_path = name.contains('/');
    let drop_in = |unit: &str| drop_in_of(&scope, unit);
    if !which.program && !is_path {
        // As it is without ours; an alias' drop-in lies beside that of its unit.
        if let Some(found) = Unit::find(name, &scope, None)? {
            let but = drop_in(&found.name);
            let unit = Unit::find(&found.name, &scope, Some(&but))?.unwrap_or(found);
            return of_unit(&unit, &scope, but, settings);
        }
        if name.ends_with(".service") || name.contains('@') {
            return Err(Unknown(format!("there is no unit {}", full_name(name))).into());
        }
    }
    of_program(which, name, settings)
}

fn drop_in_of(scope: &Scope, unit: &str) -> PathBuf {
    scope.own_folder().join(format!("{unit}.d")).join(DROP_IN)
}

fn script_of(which: &Which, name: &str) -> PathBuf {
    let folder = match env::home_dir().filter(|_| which.user) {
        Some(home) => home.join(".local/bin"),
        None => which.root.join("usr/local/bin"),
    };
    folder.join(Path::new(name).file_name().unwrap_or(OsStr::new(name)))
}

/// What was written for a unit or a program that is gone now, or masked, or for a library that is:
/// it would lie there for ever, and be read when the unit comes back.
fn left_of(which: &Which, name: &str) -> Result<Option<Subject>> {
    let scope = Scope { root: which.root.clone(), user: which.user };
    let places = [
        Place::drop_in(drop_in_of(&scope, &full_name(name)), &[]),
        Place::wrapper(script_of(which, name), ""),
    ];
    for place in places.into_iter().skip(usize::from(name.contains('/'))) {
        if place.is_there()? {
            let restart = "there is nothing of this name to start now".into();
            let (name, findings) = (name.into(), Vec::new());
            return Ok(Some(Subject { name, place, findings, forbidden: false, restart }));
        }
    }
    Ok(None)
}

fn of_unit(unit: &Unit, scope: &Scope, drop_in: PathBuf, settings: &[String]) -> Result<Subject> {
    let library = find_library()?.path;
    let meanings = sandbox::meanings(unit, scope, &library);
    let forbidden = meanings.iter().any(sandbox::Meaning::forbids);
    let systemctl = if scope.user { "systemctl --user" } else { "systemctl" };
    let restart = format!("{systemctl} restart {}", unit.name.trim_end_matches(".service"));
    let place = match sandbox::own_environment(unit, scope) {
        Some(path) => {
            let before = place::without_block(&fs::read_to_string(&path).unwrap_or_default());
            let existing = before.lines().rev().find_map(|line| {
                let (name, value) = line.split_once('=')?;
                (name.trim() == "LD_PRELOAD").then(|| value.trim().trim_matches('\'').to_string())
            });
            let variables = variables(&library, existing.as_deref(), settings);
            let line = |(name, value): &(String, String)| {
                format!("{name} = '{}'", value.replace('\'', "''"))
            };
            Place::block(path, &variables.iter().map(line).collect::<Vec<_>>())
        }
        None => {
            let existing = unit.variable("LD_PRELOAD");
            let variables = variables(&library, existing.as_deref(), settings);
            let line = |(name, value): &(String, String)| {
                format!("Environment={}", quoted(&format!("{name}={value}")))
            };
            let mut lines: Vec<String> = variables.iter().map(line).collect();
            meanings.iter().for_each(|meaning| lines.extend(meaning.lines.iter().cloned()));
            Place::drop_in(drop_in, &lines)
        }
    };
    let mut findings: Vec<Finding> = Vec::new();
    for meaning in meanings {
        findings.push(match &meaning.lines[..] {
            [] => meaning.finding,
            // The drop-in sees to it.
            lines => {
                let said = lines.join(", ");
                Finding::good(format!("{}; the drop-in says {said}", meaning.finding.words))
            }
        });
    }
    Ok(Subject { name: unit.name.clone(), place, findings, forbidden, restart })
}

fn variables(library: &Path, existing: Option<&str>, settings: &[String]) -> Vec<(String, String)> {
    let preload = compose_preload(library, existing.map(OsStr::new));
    let preload = ("LD_PRELOAD".to_string(), preload.to_string_lossy().into_owned());
    let settings = settings.iter().filter_map(|setting| setting.split_once('='));
    [preload].into_iter().chain(settings.map(|(n, v)| (n.into(), v.into()))).collect()
}

fn of_program(which: &Which, name: &str, settings: &[String]) -> Result<Subject> {
    let script = script_of(which, name);
    let folder = script.parent().unwrap_or(Path::new("/"));
    // The program itself, not a script that stands for it already.
    let path = env::var_os("PATH").unwrap_or_default();
    let others = env::split_paths(&path).filter(|place| place != folder);
    let others = env::join_paths(others)?;
    let program = match find_program(OsStr::new(name), Some(&others)) {
        Ok(program) => program,
        Err(error) => {
            let why = format!("{error}, and there is no unit of this name");
            return Err(Unknown(why).into());
        }
    };
    if program == script || place::is_script(&program) {
        bail!(
            "{} is the script that `shortwire enable` has written, not a program",
            program.display()
        );
    }
    let mut findings: Vec<Finding> =
        obstacles(&program).iter().map(|found| obstacle(&program, found)).collect();
    let forbidden = !findings.is_empty();
    let is_before = env::split_paths(&path)
        .take_while(|place| {
            !place.join(program.file_name().unwrap_or_default()).exists() || place == folder
        })
        .any(|place| place == folder);
    if !is_before {
        findings.push(Finding::note(
            format!(
                "{} is not in front of {} in PATH, so the program itself is found first",
                folder.display(),
                program.parent().unwrap_or(Path::new("/")).display()
            ),
            format!("Put it there, or start {} by its path.", script.display()),
        ));
    }
    let mut words = vec!["env".to_string()];
    words.extend(settings.iter().map(|setting| in_quotes(setting)));
    if words.len() == 1 {
        words.clear();
    }
    let own = env::current_exe()?;
    words.push(in_quotes(&own.to_string_lossy()));
    words.push("run -q --".into());
    words.push(in_quotes(&program.to_string_lossy()));
    Ok(Subject {
        name: program.display().to_string(),
        place: Place::wrapper(script.clone(), &words.join(" ")),
        findings,
        forbidden,
        restart: format!("{} starts it under `shortwire run`", script.display()),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn settings_are_checked_and_named_in_full() {
        assert_eq!(parse_setting("AFTER=4"), Ok("SHORTWIRE_AFTER=4".into()));
        assert_eq!(parse_setting("SHORTWIRE_SPIN=0"), Ok("SHORTWIRE_SPIN=0".into()));
        assert!(parse_setting("AFTER=x").is_err_and(|why| why.starts_with("AFTER is a number")));
        assert!(parse_setting("AFTER").is_err());
        for (wrong, said) in [
            ("AFTRE=4", "no setting AFTRE; did you mean AFTER?"),
            ("SHORTWIRE_PORT-PROOF=1", "did you mean PORT_PROOF?"),
            ("FROBNICATE=", "no setting FROBNICATE; libshortwire(7)"),
        ] {
            assert!(parse_setting(wrong).is_err_and(|why| why.contains(said)), "{wrong}");
        }
    }
}
