//! `make check`: every step runs even if an earlier one failed, and the last line sums them all up.
//!
//! Tests run while the rest is still being built: the system tests beside unit tests, lints, the other
//! architecture and models.

use std::collections::BTreeMap;
use std::env;
use std::ffi::OsString;
use std::fs;
use std::process::Command;
use std::sync::mpsc;
use std::thread;

use crate::cargo::{self, Binary};
use crate::children::{self, Ended};
use crate::isolate::Isolation;
use crate::pool::{self, Pool, Share};
use crate::screen::Screen;
use crate::tally::{SKIP_MARK, Tally};
use crate::{aarch64, publishing, target};

pub fn run() -> Result<bool, String> {
    pooled(build)
}

/// Only the system tests, or those with `name` in "BINARY TEST". They run what `make build` has
/// left.
pub fn system(name: &str) -> Result<bool, String> {
    pooled(|pool| {
        let binaries = tests(pool, "tests", &["-p", "system-tests"], &[]);
        pool.add_some(binaries.into_iter().filter(Binary::is_system_test).collect(), name);
    })
}

fn pooled(build: impl FnOnce(&Pool) + Send) -> Result<bool, String> {
    let screen = Screen::new();
    pool::sweep();
    let isolation = Isolation::probe();
    let pool = Pool::new(isolation, &screen);
    let how = match isolation {
        Isolation::None => "no namespaces can be had here, so one test at a time".to_string(),
        _ => format!("{} tests at a time, each in namespaces of its own", pool.width()),
    };
    screen.block(&format!("{} processors; {how}", crate::processors()));
    thread::scope(|scope| {
        for _ in 0..pool.width() {
            scope.spawn(|| pool.work(Share::All));
        }
        for _ in 0..pool.width() / 2 {
            scope.spawn(|| pool.work(Share::Sleepers));
        }
        // In a thread of its own: what it starts may be made to give way to the tests.
        let built = scope.spawn(|| build(&pool)).join();
        pool.close();
        // What was not built is not tested: without this the last line would tell of no failure.
        built.unwrap_or_else(|panic| std::panic::resume_unwind(panic));
    });
    let sum = pool.finish();
    println!();
    for remark in &sum.remarks {
        println!("{remark}");
    }
    for line in missing(&sum) {
        println!("{line}");
    }
    println!("{}", sum.closing_line());
    Ok(sum.failed == 0)
}

/// Builds everything at once, since the end of a build is for one processor; first what the system
/// tests need, which take longest.
fn build(pool: &Pool) {
    one(pool, "format", cargo::command().args(["fmt", "--all", "--check"]));
    let mut make = Command::new(env::var_os("MAKE").unwrap_or_else(|| "make".into()));
    make.current_dir(crate::root()).args(["-j", "build"]);
    make.env_remove("MAKEFLAGS").env_remove("MAKELEVEL");
    thread::scope(|scope| {
        let (built, wait) = mpsc::channel();
        scope.spawn(move || {
            if one(pool, "make build", &mut make) {
                pool.add(wait.recv().unwrap_or_default());
            }
        });
        let binaries = tests(pool, "system tests", &["-p", "system-tests"], &[]);
        let (on_arm64, here) = binaries.into_iter().partition(aarch64::is_ours);
        let _ = built.send(here);
        children::give_way();
        pool.add(tests(pool, "unit tests", &["--workspace", "--exclude", "system-tests"], &[]));
        one(pool, "clippy", cargo::command().args(CLIPPY));
        // The tests of programs for arm64 tell by name what is left to `make check-arm64`: all where nothing could be built.
        let built = for_arm64(pool, &on_arm64);
        let left_out = if built { aarch64::left_out } else { |binary| binary };
        pool.add(on_arm64.into_iter().map(left_out).collect());
        models_and_documents(pool);
    });
}

fn models_and_documents(pool: &Pool) {
    // Model checking builds everything anew with another configuration, and must not disturb the
    // usual build.
    let flags = format!("{} --cfg loom", env::var("RUSTFLAGS").unwrap_or_default());
    let environment =
        [("RUSTFLAGS", flags.into()), ("CARGO_TARGET_DIR", target().join("loom").into_os_string())];
    let models = tests(
        pool,
        "interleavings (loom)",
        &[
            "-p", "shm", "-p", "smc", "-p", "socket", "-p", "rsocket", "-p", "engine", "--test",
            "loom",
        ],
        &environment,
    );
    pool.add(models);
    let examples = "test --doc --no-fail-fast --workspace";
    // None of these three has examples (their manifests say so), and to name them costs a second build of much else: of what
    // build scripts use with other debug information, and of what the system tests ask for other features.
    let without = "--exclude system-tests --exclude build-id --exclude old-glibc";
    let mut examples_in_documents = cargo::command();
    examples_in_documents.args(examples.split(' ').chain(without.split(' ')));
    several(pool, "examples in documents", &mut examples_in_documents);
    for (name, command) in publishing::steps() {
        match command {
            Ok(mut command) => {
                one(pool, name, &mut command);
            }
            Err(why) => skipped(pool, name, &why),
        }
    }
}

