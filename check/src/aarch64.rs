//! The checksum's NEON kernel: its tests, compiled for aarch64 and run by qemu.

use std::process::Command;

use crate::{cargo, children};

const TARGET: &str = "aarch64-unknown-linux-gnu";
const LINKER: &str = "aarch64-linux-gnu-gcc";
const QEMU: &str = "qemu-aarch64";
/// Where Debian's cross packages put the C library.
const SYSROOT: &str = "/usr/aarch64-linux-gnu";

/// The command that runs the tests, or why it cannot be run here.
pub fn command() -> Result<Command, String> {
    for tool in [LINKER, QEMU] {
        if !children::run(Command::new(tool).arg("--version"), None).success {
            return Err(format!("{tool} is not installed"));
        }
    }
    if !children::run(Command::new("rustup").args(["target", "add", TARGET]), None).success {
        return Err(format!("rustup cannot add the target {TARGET}"));
    }
    let mut command = cargo::command();
    command
        .args(["test", "--package", "shortwire-checksum", "--tests", "--target", TARGET])
        .env("CARGO_TARGET_AARCH64_UNKNOWN_LINUX_GNU_LINKER", LINKER)
        .env("CARGO_TARGET_AARCH64_UNKNOWN_LINUX_GNU_RUNNER", format!("{QEMU} -L {SYSROOT}"));
    Ok(command)
}
