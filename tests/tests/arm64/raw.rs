//! Programs that load no library, followed by shortwire-raw: under user emulation all that they do but leave TCP, and
//! in a guest that, too.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use system_tests::guest::Guest;
use system_tests::{Case, Outcome, Ports, Skip, case, need, prog, secs};

use crate::guest::small;
use crate::{COMPILER, products};

/// It is built with optimisation alone, beside what else is.
fn artefact() -> Result<PathBuf, Skip> {
    let artefact = products()?.with_file_name("release").join("shortwire-raw");
    assert!(artefact.exists(), "there is no {}", artefact.display());
    Ok(artefact)
}

fn built(program: PathBuf, command: &mut Command) -> PathBuf {
    let said = command.output().expect("starting a compiler");
    assert!(said.status.success(), "{command:?}: {}", String::from_utf8_lossy(&said.stderr));
    program
}

/// A static C program.
fn in_c(c: &Case, name: &str, how: &str) -> Result<PathBuf, Skip> {
    let program = c.dir().join(format!("{name}{how}"));
    let mut command = Command::new(need(COMPILER)?);
    command.args(["-O2", "-pthread", how, "-o"]).arg(&program).arg(prog(&format!("{name}.c")));
    Ok(built(program, &mut command))
}

/// A Go program without the C library.
fn in_go(c: &Case, name: &str) -> Result<PathBuf, Skip> {
    let go = need("go")?;
    let text = fs::read_to_string(prog(&format!("{name}.go"))).expect("the source");
    let source = c.dir().join(format!("{name}.go"));
    fs::write(&source, text.replace("import \"C\"\n", "")).expect("a source of our own");
    let program = c.dir().join(name);
    let mut command = Command::new(go);
    command.args(["build", "-p", "2", "-o"]).arg(&program).arg(&source);
    command.envs([("GOFLAGS", ""), ("CGO_ENABLED", "0"), ("GOOS", "linux"), ("GOARCH", "arm64")]);
    Ok(built(program, &mut command))
}

/// A program under the emulator, followed.
fn followed(program: &Path) -> Result<Command, Skip> {
    let mut command = Command::new(need("qemu-aarch64")?);
    command.args(["-E", "SHORTWIRE_RAW=auto"]).arg(artefact()?).args([program, program]);
    Ok(command)
}

#[test]
#[ignore = "by make check-arm64"]
fn raw_artefact_is_alone() {
    case("arm64-raw-artefact", |_| {
        let (objdump, artefact) = (need("aarch64-linux-gnu-objdump")?, artefact()?);
        let said = |how: &str| {
            let said = Command::new(&objdump).arg(how).arg(&artefact).output().expect("objdump");
            assert!(said.status.success(), "{}", String::from_utf8_lossy(&said.stderr));
            String::from_utf8_lossy(&said.stdout).into_owned()
        };
        // The thread pointer is set once, by what no library of C would do.
        let code = said("-d");
        let sets = code.lines().filter(|line| line.contains("msr\ttpidr_el0")).count();
        assert_eq!(sets, 1, "of {} lines", code.lines().count());
        let names = said("-t");
        assert_eq!(names.lines().filter(|line| line.contains("*UND*")).count(), 0, "{names}");
        Ok(())
    });
}

#[test]
#[ignore = "by make check-arm64"]
fn raw_follows_static_programs() {
    case("arm64-raw-static", |c| {
        for how in ["-static", "-static-pie"] {
            let aboard = in_c(c, "aboard", how)?;
            let mut command = followed(&aboard)?;
            let said = c.start("aboard", command.args(["x", "y"])).success(secs(300));
            assert_eq!(said, "raw x y\n", "{how}");
        }
        Ok(())
    });
}

