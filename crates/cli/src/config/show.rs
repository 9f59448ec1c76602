//! `shortwire config show`: what applies, and which line of which file says so.

use std::env;
use std::ffi::OsString;
use std::fmt::Write as _;
use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::{Context, Result, bail};
use serde::Serialize;
use smc::policy::{At, File, Found, Places, Program, SETTINGS, judge, parse, passwd};
use smc::setting;

use super::args::Show;
use crate::conffiles::{Health, Remark, health, line_of, looked_at, path, places, places_with};
use crate::run::{find_program, interpreter_of};

/// Something that is said.
#[derive(Serialize, Debug)]
struct Said {
    /// A setting's name; none for a rule.
    #[serde(skip_serializing_if = "Option::is_none")]
    name: Option<&'static str>,
    /// The setting's value, or the rule.
    value: String,
    #[serde(flatten)]
    by: By,
}

/// Who says it.
#[derive(Serialize, Debug)]
#[serde(untagged)]
enum By {
    Line { file: PathBuf, line: u32 },
    Variable { variable: String },
}

impl std::fmt::Display for By {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            By::Line { file, line } => write!(f, "{}:{line}", file.display()),
            By::Variable { variable } => write!(f, "${variable}"),
        }
    }
}

#[derive(Serialize, Default)]
struct Report {
    #[serde(skip_serializing_if = "Option::is_none")]
    program: Option<PathBuf>,
    /// In the order in which they count.
    files: Vec<PathBuf>,
    settings: Vec<Said>,
    /// For some connections; the first that fits counts.
    rules: Vec<Said>,
    /// For all others.
    otherwise: Option<Said>,
    /// Whether every connection stays TCP.
    tcp: bool,
    problems: Vec<Remark>,
    remarks: Vec<Remark>,
}

