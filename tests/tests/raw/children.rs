//! What followed programs start, and why what is not followed is not.

use std::ffi::OsStr;

use system_tests::{Deadline, millis};

use super::*;

/// A program that a shell starts takes part as well.
#[test]
fn child_of_a_shell() {
    case("raw-shell", |c| {
        let herd = herd()?;
        let script = c.dir().join("client.sh");
        let text = format!("#!/bin/sh\n\"{}\" client \"$@\"\nexit $?\n", herd.display());
        fs::write(&script, text).expect("a script");
        let sh = || {
            let mut command = raw(Path::new("/bin/sh"));
            command.arg(&script);
            command
        };
        pair(c, raw(&herd).arg("server"), &mut sh(), &["20", "600"], 10)
    });
}

/// What each way of starting a program leads to: each kind of program, and a script, by each kind.
#[test]
fn children_in_every_way() {
    case("raw-children", |c| {
        let dynamic = |source| Ok::<_, Skip>((in_c(c, source, "cc", &[])?, "library"));
        let static_ones = |source: &'static str| {
            KINDS.map(|(compiler, how)| Ok::<_, Skip>((in_c(c, source, compiler, how)?, "raw")))
        };
        let all = |source| {
            let ones = static_ones(source).into_iter().chain([dynamic(source)]);
            ones.collect::<Result<Vec<_>, _>>()
        };
        let children = all("aboard.c")?;
        let script = c.dir().join("script");
        let text = format!("#!{} -x y\n", children[0].0.display());
        fs::write(&script, text).expect("a script");
        fs::set_permissions(&script, Permissions::from_mode(0o755)).expect("a mode");
        for (starter, _) in all("starter.c")? {
            for (child, by) in &children {
                let said = c.start("ways", raw(&starter).arg(child)).success(secs(60));
                let lines: Vec<_> = said.lines().collect();
                assert_eq!(lines.last(), Some(&"done"), "{said}");
                // All but the one that starts nothing.
                assert_eq!(lines.len(), 16, "{} {}: {said}", starter.display(), child.display());
                // Started by its descriptor it is just that file, which maps nothing for itself.
                let by_itself = |line: &str| *by == "raw" && line.starts_with("nothing fexecve");
                let is_led = |line: &&str| line.starts_with(&format!("{by} ")) || by_itself(line);
                assert!(lines[..15].iter().all(is_led), "{}: {said}", starter.display());
                assert!(lines.contains(&&*format!("{by} execl 2 3 4 5 6 7 8")), "{said}");
            }
            let said = c.start("script", raw(&starter).arg(&script)).success(secs(60));
            let line = format!("raw -x y {} execl 2 3 4 5 6 7 8", script.display());
            assert!(said.lines().any(|own| own == line), "{said}");
            // The kernel opens the file of a script by a descriptor that is closed by then.
            assert_eq!(said.lines().filter(|line| line.starts_with("raw -x y ")).count(), 14);
        }
        let said = c.start("first", &mut raw(&script)).success(secs(60));
        assert_eq!(said, format!("raw -x y {}\n", script.display()));
        Ok(())
    });
}

/// Go programs of each kind, in the middle of a chain of programs that all take part.
#[test]
fn children_of_go() {
    case("raw-go-children", |c| {
        let child = in_c(c, "aboard.c", "cc", &[])?;
        let still = in_c(c, "aboard.c", "cc", &["-static"])?;
        let with_libc = compile("start.go")?;
        let mut kinds = vec![(with_libc, "library")];
        for kind in GO_KINDS {
            kinds.push((compile_pure_go("start", kind)?, "raw"));
        }
        let sh = c.dir().join("sh");
        fs::write(&sh, "\"$@\"\nexit $?\n").expect("a script");
        for (starter, by) in &kinds {
            let own = format!("{by} {}", starter.display());
            for (child, by) in [(&child, "library"), (&still, "raw")] {
                let mut command = raw(Path::new("/bin/sh"));
                let said = c.start("chain", command.arg(&sh).arg(starter).arg(child).arg("x"));
                let lines = format!("{by} x\n{by} x\n{own}\n");
                assert_eq!({ said }.success(secs(60)), lines);
            }
        }
        // A shell, a Go program, and a client that has the library.
        let (herd, client) = (herd()?, compile("herd.go")?);
        let mut chain = raw(Path::new("/bin/sh"));
        chain.arg(&sh).arg(&kinds[1].0).arg(client).arg("client");
        pair(c, raw(&herd).arg("server"), &mut chain, &["20", "600"], 10)
    });
}

