//! Programs that load no library, followed by shortwire-raw: under user emulation all that they do but leave TCP, and
//! in a guest that, too.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use system_tests::guest::{self, Guest};
use system_tests::{Case, Outcome, Ports, Skip, case, need, prog, secs, skip};

use crate::guest::{command_and_library, small};
use crate::{COMPILER, SYSROOT, products};

/// Those of the kernel, of which musl brings none along.
const KERNEL_HEADERS: &str = "/usr/aarch64-linux-gnu/include";
/// It is the library as well.
const LOADER: &str = "ld-musl-aarch64.so.1";

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

/// Debian's musl for arm64: what a program is built of, and its loader.
fn musl() -> Result<[PathBuf; 2], Skip> {
    let musl = guest::arm64_folder().join("musl");
    if !musl.is_dir() {
        return skip(format!("there is no {}: make check-arm64", musl.display()));
    }
    Ok([musl.join("usr"), musl.join("lib/aarch64-linux-musl/libc.so")])
}

/// A program of musl, which is static or has a loader.
fn in_musl(c: &Case, name: &str, is_static: bool) -> Result<PathBuf, Skip> {
    let [musl, loader] = musl()?;
    let program = c.dir().join(format!("{name}-musl"));
    let of = |name: &str| musl.join("lib/aarch64-linux-musl").join(name);
    let mut command = Command::new(need(COMPILER)?);
    command.args(["-O2", "-nostdinc", "-nostdlib", if is_static { "-static" } else { "-no-pie" }]);
    command.arg("-isystem").arg(musl.join("include/aarch64-linux-musl"));
    // The kernel's headers lie beside those of the other library.
    command.arg("-idirafter").arg(KERNEL_HEADERS).arg("-o").arg(&program);
    command.args([of("crt1.o"), of("crti.o"), prog(&format!("{name}.c"))]);
    command.arg(format!("-Wl,-dynamic-linker,/lib/{LOADER}")).arg("-Wl,--start-group");
    if is_static {
        command.arg(of("libc.a"));
    } else {
        command.arg("-L").arg(loader.parent().expect("a folder of libraries")).arg("-lc");
    }
    command.args(["-lgcc", "-lgcc_eh"]);
    command.arg("-Wl,--end-group").arg(of("crtn.o"));
    Ok(built(program, &mut command))
}

/// A Go program without the C library; `how`: -buildmode.
fn in_go(c: &Case, name: &str, how: &str) -> Result<PathBuf, Skip> {
    let go = need("go")?;
    let text = fs::read_to_string(prog(&format!("{name}.go"))).expect("the source");
    let source = c.dir().join(format!("{name}.go"));
    fs::write(&source, text.replace("import \"C\"\n", "")).expect("a source of our own");
    let program = c.dir().join(format!("{name}-{how}"));
    let mut command = Command::new(go);
    command
        .args(["build", "-p", "2", &format!("-buildmode={how}"), "-o"])
        .arg(&program)
        .arg(&source);
    command.envs([("GOFLAGS", ""), ("CGO_ENABLED", "0"), ("GOOS", "linux"), ("GOARCH", "arm64")]);
    Ok(built(program, &mut command))
}

