//! `shortwire ueid` and `seid`: the enterprise IDs that `shortwire run` gives to programs.
//!
//! The rules are those of `smcd ueid` and `smcd seid`: four user-defined EIDs at most, and the
//! system's own EID is enabled as long as there is none.

mod args;

use std::env;
use std::fs;
use std::io::{ErrorKind, Write};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::{Context, Result, ensure};
pub use args::{Seid, Ueid};
use args::{SeidCommand, UeidCommand};
use serde::{Deserialize, Serialize};
use smc::clc::Eid;

use crate::run::{Run, parse_ueid};

const SYSTEM: &str = "/etc/shortwire/eids.toml";
/// As in the kernel's table.
const MOST: usize = 4;

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Eids {
    /// User-defined EIDs.
    #[serde(default)]
    pub ueids: Vec<String>,
    /// Whether the system's own is enabled.
    #[serde(default = "enabled")]
    pub seid: bool,
}

fn enabled() -> bool {
    true
}

impl Default for Eids {
    fn default() -> Self {
        Eids { ueids: Vec::new(), seid: true }
    }
}

impl Eids {
    fn parse(text: &str) -> Result<Eids> {
        let eids: Eids = toml::from_str(text)?;
        for ueid in &eids.ueids {
            parse_ueid(ueid).map_err(anyhow::Error::msg).with_context(|| format!("\"{ueid}\""))?;
        }
        ensure!(
            eids.ueids.len() <= MOST,
            "there are {} user-defined EIDs, {MOST} are possible",
            eids.ueids.len()
        );
        ensure!(
            eids.seid || !eids.ueids.is_empty(),
            "the system's EID is disabled and there is no other"
        );
        Ok(eids)
    }

    fn add(&mut self, ueid: &str) -> Result<()> {
        let ueid = parse_ueid(ueid)
            .map_err(anyhow::Error::msg)
            .with_context(|| format!("\"{ueid}\" is no EID"))?;
        ensure!(!self.ueids.contains(&ueid), "{ueid} is there already");
        ensure!(
            self.ueids.len() < MOST,
            "there are {MOST} EIDs already, and no more are possible; delete one first"
        );
        self.ueids.push(ueid);
        Ok(())
    }

    /// Whether the system's EID was enabled by it.
    fn delete(&mut self, ueid: &str) -> Result<bool> {
        let at = self.ueids.iter().position(|known| known == ueid);
        self.ueids
            .remove(at.with_context(|| format!("{ueid} is not there; see `shortwire ueid show`"))?);
        Ok(self.enable_if_alone())
    }

    fn enable_if_alone(&mut self) -> bool {
        let was = self.seid;
        self.seid |= self.ueids.is_empty();
        self.seid != was
    }

    fn disable_seid(&mut self) -> Result<()> {
        ensure!(
            !self.ueids.is_empty(),
            "without a user-defined EID there must be the system's; add one first (shortwire ueid add)"
        );
        self.seid = false;
        Ok(())
    }
}

/// `$XDG_CONFIG_HOME/shortwire/eids.toml`, usually below `~/.config`.
fn of_user() -> Option<PathBuf> {
    let set = |name| env::var_os(name).filter(|value| !value.is_empty()).map(PathBuf::from);
    let directory = set("XDG_CONFIG_HOME").or_else(|| Some(set("HOME")?.join(".config")))?;
    Some(directory.join("shortwire/eids.toml"))
}

/// None where there is no such file.
fn read(path: &Path) -> Result<Option<Eids>> {
    let text = match fs::read_to_string(path) {
        Ok(text) => text,
        Err(error) if matches!(error.kind(), ErrorKind::NotFound | ErrorKind::NotADirectory) => {
            return Ok(None);
        }
        // Another user's, whose HOME was kept by su, sudo or a container.
        Err(error) if error.kind() == ErrorKind::PermissionDenied => return Ok(None),
        Err(error) => return Err(error).with_context(|| format!("cannot read {}", path.display())),
    };
    Eids::parse(&text)
        .map(Some)
        .with_context(|| format!("{} cannot be used; correct or remove it", path.display()))
}

