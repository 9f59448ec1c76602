//! A C program against the header, by pkg-config from an installation: shared, and static.
#![cfg(not(loom))]

use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::Command;

const HERE: &str = env!("CARGO_MANIFEST_DIR");

/// Where cargo leaves the libraries: it builds them with the tests of this crate, of which they are part.
fn libraries() -> PathBuf {
    let program = std::env::current_exe().unwrap();
    program.parent().expect("target/PROFILE/deps/PROGRAM").to_path_buf()
}

/// False, and says so, where a tool is missing.
fn have(tool: &str) -> bool {
    let found =
        Command::new(tool).arg("--version").output().is_ok_and(|output| output.status.success());
    if !found {
        let _ = writeln!(std::io::stderr(), "skipped: every_function_shared_and_static: no {tool}");
    }
    found
}

fn run(command: &mut Command) -> String {
    let output = command.output().unwrap_or_else(|error| panic!("{command:?}: {error}"));
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(
        output.status.success() && errors.is_empty(),
        "{command:?}: {}\n{text}{errors}",
        output.status
    );
    text
}

/// As `make install` lays it out.
fn installation(root: &Path) {
    let libraries = libraries();
    for directory in ["lib/pkgconfig", "include/shortwire/rdma"] {
        fs::create_dir_all(root.join(directory)).unwrap();
    }
    for (name, placed) in [
        ("libshortwire_rsocket.so", "libshortwire_rsocket.so.0"),
        ("libshortwire_rsocket.a", "libshortwire_rsocket.a"),
    ] {
        fs::copy(libraries.join(name), root.join("lib").join(placed)).unwrap();
    }
    std::os::unix::fs::symlink(
        "libshortwire_rsocket.so.0",
        root.join("lib/libshortwire_rsocket.so"),
    )
    .unwrap();
    fs::copy(
        format!("{HERE}/include/rdma/rsocket.h"),
        root.join("include/shortwire/rdma/rsocket.h"),
    )
    .unwrap();
    let template = fs::read_to_string(format!("{HERE}/shortwire_rsocket.pc.in")).unwrap();
    let values = [
        ("@PREFIX@", root.to_str().unwrap()),
        ("@LIBDIR@", "lib"),
        ("@VERSION@", env!("CARGO_PKG_VERSION")),
    ];
    let filled = values.iter().fold(template, |text, (name, value)| text.replace(name, value));
    fs::write(root.join("lib/pkgconfig/shortwire_rsocket.pc"), filled).unwrap();
}

fn pkg_config(root: &Path, arguments: &[&str]) -> Vec<String> {
    let mut command = Command::new("pkg-config");
    command
        .env("PKG_CONFIG_PATH", root.join("lib/pkgconfig"))
        .args(arguments)
        .arg("shortwire_rsocket");
    run(&mut command).split_whitespace().map(str::to_string).collect()
}

fn compile(root: &Path, source: &str, name: &str, flags: &[String]) -> PathBuf {
    let program = root.join(name);
    let mut command = Command::new("cc");
    command
        .args(["-std=c99", "-D_DEFAULT_SOURCE", "-O2", "-Wall", "-Wextra", "-Werror", "-o"])
        .arg(&program);
    run(command.arg(format!("{HERE}/{source}")).args(flags));
    program
}

/// The program calls every function of the header, so that none is missing from the library or has
/// another form.
#[test]
fn every_function_shared_and_static() {
    if !have("cc") || !have("pkg-config") {
        return;
    }
    let source = fs::read_to_string(format!("{HERE}/tests/every_function.c")).unwrap();
    let header = fs::read_to_string(format!("{HERE}/include/rdma/rsocket.h")).unwrap();
    let lines = header.lines().filter(|line| line.starts_with(|c: char| c.is_ascii_lowercase()));
    let functions = lines.filter_map(|line| line.split_once('(')?.0.rsplit([' ', '*']).next());
    let functions: Vec<_> = functions.filter(|name| name.starts_with('r')).collect();
    assert_eq!(functions.len(), 30, "{functions:?}");
    for function in functions {
        assert!(source.contains(&format!("{function}(")), "{function} is not called");
    }
    let root = std::env::temp_dir().join(format!("shortwire-rsocket-c-{}", std::process::id()));
    installation(&root);
    let dynamic = pkg_config(&root, &["--cflags", "--libs"]);
    let shared = compile(&root, "tests/every_function.c", "shared", &dynamic);
    assert_eq!(run(Command::new(&shared).env("LD_LIBRARY_PATH", root.join("lib"))), "all right\n");
    let example = compile(&root, "../../examples/stream.c", "example", &dynamic);
    assert_eq!(
        run(Command::new(&example).env("LD_LIBRARY_PATH", root.join("lib"))),
        "there and back\n"
    );

    let mut flags = pkg_config(&root, &["--cflags", "--static", "--libs"]);
    let ours = flags.iter_mut().filter(|flag| *flag == "-lshortwire_rsocket");
    ours.for_each(|flag| *flag = "-l:libshortwire_rsocket.a".into());
    let fixed = compile(&root, "tests/every_function.c", "fixed", &flags);
    assert_eq!(run(Command::new(&fixed).env_remove("LD_LIBRARY_PATH")), "all right\n");
    fs::remove_dir_all(&root).unwrap();
}