pub fn run(args: &Show) -> Result<ExitCode> {
    let who = Who::of(args.user.as_deref())?;
    let found = Found::read(&who.places, who.uid);
    let Health { problems, remarks } = health(&found);
    let mut report = match args.program.split_first() {
        Some((name, rest)) => of_program(name, rest, &found, &who)?,
        None => of_all(&found),
    };
    report.files = found.files.iter().map(|file| path(&file.path)).collect();
    report.tcp |= !problems.is_empty();
    (report.problems, report.remarks) = (problems, remarks);
    if args.json {
        crate::json::print(&report)?;
    } else {
        terminal::out!("{}", text(&report, &who.places))?;
    }
    Ok(if report.problems.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// Who starts the program.
struct Who {
    uid: u32,
    places: Places,
    /// Whether it has this command's environment.
    is_me: bool,
}

impl Who {
    fn of(user: Option<&str>) -> Result<Who> {
        let Some(user) = user else {
            let uid = rustix::process::geteuid().as_raw();
            return Ok(Who { uid, places: places(), is_me: true });
        };
        let text = String::from_utf8_lossy(&passwd()).into_owned();
        let fields = |line: &str| line.split(':').map(str::to_string).collect::<Vec<_>>();
        let row = text
            .lines()
            .map(fields)
            .find(|fields| fields.len() > 5 && (fields[0] == user || fields[2] == user));
        let home = row.as_ref().map(|row| OsString::from(&row[5]));
        let uid = match row.and_then(|row| row[2].parse().ok()).or_else(|| user.parse().ok()) {
            Some(uid) => uid,
            None => {
                bail!("/etc/passwd has no user {user}; give a number if a directory service has it")
            }
        };
        let places = places_with(|name| (name == "HOME").then(|| home.clone()).flatten());
        Ok(Who { uid, places, is_me: false })
    }

    /// Variables of ours that it is started with.
    fn variables(&self) -> impl Iterator<Item = (&'static str, String)> {
        let is_me = self.is_me;
        let set = |name: &str| env::var(name).ok().filter(|value| !value.is_empty());
        SETTINGS.iter().map(|setting| setting.variable).chain(["DISABLE"]).filter_map(move |name| {
            Some((name, set(&format!("SHORTWIRE_{name}")).filter(|_| is_me)?))
        })
    }
}

fn of_program(name: &OsString, rest: &[OsString], found: &Found, who: &Who) -> Result<Report> {
    let started = match find_program(name, env::var_os("PATH").as_deref()) {
        Ok(started) => started,
        Err(error) => bail!("{error}"),
    };
    let binary = interpreter_of(&started).map_or_else(|| started.clone(), |(binary, _)| binary);
    let file = fs::canonicalize(&binary)
        .with_context(|| format!("cannot look at {}", binary.display()))?;
    let args = arguments(&started, rest);
    let passwd = passwd();
    let program = Program {
        file: file.as_os_str().as_bytes(),
        started: started.as_os_str().as_bytes(),
        args: &args,
        user: who.uid,
        passwd: &passwd,
    };
    let verdict = judge(&found.files, &program);
    let mut report = Report { program: Some(started), ..Report::default() };
    for (name, value) in who.variables() {
        let off = setting::is_off(name.as_bytes(), value.as_bytes());
        report.tcp |= off || setting::check(name.as_bytes(), value.as_bytes()).is_err();
        let known = SETTINGS.iter().find(|setting| setting.variable == name);
        let by = By::Variable { variable: format!("SHORTWIRE_{name}") };
        report.settings.push(Said { name: Some(known.map_or("disable", |s| s.name)), value, by });
    }
    for said in &verdict.settings {
        let is_same = |known: &Said| known.name == Some(said.setting.name);
        if !report.settings.iter().any(is_same) {
            report.tcp |= setting::is_off(said.setting.variable.as_bytes(), said.value);
            let value = String::from_utf8_lossy(said.value).into_owned();
            let by = by(&found.files, said.at);
            report.settings.push(Said { name: Some(said.setting.name), value, by });
        }
    }
    let is_told = report
        .settings
        .iter()
        .any(|said| said.name == Some("peer-policy") && matches!(said.by, By::Variable { .. }));
    if !is_told {
        report.rules = verdict.rules.iter().map(|rule| whole(&found.files, rule.at)).collect();
        report.otherwise = verdict.otherwise.map(|(_, at)| whole(&found.files, at));
        let is_tcp = verdict.otherwise.is_some_and(|(a, _)| a == smc::policy::Action::Tcp);
        report.tcp |= is_tcp && report.rules.is_empty();
    }
    Ok(report)
}

/// As the program gets them: a script's interpreter gets the words behind `#!`, and its path.
fn arguments(started: &Path, rest: &[OsString]) -> Vec<u8> {
    let head = fs::read(started).unwrap_or_default();
    let mut words: Vec<Vec<u8>> = Vec::new();
    if let Some(line) = head.strip_prefix(b"#!").and_then(|text| text.split(|b| *b == b'\n').next())
    {
        let text = line.trim_ascii();
        let end = text.iter().position(u8::is_ascii_whitespace).unwrap_or(text.len());
        let more = text[end..].trim_ascii();
        words.extend((!more.is_empty()).then(|| more.to_vec()));
        words.push(started.as_os_str().as_bytes().to_vec());
    }
    words.extend(rest.iter().map(|word| word.as_bytes().to_vec()));
    words.join(&b' ')
}

/// All that is said, without a look at what it is said of.
fn of_all(found: &Found) -> Report {
    let mut report = Report::default();
    for (file, text) in found.files.iter().enumerate() {
        for (line, statement) in parse(&text.text) {
            if statement.is_ok() {
                report.rules.push(whole(&found.files, At { file, line }));
            }
        }
    }
    report
}

fn by(files: &[File], at: At) -> By {
    By::Line { file: path(&files[at.file].path), line: at.line }
}

fn whole(files: &[File], at: At) -> Said {
    Said { name: None, value: line_of(&files[at.file], at.line), by: by(files, at) }
}

fn text(report: &Report, places: &Places) -> String {
    let mut text = String::new();
    let mut line = |said: &Said| {
        let what = match said.name {
            Some(name) => format!("{name} = {}", said.value),
            None => said.value.clone(),
        };
        let _ = writeln!(text, "  {what:<44}  {}", said.by);
    };
    report.settings.iter().for_each(&mut line);
    report.rules.iter().for_each(&mut line);
    report.otherwise.iter().for_each(&mut line);
    if text.is_empty() && report.problems.is_empty() {
        text = match report.files.len() {
            0 => format!("  no configuration file ({})\n", looked_at(places)),
            _ => "  nothing: defaults apply\n".into(),
        };
    }
    let head = match &report.program {
        Some(program) if report.tcp => {
            format!("{}: every connection stays TCP\n", program.display())
        }
        Some(program) => format!("{}\n", program.display()),
        None => String::new(),
    };
    for remark in report.problems.iter().chain(&report.remarks) {
        let _ = writeln!(text, "  {remark}");
    }
    head + &text
}