fn write(path: &Path, eids: &Eids) -> Result<()> {
    let failed = || format!("cannot write {}", path.display());
    let folder = path.parent().with_context(failed)?;
    fs::create_dir_all(folder).with_context(failed)?;
    // Whole or not at all: a program may start at any time.
    let mut file = tempfile::NamedTempFile::new_in(folder).with_context(failed)?;
    file.write_all(b"# Written by `shortwire ueid` and `shortwire seid`.\n")
        .with_context(failed)?;
    file.write_all(toml::to_string(eids)?.as_bytes()).with_context(failed)?;
    let everybody = <fs::Permissions as std::os::unix::fs::PermissionsExt>::from_mode(0o644);
    file.as_file().set_permissions(everybody).with_context(failed)?;
    file.persist(path).with_context(failed)?;
    Ok(())
}

/// The first file that exists counts.
fn in_force(places: &[PathBuf]) -> Result<Eids> {
    for place in places {
        if let Some(eids) = read(place)? {
            return Ok(eids);
        }
    }
    Ok(Eids::default())
}

fn places() -> Vec<PathBuf> {
    of_user().into_iter().chain([SYSTEM.into()]).collect()
}

/// What programs have that are started from here: the variables of the environment, and the table
/// where they say nothing.
pub fn of_new_programs() -> Result<Eids> {
    let set = |name| env::var(name).ok().filter(|value: &String| !value.is_empty());
    let mut eids = in_force(&places())?;
    if let Some(list) = set("SHORTWIRE_UEID") {
        eids.ueids = list.split(',').map(String::from).collect();
    }
    if let Some(switch) = set("SHORTWIRE_SEID") {
        eids.seid = smc::setting::switch(switch.as_bytes()).unwrap_or(true);
    }
    Ok(eids)
}

/// What the table adds to a program's settings; what was said on the command line or in the
/// environment goes before. A table that cannot be read is an error: it may be there to keep
/// programs apart.
pub fn variables(args: &Run) -> Result<Vec<(&'static str, String)>> {
    if args.rsocket.is_some() || args.disable || (!args.ueid.is_empty() && args.seid.is_some()) {
        return Ok(Vec::new());
    }
    Ok(additions(&in_force(&places())?, args))
}

fn additions(eids: &Eids, args: &Run) -> Vec<(&'static str, String)> {
    let mut variables = Vec::new();
    if args.ueid.is_empty() && !eids.ueids.is_empty() {
        variables.push(("SHORTWIRE_UEID", eids.ueids.join(",")));
    }
    if args.seid.is_none() && !eids.seid {
        variables.push(("SHORTWIRE_SEID", "off".into()));
    }
    variables
}

/// The file to show or change, and what it has; a user's first change starts from what counted so
/// far.
fn table(system: bool) -> Result<(PathBuf, Eids)> {
    if system {
        let path = PathBuf::from(SYSTEM);
        let eids = read(&path)?.unwrap_or_default();
        return Ok((path, eids));
    }
    let path = of_user().context("neither XDG_CONFIG_HOME nor HOME is set; use --system")?;
    Ok((path, in_force(&places())?))
}

pub fn ueid(args: &Ueid) -> Result<ExitCode> {
    let (path, mut eids) = table(args.system)?;
    let show = UeidCommand::Show { json: false };
    let enabled = match args.command.as_ref().unwrap_or(&show) {
        UeidCommand::Show { json: true } => {
            crate::json::print(&eids)?;
            return Ok(ExitCode::SUCCESS);
        }
        UeidCommand::Show { json: false } => {
            for ueid in &eids.ueids {
                terminal::outln!("{ueid}")?;
            }
            return Ok(ExitCode::SUCCESS);
        }
        UeidCommand::Add { ueid } => eids.add(ueid).map(|()| false)?,
        UeidCommand::Del { ueid } => eids.delete(ueid)?,
        UeidCommand::Flush => {
            eids.ueids.clear();
            eids.enable_if_alone()
        }
    };
    write(&path, &eids)?;
    if enabled {
        terminal::outln!("The system's own EID is enabled again.")?;
    }
    Ok(ExitCode::SUCCESS)
}

