//! A service unit: whether it loads the library, and what its sandbox means for that.

use std::fs;
use std::path::Path;
use std::process::Command;

use anyhow::{Result, bail};

use super::{Report, process};
use crate::finding::Finding;
use crate::run::{find_library, find_program};
use crate::units::{Scope, Unit, full_name, sandbox};

/// The unit that is meant: one that is called so in full, or one of whose name there is no program.
pub fn named(name: &str, scope: &Scope) -> Result<Option<Unit>> {
    if name.contains('/') {
        return Ok(None);
    }
    let is_full = name.ends_with(".service") || name.contains('@');
    if !is_full && find_program(name.as_ref(), std::env::var_os("PATH").as_deref()).is_ok() {
        return Ok(None);
    }
    match Unit::find(name, scope, None)? {
        None if is_full => bail!("there is no unit {}", full_name(name)),
        found => Ok(found),
    }
}

pub fn examine(unit: &Unit, scope: &Scope) -> Result<Report> {
    let files: Vec<String> = unit.files.iter().map(|path| path.display().to_string()).collect();
    let mut findings = vec![loads(unit, scope), Finding::good(format!("is {}", files.join(", ")))];
    let library = find_library()?.path;
    findings.extend(sandbox::meanings(unit, scope, &library).into_iter().map(|m| m.finding));
    // What runs, if systemd does.
    if let Some(pid) = main_process(unit, scope) {
        findings.push(Finding::good(format!("runs, as process {pid}:")));
        findings.extend(process::examine(pid)?.findings);
    }
    Ok(Report { subject: unit.name.clone(), findings })
}

/// Whether the program that it starts is given the library.
fn loads(unit: &Unit, scope: &Scope) -> Finding {
    let named = match sandbox::own_environment(unit, scope) {
        Some(path) => fs::read_to_string(path).ok(),
        None => unit.variable("LD_PRELOAD"),
    };
    let under_run = unit.all("ExecStart").iter().any(|line| line.contains("shortwire run"));
    let named = named.unwrap_or_default();
    let path = named
        .split(|c: char| c.is_whitespace() || matches!(c, ':' | '\'' | '='))
        .find(|word| word.ends_with("/libshortwire.so"));
    match path {
        Some(path) if !scope.path(path).exists() => Finding::obstacle(
            format!("names the library {path}, which is not there"),
            format!("`shortwire enable {}` names the one that is.", unit.name),
        ),
        Some(path) => Finding::good(format!("loads {path} when it is started")),
        None if under_run => Finding::good("is started under `shortwire run`"),
        None => Finding::obstacle(
            "does not load the library",
            format!("`shortwire enable {}`, and restart it.", unit.name),
        ),
    }
}

fn main_process(unit: &Unit, scope: &Scope) -> Option<u32> {
    if !Path::new("/run/systemd/system").exists() || scope.root != Path::new("/") {
        return None;
    }
    let mut systemctl = Command::new("systemctl");
    if scope.user {
        systemctl.arg("--user");
    }
    let said = systemctl.args(["show", "-p", "MainPID", "--value", &unit.name]).output().ok()?;
    String::from_utf8_lossy(&said.stdout).trim().parse().ok().filter(|pid| *pid > 0)
}