/// A web server and its client of Go, and an echo server of C with a client of Go: threads, signals by which Go preempts,
/// collections. Without children: in some of many forks the emulator waits for a lock of its own for ever.
#[test]
#[ignore = "by make check-arm64"]
fn raw_answers_calls_of_c_and_of_go() {
    case("arm64-raw-pairs", |c| {
        let (herd, talk) = (in_go(c, "herd")?, in_go(c, "talk")?);
        let many = in_c(c, "many", "-static")?;
        let pairs: [[(&Path, &[&str]); 2]; 2] = [
            [(&herd, &["http"]), (&herd, &["get", "PORT", "300"])],
            [(&many, &["server"]), (&talk, &["PORT", "1000"])],
        ];
        for [(server, serve), (client, ask)] in pairs {
            let port = Ports::High.free();
            let number = port.to_string();
            let mut command = followed(server)?;
            command.args(serve).arg(&number);
            let mut server = c.serve("server", port, &mut command);
            let mut command = followed(client)?;
            command.args(ask.iter().map(|word| if *word == "PORT" { &number } else { *word }));
            let said = c.start("client", &mut command).success(secs(900));
            assert!(said.contains("done"), "{said}");
            assert!(server.running(), "the server has ended: {}", server.stderr());
            server.stop();
        }
        Ok(())
    });
}

/// A signal that arrives in a call finds the program's own function there, of which Go can tell.
#[test]
#[ignore = "by make check-arm64"]
fn raw_crash_names_its_function() {
    case("arm64-raw-crash", |c| {
        let mut crashed = c.start("crash", &mut followed(&in_go(c, "crash")?)?);
        assert_eq!(crashed.wait(secs(300)).code(), Some(2));
        let said = crashed.stderr();
        assert!(said.contains("Syscall6(") && !said.contains("unknown pc"), "{said}");
        Ok(())
    });
}

#[test]
#[ignore = "by make check-arm64"]
fn raw_programs_are_in_shared_memory() {
    case("arm64-raw-guest", |c| in_a_guest(c, Guest::arm64()?));
}

#[test]
#[ignore = "by make check-arm64"]
fn raw_programs_are_in_shared_memory_with_pages_of_16_kib() {
    case("arm64-raw-16k", |c| in_a_guest(c, Guest::arm64_with_pages_of_16_kib()?));
}

fn in_a_guest(c: &Case, guest: Guest) -> Outcome {
    let mut guest = small(c, guest, "smc_peer")?;
    let strip = need("aarch64-linux-gnu-strip")?;
    let programs = [
        (artefact()?, "shortwire-raw"),
        (in_c(c, "smc_peer", "-static")?, "still_peer"),
        (in_c(c, "raw_life", "-static")?, "life"),
        (in_go(c, "herd")?, "herd"),
    ];
    for (path, name) in programs {
        let short = c.dir().join("stripped");
        let status = Command::new(&strip).arg("-o").arg(&short).arg(&path).status();
        assert!(status.is_ok_and(|status| status.success()), "cannot strip {}", path.display());
        guest.place(&short, &format!("/bin/{name}"));
    }
    let ended = guest.run(c, "", include_str!("raw.sh"), secs(3600));
    let said = ended.success();
    assert!(said.lines().any(|line| line == "life: done"), "{said}");
    for name in ["both", "server", "client"] {
        let turn = said.split("== ").find(|turn| turn.starts_with(&format!("{name}\n")));
        let turn = turn.unwrap_or_else(|| panic!("no turn {name}:\n{said}"));
        for line in ["server: 0", "client: 0", "to client: intact", "to server: intact"] {
            assert!(turn.lines().any(|said| said == line), "{line} is missing in\n{turn}");
        }
        let rows = turn.lines().filter(|row| row.starts_with("ss: "));
        assert_eq!(rows.filter(|row| row.contains(" SMCD")).count(), 2, "{turn}");
    }
    let herd = said.split("== ").find(|turn| turn.starts_with("herd\n"));
    let herd = herd.unwrap_or_else(|| panic!("no turn herd:\n{said}"));
    assert!(herd.lines().any(|line| line == "herd said: done"), "{herd}");
    let smcd = |line: &&str| line.starts_with("ss: ") && line.contains(" SMCD");
    assert!(herd.lines().filter(smcd).count() >= 10, "{herd}");
    Ok(())
}