pub fn seid(args: &Seid) -> Result<ExitCode> {
    let (path, mut eids) = table(args.system)?;
    match args.command {
        None | Some(SeidCommand::Show { json: false }) => {
            let state = if eids.seid { "enabled" } else { "disabled" };
            terminal::outln!("{} [{state}]", Eid::LOOPBACK_SEID)?;
            return Ok(ExitCode::SUCCESS);
        }
        Some(SeidCommand::Show { json: true }) => {
            let object =
                serde_json::json!({ "seid": Eid::LOOPBACK_SEID.to_string(), "enabled": eids.seid });
            crate::json::print(&object)?;
            return Ok(ExitCode::SUCCESS);
        }
        Some(SeidCommand::Enable) => eids.seid = true,
        Some(SeidCommand::Disable) => eids.disable_seid()?,
    }
    write(&path, &eids)?;
    Ok(ExitCode::SUCCESS)
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[test]
    fn the_rules_of_the_table() {
        let mut eids = Eids::default();
        assert!(eids.disable_seid().unwrap_err().to_string().contains("ueid add"));
        for ueid in ["A", "B.1", "C-2", "0"] {
            eids.add(ueid).unwrap();
        }
        let full = eids.add("E").unwrap_err().to_string();
        assert!(full.contains("delete one first"), "{full}");
        assert!(eids.delete("E").unwrap_err().to_string().contains("not there"));
        eids.disable_seid().unwrap();
        for ueid in ["A", "B.1", "C-2"] {
            assert!(!eids.delete(ueid).unwrap());
        }
        assert!(
            eids.delete("0").unwrap() && eids.seid,
            "with the last one gone the system's is enabled"
        );
    }

    #[test]
    fn bad_eids_are_refused_with_a_reason() {
        let why = |ueid: &str| format!("{:#}", Eids::default().add(ueid).unwrap_err());
        for (bad, reason) in [
            ("", "1 to 32 characters"),
            (&"A".repeat(33), "1 to 32 characters"),
            ("shop", "A-Z"),
            ("A B", "A-Z"),
            (".A", "begins with"),
            ("A..B", "two dots"),
        ] {
            assert!(why(bad).contains(reason), "{bad}: {}", why(bad));
        }
        let mut eids = Eids::default();
        eids.add("A").unwrap();
        assert!(eids.add("A").unwrap_err().to_string().contains("already"));
    }

    #[test]
    fn files() {
        let folder = tempfile::tempdir().unwrap();
        let path = |name: &str| folder.path().join(name);
        let (own, system) = (path("new/own.toml"), path("system.toml"));
        let places = [own.clone(), system.clone()];
        assert_eq!(in_force(&places).unwrap(), Eids::default());
        let shop = Eids { ueids: vec!["SHOP.1".into()], seid: false };
        write(&system, &shop).unwrap();
        assert_eq!(in_force(&places).unwrap(), shop);
        write(&own, &Eids::default()).unwrap();
        assert_eq!(in_force(&places).unwrap(), Eids::default(), "the user's own goes before");
        for damaged in [
            "ueids = [\"lower\"]",
            "ueids = 1",
            "seid = false",
            "other = 1",
            "[",
            "ueids = [\"A\",\"B\",\"C\",\"D\",\"E\"]",
        ] {
            fs::write(&own, damaged).unwrap();
            let said = format!("{:#}", in_force(&places).unwrap_err());
            assert!(said.contains("own.toml cannot be used"), "{damaged}: {said}");
        }
    }

    #[test]
    fn what_run_is_told_goes_before_the_table() {
        let of = |options: &[&str]| {
            let run =
                Run::try_parse_from(["run"].iter().chain(options).chain(&["--", "ls"])).unwrap();
            let eids = Eids { ueids: vec!["A".into(), "B".into()], seid: false };
            additions(&eids, &run)
                .into_iter()
                .map(|(name, value)| format!("{name}={value}"))
                .collect::<Vec<_>>()
        };
        assert_eq!(of(&[]), ["SHORTWIRE_UEID=A,B", "SHORTWIRE_SEID=off"]);
        assert_eq!(of(&["--ueid", "C"]), ["SHORTWIRE_SEID=off"]);
        assert_eq!(of(&["--seid", "on"]), ["SHORTWIRE_UEID=A,B"]);
    }
}
