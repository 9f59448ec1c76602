//! `shortwire config`: what configuration files say, and whether they can be used.

mod args;
mod show;

use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::process::ExitCode;

use anyhow::{Context, Result};
pub use args::Config;
use args::{Check, ConfigCommand};
use smc::policy::{File, Found, Statement, parse};

use crate::conffiles::{health, looked_at, path, places};

pub fn run(args: &Config) -> Result<ExitCode> {
    match &args.command {
        ConfigCommand::Check(args) => check(args),
        ConfigCommand::Show(args) => show::run(args),
    }
}

fn check(args: &Check) -> Result<ExitCode> {
    let found = match &args.file {
        None => Found::read(&places(), rustix::process::geteuid().as_raw()),
        // One that is about to be put into its place, where whose it is will be looked at.
        Some(file) => {
            let text = fs::read(file).with_context(|| format!("cannot read {}", file.display()))?;
            let path = file.as_os_str().as_bytes().to_vec();
            Found { files: vec![File { path, text }], refused: Vec::new() }
        }
    };
    let health = health(&found);
    if args.json {
        let files: Vec<_> = found.files.iter().map(|file| path(&file.path)).collect();
        let report = serde_json::json!({ "files": files, "problems": health.problems, "remarks": health.remarks });
        crate::json::print(&report)?;
    } else {
        for remark in health.problems.iter().chain(&health.remarks) {
            terminal::outln!("{remark}")?;
        }
        for file in &found.files {
            let name = path(&file.path);
            if !health.problems.iter().any(|remark| remark.file == name) {
                terminal::outln!("{}: {}", name.display(), count(file))?;
            }
        }
        if found.files.is_empty() && found.refused.is_empty() {
            terminal::outln!("There is no configuration file ({}).", looked_at(&places()))?;
        }
        if !health.problems.is_empty() {
            terminal::outln!(
                "Programs that are started now stay on TCP, until this is corrected."
            )?;
        }
    }
    Ok(if health.problems.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

fn count(file: &File) -> String {
    let rules = parse(&file.text).filter(|(_, said)| matches!(said, Ok(Statement::Rule(_))));
    let (all, rules) = (parse(&file.text).count(), rules.count());
    let many = |n: usize, what| format!("{n} {what}{}", if n == 1 { "" } else { "s" });
    format!("{}, {}", many(all - rules, "setting"), many(rules, "rule"))
}
