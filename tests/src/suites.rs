//! Other programs' own test suites, without Shortwire and with it.
//!
//! A suite is a recipe in `tests/suites`, which fetches it and turns what it prints into one line
//! for each test: `begin`, `ok`, `not ok` or `skip`, and the name. A test that fails under
//! `shortwire run` and not without it is a bug here, unless a second look at both finds it
//! unsteady.

use std::collections::BTreeSet;
use std::ffi::OsString;
use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Instant;

use crate::skip::{Skip, skip};
use crate::tool::{shortwire, target};

/// How a suite's programs are started.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    Plain,
    /// Under `shortwire run` as anybody would have it.
    Run,
    /// The same, with every connection upgraded from its first operation.
    AtOnce,
}

impl Mode {
    fn name(self) -> &'static str {
        match self {
            Mode::Plain => "plain",
            Mode::Run => "run",
            Mode::AtOnce => "at-once",
        }
    }

    /// The words in front of a program.
    pub fn words(self) -> OsString {
        let mut words = OsString::new();
        if self != Mode::Plain {
            words.push(shortwire());
            words.push(" run --quiet --");
        }
        words
    }

    /// The same for a program that is started directly.
    pub fn apply(self, command: &mut Command) {
        command.env("UNDER", self.words()).env_remove("LD_PRELOAD").env_remove("SHORTWIRE_AFTER");
        if self == Mode::AtOnce {
            command.env("SHORTWIRE_AFTER", "1");
        }
    }
}

/// The outcome of each test of one run.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Results {
    pub failed: BTreeSet<String>,
    pub passed: BTreeSet<String>,
    skipped: BTreeSet<String>,
}

impl Results {
    /// A name that comes more than once has failed if one of them has; what began and did not end
    /// has failed. Some suites begin a test again without a word on how it ended.
    pub fn read(text: &str) -> Results {
        let mut results = Results::default();
        let mut open = BTreeSet::new();
        for line in text.lines() {
            let outcomes = [("begin ", 0), ("ok ", 1), ("not ok ", 2), ("skip ", 3)];
            let found = outcomes
                .iter()
                .find_map(|&(word, code)| Some((line.strip_prefix(word)?.trim(), code)));
            let Some((name, code)) = found else { continue };
            match code {
                0 => open.insert(name.to_string()),
                1 => results.passed.insert(name.to_string()),
                2 => results.failed.insert(name.to_string()),
                _ => results.skipped.insert(name.to_string()),
            };
            if code != 0 {
                open.remove(name);
            }
        }
        results.failed.extend(open);
        results.passed.retain(|name| !results.failed.contains(name));
        results
    }

    pub fn total(&self) -> usize {
        self.failed.len() + self.passed.len()
    }

    /// What passed in `plain` and did not here: it failed, or never ran.
    pub fn newly_failing(&self, plain: &Results) -> BTreeSet<String> {
        plain.passed.iter().filter(|name| !self.passed.contains(*name)).cloned().collect()
    }
}

/// One line of the table.
pub struct Row {
    pub suite: String,
    pub plain: Results,
    pub modes: Vec<(Mode, Results)>,
    /// By mode; each failed twice and passed twice without Shortwire.
    pub newly: Vec<(Mode, BTreeSet<String>)>,
    pub unsteady: BTreeSet<String>,
    /// What failed newly and has its reason in `explained.txt`.
    pub explained: BTreeSet<String>,
}

impl Row {
    pub fn line(&self) -> String {
        let failures: Vec<String> =
            self.modes.iter().map(|(_, results)| format!("{:>7}", results.failed.len())).collect();
        let newly: Vec<String> = self
            .newly
            .iter()
            .flat_map(|(mode, names)| names.iter().map(|name| format!("{name} ({})", mode.name())))
            .collect();
        let also = |what, names: &BTreeSet<String>| match names.is_empty() {
            true => String::new(),
            false => format!("; {what}: {}", join(names)),
        };
        format!(
            "{:<12} {:>6} {:>6} {} {:>6}  {}{}{}",
            self.suite,
            self.plain.total(),
            self.plain.failed.len(),
            failures.join(" "),
            newly.len(),
            newly.join(", "),
            also("unsteady", &self.unsteady),
            also("explained", &self.explained),
        )
    }

    pub fn headline(modes: &[Mode]) -> String {
        let modes: Vec<String> = modes.iter().map(|mode| format!("{:>7}", mode.name())).collect();
        format!(
            "{:<12} {:>6} {:>6} {} {:>6}  names",
            "suite",
            "tests",
            "plain",
            modes.join(" "),
            "newly"
        )
    }
}

fn join(names: &BTreeSet<String>) -> String {
    names.iter().cloned().collect::<Vec<_>>().join(", ")
}

/// The tests of a suite that `explained.txt` speaks of.
fn explained(suite: &str) -> BTreeSet<String> {
    let text =
        fs::read_to_string(recipes().join("explained.txt")).expect("tests/suites/explained.txt");
    read_explained(&text, suite)
}

