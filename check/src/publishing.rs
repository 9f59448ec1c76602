//! What is asked of the sources because others build on them: documents without a fault, licences
//! and sources of what is linked in, and the oldest compiler of the crate that is published.

use std::process::Command;

use crate::{cargo, children, target};

/// The steps: a name, and the command or why it cannot be run here.
pub fn steps() -> Vec<(&'static str, Result<Command, String>)> {
    vec![
        ("documentation", Ok(documentation())),
        ("cargo-deny", deny()),
        ("oldest compiler of the checksum", oldest()),
    ]
}

/// Two crates whose pages would have one name are a warning of cargo's, with which it ends well.
fn documentation() -> Command {
    let script = "said=$(\"$0\" doc --workspace --no-deps --keep-going --color never 2>&1); status=$?; echo \"$said\"
        case $said in *warning:*) exit 1;; *) exit $status;; esac";
    let cargo = cargo::command();
    let mut command = Command::new("sh");
    command
        .current_dir(crate::root())
        .args(["-c", script])
        .arg(cargo.get_program())
        .env("RUSTDOCFLAGS", "-D warnings");
    command
}

/// Known holes are looked for where the list of them is here: it comes from a place that not every
/// machine reaches.
fn deny() -> Result<Command, String> {
    let mut command = cargo::command();
    if !children::run(cargo::command().args(["deny", "--version"]), None).success {
        return Err("cargo-deny is not installed (cargo install cargo-deny)".to_string());
    }
    command.args(["deny", "--log-level", "error", "check", "bans", "licenses", "sources"]);
    Ok(command)
}

/// The version that the crate's manifest promises. Lints look for newer functions in any case; this
/// compiles it.
fn oldest() -> Result<Command, String> {
    let manifest = std::fs::read_to_string(crate::root().join("crates/checksum/Cargo.toml"))
        .unwrap_or_default();
    let version =
        manifest.lines().find_map(|line| line.strip_prefix("rust-version = \"")?.strip_suffix('"'));
    let version = version.ok_or("crates/checksum/Cargo.toml names no rust-version")?;
    let toolchain = format!("+{version}");
    // Not `rustup run`, which would fetch it.
    let there = children::run(Command::new("rustup").args(["toolchain", "list"]), None);
    if !there.lines.iter().any(|line| line.starts_with(version)) {
        return Err(format!(
            "Rust {version} is not installed (rustup toolchain install {version})"
        ));
    }
    let mut command = Command::new("cargo");
    command.current_dir(crate::root()).args([
        &toolchain,
        "check",
        "--quiet",
        "--package",
        "shortwire-checksum",
    ]);
    command.env("CARGO_TARGET_DIR", target().join("oldest")).env_remove("RUSTUP_TOOLCHAIN");
    Ok(command)
}
