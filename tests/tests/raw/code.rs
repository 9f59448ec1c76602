//! Threads and processes, the program's own file, code that comes later, and calls that cannot be told.

use super::*;

/// Threads, vfork, fork and jumps out of handlers, as `raw_life.c` says.
#[test]
fn life_of_c() {
    case("raw-life", |c| {
        for (compiler, how) in KINDS {
            let program = in_c(c, "raw_life.c", compiler, how)?;
            let said = c.start("life", raw(&program).arg("jumps")).success(secs(60));
            assert_eq!(said, "done\n", "{compiler} {how:?}");
        }
        Ok(())
    });
}

/// A program that opens, looks at or executes its own file gets that, and the kernel's errors.
#[test]
fn own_file() {
    case("raw-itself", |c| {
        for (compiler, how) in KINDS {
            let program = in_c(c, "itself.c", compiler, how)?;
            let plain = c.start("plain", &mut Command::new(&program)).success(secs(60));
            let said = c.start("raw", &mut raw(&program)).success(secs(60));
            assert!(said.contains("stat: own"), "{said}");
            assert_eq!(said, plain, "{compiler} {how:?}");
        }
        // What has no name any more is not what has that of the artefact.
        let program = in_c(c, "itself.c", "cc", &["-static"])?;
        let mut unnamed = raw(Path::new("/bin/sh"));
        let script = "ln \"$1\" \"$1-2\"; exec \"$1-2\" gone";
        unnamed.args(["-c", script, "sh"]).arg(&program);
        let said = c.start("gone", &mut unnamed).success(secs(60));
        assert_eq!(said, "open: No such file or directory\nname ends in (deleted): 1\n");
        Ok(())
    });
}

/// Calls of a library that is mapped while the program runs, in each way, are followed; of one with calls
/// that cannot be told the log tells.
#[test]
fn code_that_comes_later() {
    case("raw-later", |c| {
        let client = in_c(c, "later.c", "musl-gcc", &[])?;
        let shared = ["-shared", "-fPIC"];
        let library = in_c(c, "later_library.c", "musl-gcc", &shared)?;
        let untold = in_c(c, "later_library.c", "musl-gcc", &["-shared", "-fPIC", "-DUNTOLD"])?;
        let many = compile("many")?;
        for how in ["dlopen", "mapped", "protected", "again", "beside"] {
            let log = c.dir().join(format!("log-{how}"));
            let mut command = raw(&client);
            // The port comes first.
            command.env("SHORTWIRE_LOG", &log);
            let path = library.to_str().expect("a path of letters");
            pair(
                c,
                Side::Run.command(&many).arg("server"),
                &mut command,
                &[path, how, "60000"],
                2,
            )?;
            assert_eq!(fs::read_to_string(&log).unwrap_or_default(), "", "{how}");
        }
        let log = c.dir().join("log");
        let mut command = raw(&client);
        command.env("SHORTWIRE_LOG", &log);
        let path = untold.to_str().expect("a path of letters");
        let clients = clients(
            c,
            Side::Run.command(&many).arg("server"),
            &mut command,
            &[path, "dlopen", "60000"],
            2,
        );
        let lines = fs::read_to_string(&log).expect("a log");
        let line = format!("{path}, which was mapped, makes calls that may pass unseen");
        // One for each client.
        assert!(lines.contains(&line) && lines.lines().count() == clients, "{lines}");
        Ok(())
    });
}

/// Who forbids that memory becomes code has forbidden it before the library's code is touched.
#[test]
fn code_that_cannot_be_changed_stays_as_it_is() {
    case("raw-refused", |c| {
        let client = in_c(c, "later.c", "musl-gcc", &[])?;
        let library = in_c(c, "later_library.c", "musl-gcc", &["-shared", "-fPIC"])?;
        let (many, confine) = (compile("many")?, compile("confine")?);
        let port = Ports::Low.free();
        let number = port.to_string();
        // Its calls pass unseen, so that the connection is to stay on TCP.
        let mut server = Side::Plain.command(&many);
        let mut server = c.serve("server", port, server.args(["server", &number]));
        for how in ["mapped", "protected"] {
            let mut command = Command::new(&confine);
            command.args(["onepage", "--"]).arg(shortwire()).args(["run", "--raw", "auto", "--"]);
            command.arg(&client).arg(&number).arg(&library).args([how, "200"]);
            let log = c.dir().join(how);
            command.env("SHORTWIRE_LOG", &log);
            assert_eq!(c.start("client", &mut command).success(secs(60)), "done\n", "{how}");
            let lines = fs::read_to_string(&log).unwrap_or_default();
            assert!(lines.contains("the kernel does not let it be changed"), "{how}: {lines}");
        }
        server.stop();
        Ok(())
    });
}

/// Calls that nothing can be put in the place of come by the kernel's net, which is told.
#[test]
fn calls_that_cannot_be_told() {
    case("raw-untold", |c| {
        let kinds = &KINDS[..3];
        let programs: Vec<_> = kinds
            .iter()
            .map(|(compiler, how)| in_c(c, "untold.c", compiler, how))
            .collect::<Result<_, _>>()?;
        let doctor = |program: &Path| {
            let said = Command::new(shortwire()).arg("doctor").arg(program).output();
            String::from_utf8_lossy(&said.expect("starting doctor").stdout).into_owned()
        };
        let said = doctor(&programs[0]);
        if said.contains("this kernel does not send") {
            return skip("no Syscall User Dispatch in this kernel");
        }
        assert!(said.contains("which follows it at a cost"), "{said}");
        let many = compile("many")?;
        for program in &programs {
            let log = c.dir().join("log");
            let mut life = raw(program);
            let mut life = c.start("life", life.arg("life").env("SHORTWIRE_LOG", &log));
            assert_eq!(life.success(secs(60)), "followed\ndone\n");
            assert!(life.stderr().contains("Syscall User Dispatch"), "{}", life.stderr());
            let lines = fs::read_to_string(&log).expect("a log");
            assert!(lines.contains("the kernel sends them by signals"), "{lines}");
            fs::remove_file(&log).expect("a log of our own");
            pair(c, Side::Run.command(&many).arg("server"), &mut raw(program), &["60000"], 2)?;
        }
        // What has a loader has none.
        let moved = in_c(c, "untold.c", "musl-gcc", &[])?;
        let mut life = c.start("moved", raw(&moved).arg("life"));
        assert_eq!(life.success(secs(60)), "done\n");
        assert!(life.stderr().contains("cannot follow it"), "{}", life.stderr());
        Ok(())
    });
}
