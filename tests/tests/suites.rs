//! Other programs' own test suites give the same results under `shortwire run` as without it.

use std::process::Command;

use system_tests::suites::{Mode, Results, Row, all, compare, recipes};
use system_tests::{Case, case, need, plain, python, secs, skip};

/// A selection of CPython's own tests that takes seconds.
const PYTHON: &[&str] = &[
    "test.test_socket.BasicTCPTest",
    "test.test_socket.BasicTCPTest2",
    "test.test_socket.NonBlockingTCPTests",
    "test.test_socket.FileObjectClassTestCase",
    "test.test_socket.UnbufferedFileObjectClassTestCase",
    "test.test_socket.NetworkConnectionNoServer",
    "test.test_socket.NetworkConnectionAttributesTest",
    "test.test_socket.TCPTimeoutTest",
    "test.test_socket.RecvmsgTCPTest",
    "test.test_socket.RecvmsgIntoTCPTest",
    "test.test_socket.SendmsgTCPTest",
    "test.test_socket.InterruptedSendTimeoutTest",
    "test.test_socket.SendfileUsingSendTest",
    "test.test_socket.SendfileUsingSendfileTest",
    "test.test_socketserver",
    "test.test_httplib",
    "test.test_asyncio.test_sock_lowlevel.EPollEventLoopTests",
    "test.test_asyncio.test_server",
    "test.test_asyncio.test_streams",
    "test.test_asyncio.test_sendfile.EPollEventLoopTests",
];

fn run(c: &Case, interpreter: &std::path::Path, mode: Mode) -> Results {
    let words = mode.words().to_string_lossy().into_owned();
    let mut words =
        words.split_whitespace().chain([interpreter.to_str().expect("a path in UTF-8")]);
    let mut command = Command::new(words.next().expect("a program"));
    mode.apply(command.args(words).arg(recipes().join("unittests.py")).args(PYTHON));
    Results::read(&c.start("python", &mut command).success(secs(150)))
}

/// Some distributions have Python without its tests.
fn has_tests(interpreter: &std::path::Path) -> bool {
    Command::new(interpreter)
        .args(["-c", "import test.test_socket"])
        .output()
        .is_ok_and(|said| said.status.success())
}

#[test]
fn python_own_tests() {
    case("python-own-tests", |c| {
        let candidates = [python()?, "/usr/bin/python3".into()];
        let Some(interpreter) = candidates.iter().find(|path| has_tests(path)) else {
            return skip("python3 has no test package (libpython3-testsuite)");
        };
        let without = run(c, interpreter, Mode::Plain);
        assert!(
            without.passed.len() > 200,
            "only {} tests passed: {:?}",
            without.passed.len(),
            without.failed
        );
        if plain() {
            return Ok(());
        }
        let mut newly = run(c, interpreter, Mode::AtOnce).newly_failing(&without);
        if !newly.is_empty() {
            // Some have limits of a second of their own.
            let without = run(c, interpreter, Mode::Plain);
            let again = run(c, interpreter, Mode::AtOnce).newly_failing(&without);
            newly.retain(|name| again.contains(name));
        }
        assert!(newly.is_empty(), "newly failing, twice: {newly:?}");
        Ok(())
    });
}

/// `make check-suites`: all of them, or those that SHORTWIRE_SUITES names.
#[test]
#[ignore = "fetches sources and takes an hour: make check-suites"]
fn every_suite() {
    need("bash").expect("bash");
    let named = std::env::var("SHORTWIRE_SUITES").unwrap_or_default();
    let named: Vec<String> = named.split_whitespace().map(String::from).collect();
    let modes = [Mode::Run, Mode::AtOnce];
    let mut table = vec![Row::headline(&modes)];
    let mut newly = 0;
    let mut broken = Vec::new();
    for suite in if named.is_empty() { all() } else { named } {
        let line = match compare(&suite, &modes) {
            Ok(row) => {
                newly += row.newly.iter().map(|(_, names)| names.len()).sum::<usize>();
                if row.plain.passed.is_empty() {
                    broken.push(suite);
                }
                row.line()
            }
            Err(why) => format!("{suite:<12} skipped: {}", why.0),
        };
        eprintln!("{line}");
        table.push(line);
    }
    println!("\n{}", table.join("\n"));
    assert!(
        broken.is_empty(),
        "no test passes without Shortwire: {}, see target/suites/log",
        broken.join(", ")
    );
    assert_eq!(newly, 0, "tests fail under shortwire run and not without it");
}
