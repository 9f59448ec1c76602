//! `make check-arm64`, and a part of `make check`: everything is built for arm64, and what user
//! emulation (qemu) can run is run; and two programs in a guest are seen to share memory. `make check-arm64`
//! runs whole-system tests in a guest, too.
//!
//! What user emulation cannot: it answers getsockopt(TCP_INFO) with four bytes, without which no connection
//! leaves TCP, so tests of connections would wait for ever; it has no process_vm_writev, of which the
//! devices that copy are made; madvise(MADV_REMOVE) does nothing there; it has no io_setup, by which
//! peers of Memif and VhostUser are woken; and it refuses a limit on address space that it would break
//! itself. Threads run one access after the other as x86-64 has
//! them: orderings are for the models, which loom runs, and Miri.

use std::ffi::OsString;
use std::process::Command;

use crate::cargo::Binary;
use crate::{cargo, children, target};

const TARGET: &str = "aarch64-unknown-linux-gnu";
const LINKER: &str = "aarch64-linux-gnu-gcc";
const LINKER_OF_CARGO: &str = "CARGO_TARGET_AARCH64_UNKNOWN_LINUX_GNU_LINKER";
const QEMU: &str = "qemu-aarch64";
/// Where Debian's cross packages put the C library.
const SYSROOT: &str = "/usr/aarch64-linux-gnu";

/// Programs and libraries, all of which `make TARGET=...` builds with optimisation.
const PRODUCTS: &[&str] =
    &["preload", "rsocket", "rspreload", "checksum-capi", "shortwire", "bench", "bench-checksum"];

/// What is left out of the tests of `shm`, `dibs`, `smc` and `engine`, for the reasons above.
const NOT_EMULATED: &[&str] = &[
    "address::",
    "inet::",
    "discarded_part",
    "ism::",
    "verbs::",
    "conn::together",
    "meet::tests",
    "owner::tests",
    "memif::ring::",
    "peer::bell::",
];

/// What of `socket` makes no connection.
const WITHOUT_CONNECTIONS: &[&str] = &["spin::", "programs::", "fork::"];

/// Whole-system tests that need neither a device nor a program that Debian has not for arm64.
const IN_A_GUEST: &[&str] =
    &["transfer", "process", "kill", "hostile", "languages", "programs", "conformance"];

/// Of the programs that are emulated, those that need what is built with optimisation, and take hours.
const BUILT_AS_SHIPPED: &[&str] = &["guest::whole_system_tests", "shipped::"];

/// A step: its name, and the command.
pub struct Step {
    pub name: &'static str,
    pub command: Command,
}

/// What is built, one after the other, or why it cannot be done here.
pub fn builds() -> Result<Vec<Step>, String> {
    for tool in [LINKER, QEMU] {
        if !children::run(Command::new(tool).arg("--version"), None).success {
            return Err(format!("{tool} is not installed"));
        }
    }
    if !children::run(Command::new("rustup").args(["target", "add", TARGET]), None).success {
        return Err(format!("rustup cannot add the target {TARGET}"));
    }
    let mut products = cargo::command();
    products.args(["build", "--target", TARGET]).env(LINKER_OF_CARGO, LINKER);
    products.args(PRODUCTS.iter().flat_map(|name| ["-p", name]));
    let mut raw = release();
    raw.arg("raw");
    Ok(vec![
        Step { name: "build for arm64", command: products },
        Step { name: "shortwire-raw for arm64", command: raw },
    ])
}

/// Tests of crates that user emulation runs: what to call them, what cargo is told to build, and which of
/// them are meant.
pub struct Emulated {
    pub name: &'static str,
    build: &'static str,
    selection: Vec<&'static str>,
}

pub fn emulated() -> [Emulated; 4] {
    let units = "-p shm -p dibs -p smc -p engine --lib --test lock --test segment --test capture --test configure";
    let emulated = |name, build, selection| Emulated { name, build, selection };
    [
        emulated("system calls for arm64", "-p sites --tests", Vec::new()),
        emulated("checksum for arm64", "-p shortwire-checksum --tests", Vec::new()),
        emulated(
            "unit tests for arm64",
            units,
            NOT_EMULATED.iter().flat_map(|name| ["--skip", name]).collect(),
        ),
        emulated("socket for arm64", "-p socket --lib", WITHOUT_CONNECTIONS.to_vec()),
    ]
}