/// A program under the emulator, followed.
fn followed(program: &Path) -> Result<Command, Skip> {
    let mut command = Command::new(need("qemu-aarch64")?);
    // Of Go's programs those that may lie anywhere name a loader, which loads nothing.
    command.args(["-L", SYSROOT, "-E", "SHORTWIRE_RAW=auto"]);
    command.arg(artefact()?).args([program, program]);
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
        let of_glibc = |how: &str| in_c(c, "aboard", how);
        for aboard in [of_glibc("-static")?, of_glibc("-static-pie")?, in_musl(c, "aboard", true)?]
        {
            let mut command = followed(&aboard)?;
            let said = c.start("aboard", command.args(["x", "y"])).success(secs(300));
            assert_eq!(said, "raw x y\n", "{}", aboard.display());
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
        let (herd, talk) = (in_go(c, "herd", "exe")?, in_go(c, "talk", "pie")?);
        let many = [in_c(c, "many", "-static")?, in_musl(c, "many", true)?];
        let pairs: [[(&Path, &[&str]); 2]; 3] = [
            [(&herd, &["http"]), (&herd, &["get", "PORT", "300"])],
            [(&many[0], &["server"]), (&talk, &["PORT", "1000"])],
            [(&many[1], &["server"]), (&talk, &["PORT", "1000"])],
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
        let mut crashed = c.start("crash", &mut followed(&in_go(c, "crash", "exe")?)?);
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

#[test]
#[ignore = "by make check-arm64"]
fn raw_programs_are_in_shared_memory_with_pages_of_64_kib() {
    case("arm64-raw-64k", |c| in_a_guest(c, Guest::arm64_with_pages_of_64_kib()?));
}

fn in_a_guest(c: &Case, guest: Guest) -> Outcome {
    let mut guest = small(c, guest, command_and_library()?, "smc_peer")?;
    let strip = need("aarch64-linux-gnu-strip")?;
    let programs = [
        (artefact()?, "shortwire-raw"),
        (in_c(c, "smc_peer", "-static")?, "still_peer"),
        (in_c(c, "raw_life", "-static")?, "life"),
        (in_go(c, "herd", "pie")?, "herd"),
        (in_musl(c, "smc_peer", true)?, "musl_peer"),
        (in_musl(c, "raw_life", true)?, "musl_life"),
        (in_musl(c, "later", false)?, "later"),
        (in_c(c, "many", "-static")?, "many"),
    ];
    for (path, name) in programs {
        let short = c.dir().join("stripped");
        let status = Command::new(&strip).arg("-o").arg(&short).arg(&path).status();
        assert!(status.is_ok_and(|status| status.success()), "cannot strip {}", path.display());
        guest.place(&short, &format!("/bin/{name}"));
    }
    guest.place(&musl()?[1], &format!("/lib/{LOADER}"));
    let library = c.dir().join("later_library.so");
    let mut command = Command::new(need(COMPILER)?);
    command.args(["-O2", "-shared", "-fPIC", "-nostdlib", "-o"]).arg(&library);
    guest.place(&built(library, command.arg(prog("later_library.c"))), "/lib/later_library.so");
    let ended = guest.run(c, "", include_str!("raw.sh"), secs(1500));
    let said = ended.success();
    for line in ["life: done", "musl life: done"] {
        assert!(said.lines().any(|said| said == line), "{line} is missing in\n{said}");
    }
    for name in ["both", "server", "client", "musl"] {
        let turn = said.split("== ").find(|turn| turn.starts_with(&format!("{name}\n")));
        let turn = turn.unwrap_or_else(|| panic!("no turn {name}:\n{said}"));
        for line in ["server: 0", "client: 0", "to client: intact", "to server: intact"] {
            assert!(turn.lines().any(|said| said == line), "{line} is missing in\n{turn}");
        }
        let rows = turn.lines().filter(|row| row.starts_with("ss: "));
        assert_eq!(rows.filter(|row| row.contains(" SMCD")).count(), 2, "{turn}");
    }
    for how in ["dlopen", "mapped", "protected", "again"] {
        for line in ["said: done", "SMCD: 2"] {
            assert!(said.contains(&format!("later {how} {line}\n")), "{how}, {line}:\n{said}");
        }
    }
    let herd = said.split("== ").find(|turn| turn.starts_with("herd\n"));
    let herd = herd.unwrap_or_else(|| panic!("no turn herd:\n{said}"));
    assert!(herd.lines().any(|line| line == "herd said: done"), "{herd}");
    let smcd = |line: &&str| line.starts_with("ss: ") && line.contains(" SMCD");
    assert!(herd.lines().filter(smcd).count() >= 10, "{herd}");
    Ok(())
}