fn read_explained(text: &str, suite: &str) -> BTreeSet<String> {
    let entries =
        text.lines().filter(|line| !line.starts_with('#') && !line.is_empty()).map(|line| {
            let mut parts = line.splitn(3, " | ");
            let mut part =
                || parts.next().unwrap_or_else(|| panic!("not SUITE | NAME | REASON: {line}"));
            (part(), part(), part())
        });
    entries.filter(|entry| entry.0 == suite).map(|entry| entry.1.to_string()).collect()
}

/// The recipes, by name.
pub fn all() -> Vec<String> {
    let recipes =
        fs::read_dir(recipes()).expect("tests/suites").flatten().map(|entry| entry.path());
    let scripts = recipes.filter(|path| {
        path.extension().is_some_and(|kind| kind == "sh") && !path.ends_with("run.sh")
    });
    let mut names: Vec<String> =
        scripts.filter_map(|path| Some(path.file_stem()?.to_string_lossy().into_owned())).collect();
    names.sort();
    names
}

pub fn recipes() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("suites")
}

/// Where suites and their logs are kept.
pub fn home() -> PathBuf {
    target().join("suites")
}

fn recipe(suite: &str, action: &str) -> Command {
    let mut command = Command::new("bash");
    command
        .arg(recipes().join("run.sh"))
        .args([suite, action])
        .env("SUITES", home())
        .stdin(Stdio::null());
    command
}

fn run(suite: &str, mode: Mode) -> Results {
    eprintln!("{suite}: {} ...", mode.name());
    let started = Instant::now();
    let log = home().join(format!("log/{suite}.{}", mode.name()));
    let mut command = recipe(suite, "run");
    mode.apply(&mut command);
    // Recipes open it again, one program after another and several at once.
    let _ = fs::remove_file(&log);
    let open = File::options().create(true).append(true).open(&log).expect("a log");
    let said = command.stderr(open).output().expect("bash");
    let text = String::from_utf8_lossy(&said.stdout).into_owned();
    let _ = fs::write(log.with_extension(format!("{}.results", mode.name())), &text);
    let results = Results::read(&text);
    let (passed, failed) = (results.passed.len(), results.failed.len());
    eprintln!(
        "{suite}: {} {passed} passed, {failed} failed, {} s",
        mode.name(),
        started.elapsed().as_secs()
    );
    results
}

/// Fetches a suite and runs it in every mode, or in none if nothing passes without Shortwire. What
/// fails newly is looked at once more, with a fresh run without Shortwire.
pub fn compare(suite: &str, modes: &[Mode]) -> Result<Row, Skip> {
    fs::create_dir_all(home().join("log")).expect("target/suites/log");
    let fetched = recipe(suite, "fetch")
        .stderr(File::create(home().join(format!("log/{suite}.fetch"))).expect("a log"))
        .output();
    let fetched = fetched.expect("bash");
    if !fetched.status.success() {
        let said = String::from_utf8_lossy(&fetched.stdout).into_owned();
        return skip(said.lines().last().unwrap_or("it cannot be fetched, see its log"));
    }
    let plain = run(suite, Mode::Plain);
    let modes = if plain.passed.is_empty() { &[] } else { modes };
    let none = BTreeSet::new;
    let mut row = Row {
        suite: suite.to_string(),
        plain,
        modes: vec![],
        newly: vec![],
        unsteady: none(),
        explained: none(),
    };
    let known = explained(suite);
    for &mode in modes {
        let results = run(suite, mode);
        let mut newly = results.newly_failing(&row.plain);
        row.explained.extend(newly.intersection(&known).cloned());
        newly.retain(|name| !known.contains(name));
        if !newly.is_empty() {
            let again = run(suite, Mode::Plain);
            let twice = run(suite, mode).newly_failing(&again);
            row.unsteady.extend(newly.iter().filter(|name| !twice.contains(*name)).cloned());
            newly.retain(|name| twice.contains(name));
        }
        row.modes.push((mode, results));
        row.newly.push((mode, newly));
    }
    Ok(row)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn results_are_read() {
        let plain = Results::read(
            "begin a\nok a\nok b\nnot ok c\nskip d\nnoise\nok twice\nnot ok twice\nbegin hangs\n\
            begin again\nbegin again\nok again\n",
        );
        assert_eq!((plain.total(), plain.passed.len()), (6, 3));
        assert_eq!(plain.failed.iter().collect::<Vec<_>>(), ["c", "hangs", "twice"]);
        let under = Results::read("not ok a\nbegin b\nok c\n");
        assert_eq!(under.newly_failing(&plain).iter().collect::<Vec<_>>(), ["a", "again", "b"]);
        assert!(plain.newly_failing(&plain).is_empty());
    }

    #[test]
    fn explanations_are_read() {
        let text = "# redis | no | no\nredis | a: b | why | so\n\nnode | c | why\n";
        assert_eq!(read_explained(text, "redis").iter().collect::<Vec<_>>(), ["a: b"]);
        for suite in all() {
            explained(&suite);
        }
    }
}
