//! In a guest with a kernel of its own, where connections leave TCP.

use std::env;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use system_tests::guest::{self, Guest};
use system_tests::{
    Case, Outcome, Skip, case, compile_conformance_for, compile_for, need, secs, skip,
};

use crate::{COMPILER, SYSROOT, products};

/// Of the C library that the compiler for arm64 brings along.
const LIBRARIES: [&str; 6] = [
    "ld-linux-aarch64.so.1",
    "libc.so.6",
    "libm.so.6",
    "libdl.so.2",
    "libpthread.so.0",
    "libgcc_s.so.1",
];

/// The command and its library, as they are built.
pub fn command_and_library() -> Result<[PathBuf; 2], Skip> {
    let products = products()?;
    Ok(["shortwire", "libshortwire.so"].map(|name| products.join(name)))
}

/// A guest that has nothing but busybox, the command, its library, and a program.
pub fn small(
    case: &Case,
    mut guest: Guest,
    [command, library]: [PathBuf; 2],
    program: &str,
) -> Result<Guest, Skip> {
    for library in LIBRARIES {
        guest.place(&Path::new(SYSROOT).join("lib").join(library), &format!("/lib/{library}"));
    }
    let strip = need("aarch64-linux-gnu-strip")?;
    let files = [
        (command, "shortwire"),
        (library, "libshortwire.so"),
        (compile_for(program, COMPILER)?, program),
    ];
    for (path, name) in files {
        // Debug information is most of it, and an emulated processor unpacks the file system.
        let short = case.dir().join("stripped");
        let status = Command::new(&strip).arg("-o").arg(&short).arg(&path).status();
        assert!(status.is_ok_and(|status| status.success()), "cannot strip {}", path.display());
        guest.place(&short, &format!("/bin/{name}"));
    }
    Ok(guest)
}

fn peers(case: &Case, guest: Guest) -> Result<Guest, Skip> {
    small(case, guest, command_and_library()?, "smc_peer")
}

/// Two programs exchange files, over each device; both ends are in mode SMCD then.
pub fn exchange(case: &Case, guest: Guest) -> Outcome {
    let ended = guest.run(case, "", include_str!("one.sh"), secs(1500));
    let said = ended.success();
    assert!(said.lines().any(|line| line.starts_with("aarch64 ")), "{said}");
    for name in ["loopback", "copied", "ism"] {
        let turn = said.split("== ").find(|turn| turn.starts_with(&format!("{name}\n")));
        let turn = turn.unwrap_or_else(|| panic!("no turn {name}:\n{said}"));
        for line in ["server: 0", "client: 0", "to client: intact", "to server: intact"] {
            assert!(turn.lines().any(|said| said == line), "{line} is missing in\n{turn}");
        }
        let rows = turn.lines().filter(|row| row.starts_with("ss: "));
        assert_eq!(rows.filter(|row| row.contains(" SMCD")).count(), 2, "{turn}");
    }
    Ok(())
}

#[test]
#[ignore = "by make check-arm64"]
fn connections_are_in_shared_memory() {
    case("arm64-one", |c| exchange(c, peers(c, Guest::arm64()?)?));
}

#[test]
#[ignore = "by make check-arm64"]
fn connections_are_in_shared_memory_with_pages_of_16_kib() {
    case("arm64-one-16k", |c| exchange(c, peers(c, Guest::arm64_with_pages_of_16_kib()?)?));
}

#[test]
#[ignore = "by make check-arm64"]
fn connections_are_in_shared_memory_with_pages_of_64_kib() {
    case("arm64-one-64k", |c| exchange(c, peers(c, Guest::arm64_with_pages_of_64_kib()?)?));
}

/// Programs of `progs` that those tests run.
const PROGRAMS: [&str; 8] =
    ["transfer", "storm", "many", "orphans", "worker", "proc_fork", "proc_exec", "proc_fd"];

