//! Programs that load no library: they are mapped, and their system calls followed, by shortwire-raw.

mod children;
mod code;
mod go;
mod life;
mod others;

use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use system_tests::probe::need_compiler;
use system_tests::{
    Case, Outcome, Ports, Side, Skip, case, compile, compile_pure_go, need, prog, secs, shortwire,
    skip,
};

/// A compiler's program, of a source of ours.
fn built(c: &Case, name: &str, command: &mut Command) -> PathBuf {
    let program = c.dir().join(name);
    let said = command.arg("-o").arg(&program).output().expect("starting a compiler");
    assert!(said.status.success(), "{command:?}: {}", String::from_utf8_lossy(&said.stderr));
    program
}

/// A C program, by a compiler and its options.
fn in_c(c: &Case, source: &str, compiler: &str, how: &[&str]) -> Result<PathBuf, Skip> {
    let path = need(compiler)?;
    if compiler == "cc" {
        need_compiler(how)?;
    }
    let mut command = Command::new(path);
    command.args(["-O2", "-pthread"]).args(how).arg(prog(source));
    Ok(built(c, &format!("{source}-{compiler}{}", how.concat()), &mut command))
}

const KINDS: [(&str, &[&str]); 4] =
    [("cc", &["-static"]), ("cc", &["-static-pie"]), ("musl-gcc", &["-static"]), ("musl-gcc", &[])];

/// How Go programs without the C library are built: static, or with a loader and nothing else.
const GO_KINDS: [&str; 2] = ["exe", "pie"];

fn herd() -> Result<PathBuf, Skip> {
    compile_pure_go("herd", "exe")
}

fn raw(program: &Path) -> Command {
    let mut command = Side::Run.command(program);
    command.env("SHORTWIRE_RAW", "auto");
    command
}

/// Server and clients, connected through shared memory for at least `ends` ends, and for long enough
/// to be seen.
fn pair(
    c: &Case,
    server: &mut Command,
    client: &mut Command,
    more: &[&str],
    ends: usize,
) -> Outcome {
    clients(c, server, client, more, ends);
    Ok(())
}

/// A server gets so many clients at most, one behind the other, until one is seen: on a busy machine one may be over
/// before anybody looks.
const MOST_CLIENTS: usize = 5;

/// `pair`, and how many clients there were.
fn clients(
    c: &Case,
    server: &mut Command,
    client: &mut Command,
    more: &[&str],
    ends: usize,
) -> usize {
    let mut count = 0;
    for ports in [Ports::Low, Ports::High] {
        let port = ports.free();
        let number = port.to_string();
        // The words before the port are already there.
        let add = |command: &mut Command, words: &[&str]| {
            let mut new = Command::new(command.get_program());
            new.args(command.get_args()).arg(&number).args(words);
            for (name, value) in command.get_envs() {
                match value {
                    Some(value) => new.env(name, value),
                    None => new.env_remove(name),
                };
            }
            new
        };
        let mut server = c.serve("server", port, &mut add(server, &[]));
        for tries in 1..=MOST_CLIENTS {
            let watch = c.watch(&[port]);
            let said = c.start("client", &mut add(client, more)).success(secs(100));
            assert!(said.contains("done"), "{said}");
            count += 1;
            if tries == MOST_CLIENTS {
                watch.expect_smcd(ends);
            } else if watch.saw_smcd(ends) {
                break;
            }
        }
        assert!(server.running(), "the server has ended: {}", server.stderr());
        server.stop();
    }
    count
}

/// Nothing of libc, no thread memory of libc's, no upper half of a vector register.
#[test]
fn artefact_is_alone() {
    case("raw-artefact", |_| {
        let objdump = need("objdump")?;
        let artefact = shortwire().with_file_name("shortwire-raw");
        let said = |how: &str| {
            let said = Command::new(&objdump).arg(how).arg(&artefact).output().expect("objdump");
            assert!(said.status.success(), "{}: `make raw`", artefact.display());
            String::from_utf8_lossy(&said.stdout).into_owned()
        };
        let code = said("-d");
        assert!(code.contains("%gs:"), "no code was seen");
        let bad = |line: &&str| ["%fs:", "%ymm", "%zmm"].iter().any(|name| line.contains(name));
        assert_eq!(code.lines().filter(bad).collect::<Vec<_>>(), [""; 0]);
        let names = said("-t");
        assert_eq!(names.lines().filter(|line| line.contains("*UND*")).count(), 0, "{names}");
        Ok(())
    });
}
