//! `make quick`: format, lints, and the unit tests of what changed since the branch left main.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;
use std::process::Command;
use std::thread;

use crate::all::{CLIPPY, tests};
use crate::cargo::{self, Binary};
use crate::children;
use crate::isolate::Isolation;
use crate::pool::{self, Pool, Share};
use crate::screen::Screen;
use crate::tally::Tally;

pub fn run() -> Result<bool, String> {
    let screen = Screen::new();
    pool::sweep();
    let packages = packages(&changed()?);
    let pool = Pool::new(Isolation::probe(), &screen);
    let named = packages.iter().map(String::as_str).collect::<Vec<_>>();
    screen.block(&format!(
        "changed: {}",
        if named.is_empty() { "no package".to_string() } else { named.join(", ") }
    ));
    let selection: Vec<&str> = named.iter().flat_map(|name| ["-p", name]).collect();
    thread::scope(|scope| {
        for _ in 0..pool.width() {
            scope.spawn(|| pool.work(Share::All));
        }
        let mut steps = vec![("format", vec!["fmt", "--all", "--check"])];
        if !selection.is_empty() {
            let (all, denied) =
                CLIPPY.split_at(CLIPPY.iter().position(|word| *word == "--quiet").unwrap_or(0));
            let lints = all
                .iter()
                .copied()
                .filter(|word| *word != "--workspace")
                .chain(selection.iter().copied());
            steps.push(("clippy", lints.chain(denied.iter().copied()).collect()));
        }
        for (name, arguments) in steps {
            pool.begin(name);
            let ended = children::run(cargo::command().args(arguments), None);
            let tally = if ended.success { Tally::one_passed() } else { Tally::one_failed(name) };
            pool.step(name, &ended, tally);
        }
        if !selection.is_empty() {
            let mut binaries = tests(&pool, "tests", &selection, &[]);
            binaries.retain(|binary| !Binary::is_system_test(binary));
            pool.add(binaries);
        }
        pool.close();
    });
    let sum = pool.finish();
    for remark in &sum.remarks {
        println!("{remark}");
    }
    println!("{}", sum.closing_line());
    Ok(sum.failed == 0)
}

fn git(arguments: &[&str]) -> Result<Vec<String>, String> {
    let ended = children::run(Command::new("git").current_dir(crate::root()).args(arguments), None);
    if ended.success { Ok(ended.lines) } else { Err(ended.lines.join("\n")) }
}

/// Files that differ from where this branch left main, new ones too.
fn changed() -> Result<Vec<String>, String> {
    let bases = ["main", "origin/main"].map(|main| git(&["merge-base", main, "HEAD"]));
    let base =
        bases.into_iter().find_map(|base| base.ok()?.pop()).unwrap_or_else(|| "HEAD".to_string());
    let mut files = git(&["diff", "--name-only", &base])?;
    files.extend(git(&["ls-files", "--others", "--exclude-standard"])?);
    Ok(files)
}

/// The packages that files belong to: the nearest directory upwards with a manifest that names one.
fn packages(files: &[String]) -> BTreeSet<String> {
    files.iter().filter_map(|file| package(Path::new(file))).collect()
}

fn package(file: &Path) -> Option<String> {
    let of = |directory: &Path| {
        let manifest = fs::read_to_string(crate::root().join(directory).join("Cargo.toml")).ok()?;
        // fuzz is no member of the workspace.
        let section =
            manifest.split("[package]").nth(1).filter(|_| !directory.starts_with("fuzz"))?;
        Some(
            section
                .lines()
                .find_map(|line| line.strip_prefix("name = \""))?
                .split('"')
                .next()?
                .to_string(),
        )
    };
    file.ancestors().skip(1).find_map(of)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_belong_to_the_nearest_package() {
        let files = [
            "crates/shm/src/lib.rs",
            "crates/checksum/capi/src/lib.rs",
            "tests/tests/kill.rs",
            "Cargo.toml",
            "doc/x.md",
            "fuzz/x.rs",
        ];
        let found = packages(&files.map(str::to_string));
        assert_eq!(found.into_iter().collect::<Vec<_>>(), ["checksum-capi", "shm", "system-tests"]);
    }
}
