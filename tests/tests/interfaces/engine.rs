//! A running engine and its configuration.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use rustix::process::Signal;
use system_tests::{Case, Proc, Skip, secs, shortwire, skip};

use crate::wire::Namespace;

/// Apps (name, kind, arguments) and links, as the command reads them.
pub fn configuration(apps: &[(&str, &str, &str)], links: &[&str]) -> String {
    let apps =
        apps.iter().map(|(name, kind, args)| format!("{name} = {{ kind = \"{kind}\", {args} }}\n"));
    format!("links = {links:?}\n\n[apps]\n{}", apps.collect::<String>())
}

/// The shortest network: everything from one port to the other, both ways.
pub fn wire(kind: &str, one: &str, other: &str) -> String {
    configuration(
        &[("one", kind, one), ("other", kind, other)],
        &["one.tx -> other.rx", "other.tx -> one.rx"],
    )
}

pub fn start(case: &Case, namespace: &Namespace, configuration: &str) -> Result<Proc, Skip> {
    start_with(case, namespace.command(&shortwire()), configuration)
}

/// `command` ends with the command under test.
pub fn start_with(case: &Case, mut command: Command, configuration: &str) -> Result<Proc, Skip> {
    let help =
        Command::new(shortwire()).args(["engine", "--help"]).output().expect("shortwire runs");
    if !help.status.success() {
        return skip("this build of the command has no `engine`");
    }
    let path = write(case.dir(), configuration);
    Ok(case.start("engine", command.args(["engine", "--report", "links,apps"]).arg(path)))
}

fn write(dir: &Path, configuration: &str) -> PathBuf {
    let number = fs::read_dir(dir).map_or(0, Iterator::count);
    let path = dir.join(format!("network-{number}.toml"));
    fs::write(&path, configuration).expect("a configuration");
    path
}

/// Ends it as Ctrl-C does; it must end well.
pub fn stop(engine: Proc) {
    stop_with(engine, 0);
}

/// Ends it as Ctrl-C does; it must end with this status.
pub fn stop_with(mut engine: Proc, expected: i32) {
    engine.signal(Signal::INT);
    let status = engine.wait(secs(60));
    assert_eq!(
        status.code(),
        Some(expected),
        "the engine ended with {status}: {}",
        engine.stderr()
    );
}