/// Why a program is started as ever is told: by `run`, by `doctor`, and in the log where another
/// program starts it. What asks for all of it may be a file.
#[test]
fn reasons_are_told() {
    case("raw-reasons", |c| {
        let still = in_c(c, "aboard.c", "cc", &["-static"])?;
        let marked = c.dir().join("marked");
        fs::copy(&still, &marked).expect("a copy");
        fs::set_permissions(&marked, Permissions::from_mode(0o4755)).expect("a mode");
        let mut told = c.start("marked", &mut raw(&marked));
        assert_eq!(told.success(secs(60)), "nothing\n");
        assert!(told.stderr().contains("cannot follow it: it has the rights"), "{}", told.stderr());
        // The stack would be that of shortwire-raw, without code.
        let trampolines = in_c(c, "aboard.c", "cc", &["-static", "-Wl,-z,execstack"])?;
        let mut told = c.start("trampolines", &mut raw(&trampolines));
        assert_eq!(told.success(secs(60)), "nothing\n");
        let stderr = told.stderr();
        assert!(stderr.contains("cannot follow it: it has its stack executed"), "{stderr}");
        let doctor = |program: &Path| {
            let said = Command::new(shortwire()).arg("doctor").arg(program).output();
            String::from_utf8_lossy(&said.expect("starting doctor").stdout).into_owned()
        };
        assert!(doctor(&marked).contains("cannot follow it, as it has the rights"));
        assert!(
            doctor(&still).contains("Start it by `shortwire run --raw auto`, which follows it")
        );
        let log = c.dir().join("log");
        let mut sh = raw(Path::new("/bin/sh"));
        sh.env("SHORTWIRE_LOG", &log).arg("-c").arg(format!("{}; :", marked.display()));
        assert_eq!(c.start("sh", &mut sh).success(secs(60)), "nothing\n");
        let lines = fs::read_to_string(&log).expect("a log");
        let line = format!("{} is started as ever, on TCP: it has the rights", marked.display());
        assert!(lines.contains(&line) && lines.lines().count() == 1, "{lines}");
        fs::remove_file(&log).expect("a log");
        sh = raw(Path::new("/bin/sh"));
        sh.env("SHORTWIRE_LOG", &log).arg("-c").arg(format!("'{}'; :", trampolines.display()));
        assert_eq!(c.start("sh", &mut sh).success(secs(60)), "nothing\n");
        let lines = fs::read_to_string(&log).expect("a log");
        assert!(lines.contains("it has its stack executed"), "{lines}");
        let file = c.dir().join("file.conf");
        fs::write(&file, "raw = auto\n").expect("a file");
        let mut child = Side::Run.command("/bin/sh");
        child.arg("-c").arg(format!("{}; :", still.display()));
        for mut command in [Side::Run.command(&still), child] {
            command.env("SHORTWIRE_CONFIG", &file);
            assert_eq!(c.start("by-file", &mut command).success(secs(60)), "raw\n");
        }
        // A library with nothing beside it.
        let library = c.dir().join("libshortwire.so");
        fs::copy(shortwire().with_file_name("libshortwire.so"), &library).expect("a copy");
        let mut alone = c.start("alone", raw(&still).env("SHORTWIRE_LIB", &library));
        assert_eq!(alone.success(secs(60)), "nothing\n");
        assert!(alone.stderr().contains("shortwire-raw is not there"), "{}", alone.stderr());
        // One of another build.
        let artefact = c.dir().join("shortwire-raw");
        let bytes = fs::read(shortwire().with_file_name("shortwire-raw")).expect("the artefact");
        let mark = b"shortwire build: ";
        let at = bytes.windows(mark.len()).position(|part| part == mark).expect("its build");
        let mut other = bytes.clone();
        other[at + mark.len()..][..4].copy_from_slice(b"0bad");
        fs::write(&artefact, other).expect("a copy");
        fs::set_permissions(&artefact, Permissions::from_mode(0o755)).expect("a mode");
        let mut other = c.start("other", raw(&still).env("SHORTWIRE_LIB", &library));
        assert_eq!(other.success(secs(60)), "raw\n");
        assert!(other.stderr().contains("of another build"), "{}", other.stderr());
        // By their names they would count as left behind.
        for copy in [library, artefact] {
            fs::remove_file(copy).expect("a copy of our own");
        }
        Ok(())
    });
}

