//! The checksum's NEON kernel: its tests, compiled for aarch64 and run by qemu.

use std::ffi::OsStr;
use std::process::Command;

const TARGET: &str = "aarch64-unknown-linux-gnu";
const LINKER: &str = "aarch64-linux-gnu-gcc";
const QEMU: &str = "qemu-aarch64";
/// Where Debian's cross packages put the C library.
const SYSROOT: &str = "/usr/aarch64-linux-gnu";

/// The command that runs the tests, or why it cannot be run here.
pub fn command(cargo: impl AsRef<OsStr>) -> Result<Command, String> {
    for tool in [LINKER, QEMU] {
        if !runs(Command::new(tool).arg("--version")) {
            return Err(format!("no {tool} (`make packages` as root installs it)"));
        }
    }
    if !runs(Command::new("rustup").args(["target", "add", TARGET])) {
        return Err(format!("rustup cannot add the target {TARGET}"));
    }
    let mut command = Command::new(cargo);
    command
        .args(["test", "--package", "checksum", "--tests", "--target", TARGET])
        .env("CARGO_TARGET_AARCH64_UNKNOWN_LINUX_GNU_LINKER", LINKER)
        .env("CARGO_TARGET_AARCH64_UNKNOWN_LINUX_GNU_RUNNER", format!("{QEMU} -L {SYSROOT}"));
    Ok(command)
}

fn runs(command: &mut Command) -> bool {
    command.output().is_ok_and(|output| output.status.success())
}