/// What is built here for whole-system tests, as they look for it in a tree of sources: programs by
/// their names without the compiler's, the command where `make build` leaves it, tests where
/// cargo does.
fn tree(tests: &[PathBuf], top: &Path) -> Result<(), Skip> {
    let sources = Path::new(env!("CARGO_MANIFEST_DIR"));
    let copy = |from: &Path, to: &Path| {
        let to = top.join(to);
        fs::create_dir_all(to.parent().expect("a file in the tree")).expect("a folder of the tree");
        // With its time: what is newer than its source is not compiled again.
        let copied = Command::new("cp").arg("-a").args([from, to.as_path()]).status();
        assert!(copied.is_ok_and(|status| status.success()), "cannot copy {}", from.display());
    };
    copy(sources, Path::new("tests"));
    for name in ["shortwire", "libshortwire.so"] {
        copy(&products()?.join(name), &Path::new("target/release").join(name));
    }
    for test in tests {
        copy(test, &Path::new("target/debug/deps").join(test.file_name().expect("a program")));
    }
    let built = Path::new("target/tmp/progs");
    for name in PROGRAMS {
        copy(&compile_for(name, COMPILER)?, &built.join(format!("{name}-c")));
    }
    let (program, fixed) = compile_conformance_for(COMPILER)?;
    let object = program.with_file_name(format!("conformance.o-{COMPILER}"));
    copy(&object, &built.join("conformance.o"));
    copy(&program, &built.join("conformance"));
    if let Some(fixed) = fixed {
        copy(&fixed, &built.join("conformance-static"));
    }
    Ok(())
}

/// A disk with an ext4 file system of what is in a folder.
fn disk(folder: &Path, disk: &Path) -> Result<(), Skip> {
    let mut make = Command::new(need("mke2fs")?);
    make.args(["-q", "-F", "-t", "ext4", "-O", "^has_journal", "-d"]).args([folder, disk]);
    assert!(make.arg("1500M").status().is_ok_and(|status| status.success()), "{make:?} failed");
    Ok(())
}

/// The tests of SHORTWIRE_ARM64_TESTS, programs with tests, each in namespaces of its own: those with one of
/// `names` in "PROGRAM TEST", to which SHORTWIRE_ARM64_ONLY, an extended regular expression, fits. What they
/// print is printed.
fn run(c: &Case, mut guest: Guest, names: &[&str]) -> Outcome {
    let Some(tests) = env::var_os("SHORTWIRE_ARM64_TESTS") else {
        return skip("SHORTWIRE_ARM64_TESTS does not say where tests for arm64 are");
    };
    let system = guest::arm64_folder().join("system.ext4");
    if !system.is_file() {
        return skip(format!("there is no {}: make check-arm64", system.display()));
    }
    let (top, image) = (c.dir().join("tree"), c.dir().join("tree.ext4"));
    tree(&env::split_paths(&tests).collect::<Vec<_>>(), &top)?;
    disk(&top, &image)?;
    fs::remove_dir_all(&top).expect("the tree is on the disk");
    guest.system(&system).disk(&image).modules(&["tcp_diag", "tun", "veth", "dummy"]);
    let place = Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("tests lie in the tree");
    let only = env::var("SHORTWIRE_ARM64_ONLY").unwrap_or_default();
    let begin = format!("tree='{}' only='{only}' names='{}'\n", place.display(), names.join("|"));
    guest.file("/all", begin + include_str!("all.sh"));
    let ended = guest.run(c, "", "exec /bin/bash /all", secs(6 * 3600));
    println!("{}", ended.output);
    assert_eq!(ended.status, Some(0), "the script's status; console:\n{}", ended.console);
    Ok(())
}

#[test]
#[ignore = "by make check-arm64"]
fn whole_system_tests() {
    case("arm64-all", |c| run(c, Guest::arm64()?, &[""]));
}

/// What maps and lays out memory.
#[test]
#[ignore = "by make check-arm64"]
fn whole_system_tests_with_pages_of_16_kib() {
    case("arm64-16k", |c| {
        run(c, Guest::arm64_with_pages_of_16_kib()?, &["transfer ", "conformance upgraded_at_both"])
    });
}

#[test]
#[ignore = "by make check-arm64"]
fn whole_system_tests_with_pages_of_64_kib() {
    case("arm64-64k", |c| {
        run(c, Guest::arm64_with_pages_of_64_kib()?, &["transfer ", "conformance "])
    });
}