/// `ss` names the end that is not followed, and says of it what `run` and `doctor` do; where it was told
/// to change nothing, that.
#[test]
fn the_end_that_is_not_followed_is_named() {
    case("raw-unfollowed", |c| {
        let (still, client) = (in_c(c, "many.c", "cc", &["-static"])?, compile("many")?);
        let doctor = |of: &OsStr| shown(&["doctor".as_ref(), of]);
        // As much of its name as the kernel keeps.
        let both = |words: &str| {
            [
                format!("NOT_FOLLOWED (0x09991036): many.c-cc-stati {words}"),
                format!("did not signal SMC; many.c-cc-stati at the other end {words}"),
            ]
        };
        let alone = "is statically linked, so nothing can be loaded into it";
        let off = "was told to change nothing";
        for (is_off, expected) in [(false, both(alone)), (true, both(off))] {
            let port = Ports::Low.free();
            let number = port.to_string();
            let mut command = Side::Run.command(&still);
            if is_off {
                command.env("SHORTWIRE_DISABLE", "1");
            }
            let mut server = c.serve("server", port, command.args(["server", &number]));
            let mut client = Side::Run.command(&client);
            let mut client = c.start("client", client.args(["idle", &number, "2", "20"]));
            client.wait_line("ready", secs(60));
            let filter = format!("sport = :{port} or dport = :{port}");
            let end = Deadline::within(secs(60));
            let [own, peer] = expected;
            let own = if is_off { "OFF (0x09991000)".into() } else { own };
            loop {
                let said = shown(&["ss".as_ref(), filter.as_ref()]);
                if said.contains(&own) && said.contains(&peer) {
                    break;
                }
                assert!(!end.is_over(), "not said: {own}; {peer}\n{said}");
                std::thread::sleep(millis(50));
            }
            let pid = server.pid().to_string();
            let words = if is_off { off } else { alone };
            assert!(is_off || doctor(pid.as_ref()).contains(words));
            assert!(is_off || server.stderr().contains(words), "{}", server.stderr());
            client.stop();
            server.stop();
        }
        Ok(())
    });
}

/// What the command says on its standard output.
fn shown(args: &[&OsStr]) -> String {
    let said = Command::new(shortwire()).args(args).output().expect("starting shortwire");
    String::from_utf8_lossy(&said.stdout).into_owned()
}

/// A debugger has read the program's file, and puts its breakpoints where that says.
#[test]
fn what_a_debugger_starts() {
    case("raw-traced", |c| {
        let (still, strace) = (in_c(c, "aboard.c", "cc", &["-static"])?, need("strace")?);
        let mut traced = raw(&strace);
        traced.args(["-f", "-o"]).arg(c.dir().join("calls")).arg(&still);
        assert_eq!(c.start("traced", &mut traced).success(secs(60)), "nothing\n");
        Ok(())
    });
}