impl Emulated {
    /// What cargo is told, and what it finds in its environment.
    pub fn cargo(&self) -> (Vec<&'static str>, [(&'static str, OsString); 1]) {
        let arguments = ["--target", TARGET].into_iter().chain(self.build.split(' ')).collect();
        (arguments, [(LINKER_OF_CARGO, LINKER.into())])
    }

    /// One of the programs that cargo built.
    pub fn program(&self, mut binary: Binary) -> Binary {
        binary.package += " on arm64";
        binary.emulator = [QEMU, "-L", SYSROOT].map(str::to_string).to_vec();
        binary.selection = self.selection.iter().map(ToString::to_string).collect();
        binary
    }
}

/// The test program that runs programs of arm64 and boots guests.
pub fn is_ours(binary: &Binary) -> bool {
    binary.is_system_test() && binary.name == "arm64"
}

/// That program, for what was built with [`builds`].
pub fn programs(mut binary: Binary) -> Binary {
    binary.ignored = true;
    let skips = BUILT_AS_SHIPPED.iter().flat_map(|name| ["--skip", name]);
    binary.selection = skips.map(str::to_string).collect();
    let products = target().join(TARGET).join("debug");
    binary.settings = vec![("SHORTWIRE_ARM64".to_string(), products.into_os_string())];
    binary
}

/// That program, to say what is left to `make check-arm64`.
pub fn left_out(mut binary: Binary) -> Binary {
    binary.selection = BUILT_AS_SHIPPED.iter().map(ToString::to_string).collect();
    binary
}

/// What `make TARGET=...` builds is what runs in a guest, optimised as it is shipped.
pub fn release() -> Command {
    let mut make = Command::new(std::env::var_os("MAKE").unwrap_or_else(|| "make".into()));
    make.current_dir(crate::root()).arg(format!("TARGET={TARGET}"));
    make.env_remove("MAKEFLAGS").env_remove("MAKELEVEL");
    make
}

/// What cargo is told to build those tests for a guest.
pub fn tests() -> (Vec<&'static str>, [(&'static str, OsString); 1]) {
    let named = IN_A_GUEST.iter().flat_map(|name| ["--test", *name]);
    let arguments = ["--target", TARGET, "-p", "system-tests"].into_iter().chain(named).collect();
    (arguments, [(LINKER_OF_CARGO, LINKER.into())])
}

/// Runs them there; with a name only those that have it in "PROGRAM TEST".
pub fn in_a_guest(binaries: &[Binary], name: &str) -> Command {
    let mut command = cargo::command();
    command.args(["test", "-p", "system-tests", "--test", "arm64", "--"]);
    command.args(["--ignored", "--nocapture"]);
    // With a name it is for whole-system tests alone.
    command.args(if name.is_empty() { BUILT_AS_SHIPPED } else { &BUILT_AS_SHIPPED[..1] });
    let paths = std::env::join_paths(binaries.iter().map(|binary| &binary.path));
    command.env("SHORTWIRE_ARM64", target().join(TARGET).join("release"));
    command.env("SHORTWIRE_ARM64_TESTS", paths.unwrap_or_default());
    command.env("SHORTWIRE_ARM64_ONLY", name);
    command
}

/// The models of what is shared without a lock once more, where a load may return an old value and what is
/// sequentially consistent is so as in the language.
pub fn models() -> Result<Vec<Step>, String> {
    let miri = |arguments: &str| {
        let mut command = Command::new("cargo");
        command.current_dir(crate::root()).args(["+nightly", "miri"]);
        command.args(arguments.split_whitespace());
        command.env("CARGO_TARGET_DIR", target().join("miri")).env_remove("RUSTUP_TOOLCHAIN");
        command
    };
    if !children::run(&mut miri("--version"), None).success {
        let how = "rustup toolchain install nightly --component miri,rust-src";
        return Err(format!("Miri is not installed ({how})"));
    }
    let test = format!("test --target {TARGET}");
    // Unit tests of the modules that models take in ask the kernel for what Miri knows not.
    let of = "-p shm -p smc -p socket -p rsocket -p engine --test loom --no-fail-fast -- --skip ::tests::";
    let models = miri(&format!("{test} {of}"));
    let threads = miri(&format!("{test} -p shm --test threads"));
    Ok(vec![
        Step { name: "weak memory (Miri)", command: models },
        Step { name: "bytes in weak memory (Miri)", command: threads },
    ])
}