/// `make check-arm64`; of the whole-system tests in a guest those with `name` in "BINARY TEST", and with a
/// name nothing else.
pub fn arm64(name: &str) -> Result<bool, String> {
    pooled(|pool| {
        if name.is_empty() {
            match aarch64::models() {
                Ok(steps) => steps
                    .into_iter()
                    .for_each(|mut step| several(pool, step.name, &mut step.command)),
                Err(why) => skipped(pool, MODELS, &why),
            }
            let own =
                tests(pool, "tests of programs", &["-p", "system-tests", "--test", "arm64"], &[]);
            if !for_arm64(pool, &own) {
                return;
            }
            // Time limits of the whole-system tests in a guest hold where nothing else takes its processors.
            pool.settle();
        }
        if one(pool, "release build for arm64", &mut aarch64::release()) {
            let (arguments, environment) = aarch64::tests();
            let binaries = tests(pool, "system tests for arm64", &arguments, &environment);
            several(pool, "arm64 guest", &mut aarch64::in_a_guest(&binaries, name));
        }
    })
}

/// Builds for arm64, and has run by emulation what can be; `own`: the test program for it. False if there
/// is nothing to go on with.
fn for_arm64(pool: &Pool, own: &[Binary]) -> bool {
    let builds = match aarch64::builds() {
        Ok(builds) => builds,
        Err(why) => {
            skipped(pool, AARCH64, &why);
            return false;
        }
    };
    // What follows runs what is built here.
    let built = builds.into_iter().all(|mut step| one(pool, step.name, &mut step.command));
    if built {
        for emulated in aarch64::emulated() {
            let (arguments, environment) = emulated.cargo();
            let binaries = tests(pool, emulated.name, &arguments, &environment);
            pool.add(binaries.into_iter().map(|binary| emulated.program(binary)).collect());
        }
        pool.add(own.iter().cloned().map(aarch64::programs).collect());
    }
    built
}

/// A step that cannot be done here.
fn skipped(pool: &Pool, name: &str, why: &str) {
    let remark = format!("{SKIP_MARK}{name}: {why}");
    let ended = Ended {
        lines: vec![remark.clone()],
        success: true,
        took: Default::default(),
        computed: Default::default(),
    };
    pool.step(name, &ended, Tally { skipped: 1, remarks: vec![remark], ..Tally::default() });
}

const AARCH64: &str = "arm64 (qemu)";
const MODELS: &str = "weak memory (Miri)";
pub const CLIPPY: &[&str] =
    &["clippy", "--workspace", "--all-targets", "--quiet", "--", "-D", "warnings"];

/// A step that is one test.
fn one(pool: &Pool, name: &str, command: &mut Command) -> bool {
    pool.begin(name);
    let ended = children::run(command, None);
    // What was compiled is of interest only if it failed.
    let success = ended.success;
    let ended = if success { Ended { lines: Vec::new(), ..ended } } else { ended };
    pool.step(name, &ended, if success { Tally::one_passed() } else { Tally::one_failed(name) });
    success
}

/// A step that runs tests and says how many.
fn several(pool: &Pool, name: &str, command: &mut Command) {
    pool.begin(name);
    let ended = children::run(command, None);
    let mut tally = Tally::of(ended.lines.iter().map(String::as_str));
    if !ended.success && tally.failed == 0 {
        tally.add(Tally::one_failed(&format!("{name} (ended early)")));
    }
    pool.step(name, &ended, tally);
}

/// Builds tests. What can be built is run, even if something cannot.
pub fn tests(
    pool: &Pool,
    name: &str,
    arguments: &[&str],
    environment: &[(&str, OsString)],
) -> Vec<Binary> {
    pool.begin(&format!("building {name}"));
    let (ended, binaries) = cargo::build_tests(arguments, environment);
    let (lines, tally) = match ended.success {
        true => (Vec::new(), Tally::default()),
        false => (ended.lines, Tally::one_failed(&format!("{name} (cannot be built)"))),
    };
    pool.step(&format!("building {name}"), &Ended { lines, ..ended }, tally);
    binaries
}

/// What `make packages` could not install, and how many tests that cost.
fn missing(sum: &Tally) -> Vec<String> {
    let mut lines = Vec::new();
    let packages = fs::read_to_string(target().join("check/missing-packages")).unwrap_or_default();
    let mut programs: BTreeMap<&str, usize> = BTreeMap::new();
    for remark in sum.remarks.iter().filter(|remark| remark.starts_with(SKIP_MARK)) {
        let reason = remark.rsplit(": ").next().unwrap_or_default();
        if let Some(program) =
            reason.split(" is not installed").next().filter(|program| program.len() < reason.len())
        {
            *programs.entry(program).or_default() += 1;
        }
    }
    let tests: usize = programs.values().sum();
    if tests > 0 {
        let each: Vec<String> =
            programs.iter().map(|(program, count)| format!("{program} ({count})")).collect();
        lines.push(format!("NOT INSTALLED, {tests} tests skipped for it: {}", each.join(", ")));
    }
    let packages: Vec<&str> = packages.split_whitespace().collect();
    if !packages.is_empty() {
        lines.push(format!(
            "MISSING PACKAGES: {} (`make packages` as root installs them)",
            packages.join(" ")
        ));
    }
    lines
}
