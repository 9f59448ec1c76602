//! What was asked of `shortwire run` and can have no effect, or not the one that was meant.

use std::path::Path;

use rustix::fs::{Access, access};

use super::args::{Run, Switch};
use super::settings;

/// Sentences for a person, with what to do. `variables` is what the program will be given.
pub fn doubts(args: &Run, variables: &[(&'static str, String)]) -> Vec<String> {
    let mut doubts = Vec::new();
    if args.rsocket.is_some() {
        let idle: Vec<String> = settings::variables(args)
            .iter()
            .filter(|(name, _)| !["SHORTWIRE_PREFER", "SHORTWIRE_QUIET"].contains(name))
            .map(|(name, _)| option(name))
            .collect();
        if !idle.is_empty() {
            doubts.push(format!(
                "{} means nothing to rsockets; of these options only --prefer does",
                idle.join(", ")
            ));
        }
        return doubts;
    }
    if args.disable {
        return doubts;
    }
    if let Some(directory) = &args.rendezvous
        && !Path::new(directory).is_dir()
    {
        doubts.push(format!(
            "--rendezvous {directory} is no directory: connections to other network namespaces stay TCP until it is one"
        ));
    }
    if let Some(bar) = &args.ivshmem
        && bar != "off"
        && !Path::new(bar).exists()
    {
        doubts.push(format!(
            "--ivshmem {bar} is not there: connections to other virtual machines stay TCP (`ls /sys/bus/pci/devices`)"
        ));
    }
    if let Some(log) = args.log.as_deref().filter(|log| log.as_bytes() != smc::log::JOURNAL)
        && !can_be_written(Path::new(log))
    {
        doubts.push(format!(
            "--log {log} cannot be written by this user: nothing will tell why connections stay TCP"
        ));
    }
    let has_ueid = variables.iter().any(|(name, _)| *name == "SHORTWIRE_UEID");
    if args.seid == Some(Switch::Off) && !has_ueid {
        doubts.push(
            "--seid off without --ueid leaves no enterprise ID: every connection stays TCP; give --ueid, such as SHOP.1".into(),
        );
    }
    doubts
}

/// A file, or the directory in which it will be made.
fn can_be_written(path: &Path) -> bool {
    let at = if path.exists() { path } else { path.parent().unwrap_or(path) };
    (at == path) != at.is_dir() && access(at, Access::WRITE_OK).is_ok()
}

fn option(variable: &str) -> String {
    let name = variable.trim_start_matches("SHORTWIRE_").to_lowercase();
    format!("--{}", name.replace('_', "-"))
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    fn doubts_of(arguments: &[&str]) -> String {
        let words = ["run"].iter().chain(arguments).chain(&["--", "ls"]);
        let run = Run::try_parse_from(words).unwrap();
        doubts(&run, &settings::variables(&run)).join("\n")
    }

    #[test]
    fn what_has_no_effect_is_told() {
        for (arguments, word) in [
            (&["--rendezvous", "/nonexistent"][..], "/nonexistent is no directory"),
            (&["--rendezvous", "/etc/passwd"], "is no directory"),
            (&["--ivshmem", "/nonexistent"], "/nonexistent is not there"),
            (&["--log", "/nonexistent/log"], "--log /nonexistent/log cannot be written"),
            (&["--log", "/etc/passwd/log"], "cannot be written"),
            (&["--log", "/tmp"], "cannot be written"),
            (&["--seid", "off"], "no enterprise ID"),
            (&["--rsocket", "--after", "3", "--integrity"], "--after, --integrity means nothing"),
        ] {
            assert!(doubts_of(arguments).contains(word), "{arguments:?}");
        }
        for good in [
            &[][..],
            &["--rendezvous", "/tmp"],
            &["--ivshmem", "off"],
            &["--log", "journald"],
            &["--log", "/tmp/no-such-log-of-shortwire"],
            &["--log", "/dev/null"],
            &["--seid", "off", "--ueid", "SHOP.1"],
            &["--seid", "on"],
            &["--rsocket", "--prefer", "verbs", "-q"],
            &["--disable", "--seid", "off"],
        ] {
            assert_eq!(doubts_of(good), "", "{good:?}");
        }
    }
}
