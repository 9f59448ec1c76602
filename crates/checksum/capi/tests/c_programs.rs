//! C programs against the header: shared, static, and through pkg-config from an installation.

use std::fs;
use std::io::Write;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::Command;

const HERE: &str = env!("CARGO_MANIFEST_DIR");

/// Builds the libraries, which cargo does not do for tests that do not link them, and says where
/// they are.
fn libraries() -> PathBuf {
    let program = std::env::current_exe().unwrap();
    let target = program.ancestors().nth(3).expect("target/PROFILE/deps/PROGRAM");
    let mut cargo = Command::new(env!("CARGO"));
    cargo
        .args(["build", "--quiet", "--package", "checksum-capi", "--target-dir"])
        .arg(target)
        .current_dir(HERE);
    assert!(cargo.status().unwrap().success(), "{cargo:?}");
    target.join("debug")
}

/// False, and says so, where a tool is missing.
fn have(test: &str, tool: &str) -> bool {
    let found =
        Command::new(tool).arg("--version").output().is_ok_and(|output| output.status.success());
    if !found {
        let _ = writeln!(std::io::stderr(), "skipped: {test}: no {tool}");
    }
    found
}

fn run(command: &mut Command) -> String {
    let output = command.output().unwrap_or_else(|error| panic!("{command:?}: {error}"));
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(
        output.status.success() && errors.is_empty(),
        "{command:?}: {}\n{errors}",
        output.status
    );
    String::from_utf8(output.stdout).unwrap()
}

/// As `make install` lays it out.
fn installation(root: &Path) {
    let (libraries, prefix) = (libraries(), root.to_str().unwrap());
    fs::create_dir_all(root.join("lib/pkgconfig")).unwrap();
    fs::create_dir_all(root.join("include")).unwrap();
    fs::copy(libraries.join("libshortwire_csum.so"), root.join("lib/libshortwire_csum.so.0"))
        .unwrap();
    fs::copy(libraries.join("libshortwire_csum.a"), root.join("lib/libshortwire_csum.a")).unwrap();
    symlink("libshortwire_csum.so.0", root.join("lib/libshortwire_csum.so")).unwrap();
    fs::copy(format!("{HERE}/include/shortwire_csum.h"), root.join("include/shortwire_csum.h"))
        .unwrap();
    let template = fs::read_to_string(format!("{HERE}/shortwire_csum.pc.in")).unwrap();
    let values =
        [("@PREFIX@", prefix), ("@LIBDIR@", "lib"), ("@VERSION@", env!("CARGO_PKG_VERSION"))];
    let filled = values.iter().fold(template, |text, (name, value)| text.replace(name, value));
    fs::write(root.join("lib/pkgconfig/shortwire_csum.pc"), filled).unwrap();
}

fn pkg_config(root: &Path, arguments: &[&str]) -> Vec<String> {
    let mut command = Command::new("pkg-config");
    command
        .env("PKG_CONFIG_PATH", root.join("lib/pkgconfig"))
        .args(arguments)
        .arg("shortwire_csum");
    run(&mut command).split_whitespace().map(str::to_string).collect()
}

fn compile(root: &Path, source: &Path, flags: &[String]) -> PathBuf {
    let program = root.join(source.file_stem().unwrap());
    let mut command = Command::new("cc");
    command.args([
        "-std=c99",
        "-D_DEFAULT_SOURCE",
        "-O2",
        "-Wall",
        "-Wextra",
        "-Wpedantic",
        "-Werror",
        "-o",
    ]);
    run(command.arg(&program).arg(source).args(flags));
    program
}

const EXAMPLE: &str = "filled: IPv4 8e90, UDP 9f57, verify 0\n\
    rewritten: IPv4 148c, UDP 2553, verify 0\n\
    by hand: 0000\n\
    damaged: verify -6\n";

#[test]
fn the_example_runs_shared_and_static() {
    let name = "the_example_runs_shared_and_static";
    if !have(name, "cc") || !have(name, "pkg-config") {
        return;
    }
    let root = tempfile::tempdir().unwrap();
    let root = root.path();
    installation(root);
    let source = Path::new(HERE).join("../../../examples/checksum.c");
    let shared = compile(root, &source, &pkg_config(root, &["--cflags", "--libs"]));
    assert_eq!(run(Command::new(&shared).env("LD_LIBRARY_PATH", root.join("lib"))), EXAMPLE);

    let mut flags = pkg_config(root, &["--cflags", "--static", "--libs"]);
    flags
        .iter_mut()
        .filter(|flag| *flag == "-lshortwire_csum")
        .for_each(|flag| *flag = "-l:libshortwire_csum.a".into());
    let fixed = compile(root, &source, &flags);
    assert_eq!(run(Command::new(&fixed).env_remove("LD_LIBRARY_PATH")), EXAMPLE);
}

/// Calls every function of the header, so that none is missing from the library or has another
/// form.
#[test]
fn every_function_of_the_header_is_there() {
    let name = "every_function_of_the_header_is_there";
    if !have(name, "cc") || !have(name, "pkg-config") {
        return;
    }
    let root = tempfile::tempdir().unwrap();
    let root = root.path();
    installation(root);
    let source = Path::new(HERE).join("tests/every_function.c");
    let text = fs::read_to_string(&source).unwrap();
    let header = fs::read_to_string(format!("{HERE}/include/shortwire_csum.h")).unwrap();
    let word = |character: char| character.is_ascii_alphanumeric() || character == '_';
    for (place, _) in header.match_indices("shortwire_csum_") {
        let (function, behind) =
            header[place..].split_at(header[place..].find(|c| !word(c)).unwrap());
        if behind.starts_with('(') {
            assert!(
                text.contains(&format!("{function}(")),
                "{function} is not in {}",
                source.display()
            );
        }
    }
    let program = compile(root, &source, &pkg_config(root, &["--cflags", "--libs"]));
    let output = run(Command::new(&program).env("LD_LIBRARY_PATH", root.join("lib")));
    assert_eq!(output, "all right\n");
}
