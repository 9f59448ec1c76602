//! Bad input to `shortwire run`: a clear message and the right exit status, never a crash.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::PathBuf;
use std::process::{Command, ExitStatus};

use system_tests::{
    Case, Outcome, Ports, Side, case, compile, millis, need, plain, secs, shortwire, skip,
};

fn tool(name: &str, test: impl FnOnce(&Case) -> Outcome) {
    case(name, |c| if plain() { skip("needs the shortwire command") } else { test(c) });
}

/// The end of `shortwire ARGS` and what it wrote to standard error.
fn shortwire_with(
    c: &Case,
    args: &[&str],
    prepare: impl FnOnce(&mut Command),
) -> (ExitStatus, String) {
    let mut command = Command::new(shortwire());
    command.args(args).env_remove("LD_PRELOAD");
    prepare(&mut command);
    let mut run = c.start("command", &mut command);
    let status = run.wait(secs(60));
    (status, run.stderr())
}

fn refused(c: &Case, args: &[&str], status: i32, words: &[&str]) {
    let (found, said) = shortwire_with(c, args, |_| {});
    assert_eq!(found.code(), Some(status), "{args:?}: {found}: {said}");
    for word in words {
        assert!(said.contains(word), "{args:?}: no `{word}` in: {said}");
    }
}

#[test]
fn a_full_disk_behind_standard_output_is_an_error() {
    tool("full", |c| {
        for args in [
            &["info"][..],
            &["info", "--json"],
            &["ss"],
            &["stats"],
            &["config", "show"],
            &["devices"],
            &["linkgroups"],
            &["ps"],
            &["seid"],
            &["--help"],
            &["--version"],
            &["snsh", "-e", "print(1)"],
        ] {
            let mut command = Command::new("sh");
            command.args(["-c", "exec \"$@\" > /dev/full", "sh"]).arg(shortwire()).args(args);
            let mut run = c.start("full", command.env_remove("LD_PRELOAD"));
            let (status, said) = (run.wait(secs(60)), run.stderr());
            let is_told = said.contains("No space left") && !said.contains("panicked");
            assert!(status.code() == Some(1) && is_told, "{args:?}: {status}: {said}");
        }
        Ok(())
    });
}

#[test]
fn unknown_options_and_values() {
    tool("options", |c| {
        refused(c, &["run", "--no-such-option", "--", "true"], 125, &["--no-such-option"]);
        refused(c, &["run", "--spin", "lots", "--", "true"], 125, &["--spin", "lots"]);
        refused(c, &["run", "--dmb-size", "17K", "--", "true"], 125, &["17K"]);
        refused(c, &["run"], 125, &["PROG"]);
        refused(c, &["rnu"], 2, &["'run'"]);
        refused(c, &["ss", "--pid", "3"], 2, &["`shortwire ss pid ...`"]);
        refused(c, &["bench", "sockets", "--only", "pingpng"], 2, &["'pingpong'"]);
        refused(c, &["enable", "--set", "AFTRE=4", "x"], 2, &["did you mean AFTER?"]);
        refused(c, &["webhook", "--dry-run", "--set", "AFTRE=4"], 2, &["did you mean AFTER?"]);
        refused(c, &["engine", "--metrics", "9090", "x"], 2, &["such as 127.0.0.1:9090"]);
        refused(c, &["run", "--log", "/nonexistent/x", "--", "true"], 0, &["cannot be written"]);
        refused(c, &["broker", "--ivshmem", "/tmp"], 1, &["cannot open /tmp: Is a directory"]);
        refused(c, &["rstream", "--server", "127.0.0.1", "--port", "1"], 1, &["127.0.0.1, port 1"]);
        refused(c, &["disable", "no-such-unit.service"], 0, &[]);
        refused(c, &["run", "--seid", "off", "--", "true"], 0, &["no enterprise ID"]);
        let (status, said) = shortwire_with(c, &["no-such-command"], |_| {});
        assert!(
            status.code().is_some_and(|code| code != 0) && said.contains("no-such-command"),
            "{status}: {said}"
        );
        let (status, said) = shortwire_with(c, &["run", "--", "true"], |command| {
            command.env("SHORTWIRE_AFTER", "many");
        });
        assert!(status.code() == Some(125) && said.contains("many"), "{status}: {said}");
        Ok(())
    });
}

#[test]
fn a_gain_is_a_file_of_its_own_or_nothing() {
    tool("gain", |c| {
        let path = c.dir().join("gain.json");
        let file = path.to_str().expect("UTF-8");
        let (status, said) = shortwire_with(
            c,
            &["gain", "--json", "-o", file, "--", "sh", "-c", "echo x >&2"],
            |_| {},
        );
        assert!(status.success() && said == "x\n", "{status}: {said}");
        let text = fs::read_to_string(&path).expect("a report");
        assert!(text.starts_with('{') && text.ends_with("}\n"), "{text}");
        refused(c, &["gain", "-o", "/nonexistent/x", "--", "true"], 125, &["/nonexistent/x"]);
        let (status, said) = shortwire_with(c, &["gain", "--", "/no/such"], |_| {});
        assert!(status.code() == Some(127) && said.lines().count() == 1, "{status}: {said}");
        Ok(())
    });
}

#[test]
fn programs_that_cannot_be_started() {
    tool("programs", |c| {
        refused(c, &["run", "--", "no-such-program-anywhere"], 127, &["no-such-program-anywhere"]);
        refused(c, &["run", "--", "/no/such/path"], 127, &["/no/such/path"]);
        let file = c.dir().join("no-program");
        fs::write(&file, "#!/no/such/interpreter\n").expect("a file");
        let name = file.to_string_lossy().into_owned();
        refused(c, &["run", "--", &name], 126, &["no-program"]);
        fs::set_permissions(&file, fs::Permissions::from_mode(0o755)).expect("permissions");
        refused(
            c,
            &["run", "--", &name],
            127,
            &["interpreter", "/no/such/interpreter, is not there"],
        );
        refused(c, &["run", "--", &c.dir().to_string_lossy()], 126, &[]);
        Ok(())
    });
}

#[test]
fn libraries_that_cannot_be_loaded() {
    tool("libraries", |c| {
        let real = fs::read(library()).expect("the library");
        let bad = |name: &str, content: &[u8]| {
            let path = c.dir().join(name);
            fs::write(&path, content).expect("a file");
            path
        };
        let cases = [
            (PathBuf::from("/no/such/library.so"), "/no/such/library.so"),
            (bad("text.so", b"no library at all"), "text.so"),
            (bad("empty.so", b""), "empty.so"),
            (bad("cut.so", &real[..32]), "cut.so"),
            (c.dir().to_path_buf(), ""),
        ];
        for (path, word) in cases {
            let (status, said) = shortwire_with(c, &["run", "--", "true"], |command| {
                command.env("SHORTWIRE_LIB", &path);
            });
            assert!(
                status.code() == Some(125) && said.contains(word),
                "{path:?}: {status}: {said}"
            );
        }
        Ok(())
    });
}

#[test]
fn a_library_without_read_permission() {
    tool("unreadable", |c| {
        let path = c.dir().join("closed.so");
        fs::copy(library(), &path).expect("a copy");
        fs::set_permissions(&path, fs::Permissions::from_mode(0o000)).expect("permissions");
        let (status, said) = shortwire_with(c, &["run", "--", "true"], |command| {
            command.env("SHORTWIRE_LIB", &path);
            if rustix::process::geteuid().is_root() {
                command.uid(65534).gid(65534);
            }
        });
        assert!(status.code() == Some(125) && said.contains("closed.so"), "{status}: {said}");
        Ok(())
    });
}

fn library() -> PathBuf {
    shortwire().with_file_name("libshortwire.so")
}

/// Whoever sets LD_PRELOAD by hand passes no checks: nonsense in the variables must not hurt the
/// program.
#[test]
fn nonsense_in_the_environment() {
    tool("environment", |c| {
        for value in ["", "x", "-1", "99999999999999999999999", "\u{ff}\u{ff}", "0"] {
            let mut command = Command::new(compile("transfer")?);
            let port = Ports::Low.free().to_string();
            let names = [
                "AFTER",
                "AFTER_BYTES",
                "DMB_SIZE",
                "SPIN",
                "PEER_POLICY",
                "PREFER",
                "UEID",
                "DISABLE",
                "IO_URING",
                "COPY",
            ];
            command
                .envs(names.map(|name| (format!("SHORTWIRE_{name}"), value)))
                .env("LD_PRELOAD", library());
            let args = |side: &str| {
                [side, &port, "threads", "send", "10000000", "10000000", "1"].map(String::from)
            };
            let mut server =
                c.serve("server", port.parse().unwrap_or(0), command.args(args("server")));
            let mut client = Command::new(compile("transfer")?);
            client
                .envs(names.map(|name| (format!("SHORTWIRE_{name}"), value)))
                .env("LD_PRELOAD", library());
            c.start("client", client.args(args("client"))).success(secs(120));
            server.success(secs(120));
        }
        Ok(())
    });
}

#[test]
fn the_programs_own_end_passes_through() {
    tool("status", |c| {
        let (status, said) = shortwire_with(c, &["run", "--", "sh", "-c", "exit 42"], |_| {});
        assert_eq!(status.code(), Some(42), "{said}");
        let (status, said) = shortwire_with(c, &["run", "--", "sh", "-c", "kill -TERM $$"], |_| {});
        assert_eq!(status.signal(), Some(15), "{status}: {said}");
        let (status, said) =
            shortwire_with(c, &["run", "--", "sh", "-c", "echo words >&2; exec true"], |_| {});
        assert!(status.success() && said == "words\n", "{status}: {said}");
        Ok(())
    });
}

#[test]
fn an_earlier_preload_is_kept() {
    tool("preload", |c| {
        let mut command = Side::Run.command("sh");
        command.args(["-c", "echo $LD_PRELOAD"]).env("LD_PRELOAD", "libc.so.6");
        let said = c.start("sh", &mut command).success(secs(60));
        assert!(said.contains("libshortwire.so") && said.contains("libc.so.6"), "{said}");
        Ok(())
    });
}

/// They run, with a word about why they are not accelerated.
#[test]
fn static_programs_run_with_a_warning() {
    tool("static", |c| {
        let go = compile("talk.go")?;
        let (status, said) =
            shortwire_with(c, &["run", "--", &go.to_string_lossy(), "1", "1"], |_| {});
        assert_eq!(status.code(), Some(1), "connecting to port 1 fails: {said}");
        assert!(said.contains("warning") && said.contains("refused"), "{said}");
        let (_, quiet) =
            shortwire_with(c, &["run", "--quiet", "--", &go.to_string_lossy(), "1", "1"], |_| {});
        assert!(!quiet.contains("warning"), "{quiet}");
        Ok(())
    });
}

#[test]
fn a_script_is_a_program() {
    tool("script", |c| {
        let path = c.dir().join("script");
        fs::write(&path, "echo from a script\n").expect("a file");
        fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).expect("permissions");
        let said = c.start("script", Side::Run.command(&path).arg("x")).success(secs(60));
        assert_eq!(said, "from a script\n");
        Ok(())
    });
}

#[test]
fn disabled_is_tcp() {
    tool("disabled", |c| {
        let (port, program) = (Ports::Low.free(), compile("transfer")?);
        let args = |side: &str| {
            [side, &port.to_string(), "threads", "send", "100000000", "100000000", "1"]
                .map(String::from)
        };
        let disabled = |side: &str| {
            let mut command = Command::new(shortwire());
            command
                .args(["run", "--disable", "--"])
                .arg(&program)
                .args(args(side))
                .env_remove("LD_PRELOAD");
            command
        };
        let mut server = c.serve("server", port, &mut disabled("server"));
        let watch = c.watch(&[port]);
        c.start("client", &mut disabled("client")).success(secs(120));
        server.success(secs(120));
        watch.expect_tcp();
        Ok(())
    });
}

/// The other subcommands before anything runs, and with nonsense.
#[test]
fn looking_at_nothing() {
    tool("nothing", |c| {
        for args in [
            &["ss"][..],
            &["ss", "--json"],
            &["stats"],
            &["stats", "--json"],
            &["info"],
            &["devices"],
            &["--help"],
            &["run", "--help"],
        ] {
            let (status, said) = shortwire_with(c, args, |_| {});
            assert!(status.success(), "{args:?}: {status}: {said}");
        }
        need("true").map(drop)
    });
}

#[test]
fn the_doctor_says_what_stands_in_the_way() {
    tool("doctor", |c| {
        let examine = |subject: &str| {
            let mut command = Command::new(shortwire());
            let mut run =
                c.start("doctor", command.args(["doctor", subject]).env_remove("LD_PRELOAD"));
            (run.wait(secs(60)).code(), run.stdout() + &run.stderr())
        };
        let expect = |subject: &str, status: i32, words: &str| {
            let (found, said) = examine(subject);
            assert!(
                found == Some(status) && said.contains(words),
                "{subject}: {found:?}, not {status}: {said}"
            );
        };
        expect("no-such-program-anywhere", 1, "no-such-program-anywhere");
        expect("4294967295", 1, "there is no process");
        let many = compile("many")?;
        expect(&many.to_string_lossy(), 0, "the library can be loaded");
        expect(&compile("talk.go")?.to_string_lossy(), 1, "Go program without the C library");
        expect(&compile("herd.go")?.to_string_lossy(), 0, "Go makes itself are followed");
        let port = Ports::Low.free();
        let number = port.to_string();
        let mut plain = c.serve("plain", port, Command::new(&many).args(["server", &number]));
        expect(&plain.pid().to_string(), 1, "Start it again: shortwire run -- ");
        plain.stop();
        let mut server =
            c.serve("server", port, Side::Run.command(&many).args(["server", &number]));
        expect(&server.pid().to_string(), 0, "no TCP connections");
        let mut client = c.start("client", Command::new(&many).args(["idle", &number, "1", "100"]));
        client.wait_line("ready", secs(60));
        expect(&server.pid().to_string(), 0, "peer did not signal SMC; at the other end: many");
        client.say("\n");
        client.success(secs(60));
        server.stop();
        Ok(())
    });
}

/// What was not as it seemed: a library that was replaced under a program, connections of workers,
/// rsockets, a directory to meet in.
#[test]
fn the_doctor_is_not_misled() {
    tool("doctor-truth", |c| {
        let examine = |pid: i32, status: i32, words: &str| {
            let mut command = Command::new(shortwire());
            let mut run = c.start(
                "doctor",
                command.args(["doctor", &pid.to_string()]).env_remove("LD_PRELOAD"),
            );
            let (found, said) = (run.wait(secs(60)).code(), run.stdout() + &run.stderr());
            assert!(found == Some(status) && said.contains(words), "{found:?} {words}: {said}");
        };
        let many = compile("many")?;
        let port = Ports::Low.free();
        let number = port.to_string();
        let library = shortwire().with_file_name("libshortwire.so");
        // An upgrade puts another file into its place.
        let installed = c.dir().join("libshortwire.so");
        fs::copy(&library, &installed).expect("a copy");
        let mut command = Command::new(&many);
        command.args(["server", &number]).env("LD_PRELOAD", &installed);
        let mut server = c.serve("server", port, &mut command);
        examine(server.pid(), 0, "the library is loaded");
        fs::copy(&library, c.dir().join("new")).expect("a copy");
        fs::rename(c.dir().join("new"), &installed).expect("an upgrade");
        examine(server.pid(), 0, "was replaced since");
        fs::remove_file(&installed).expect("a removal");
        examine(server.pid(), 0, "was replaced since");
        server.stop();

        // Workers have the connections.
        let python = system_tests::python()?;
        let forks = "import os, socket, sys\ns = socket.socket(); s.bind(('127.0.0.1', int(sys.argv[1]))); s.listen()\nif os.fork() == 0:\n  c = s.accept()[0]\n  print('worker', flush=True)\n  while c.recv(100): pass\n  os._exit(0)\nprint('forked', flush=True)\nos.wait()";
        let mut master =
            c.serve("master", port, Side::Run.command(&python).args(["-c", forks, &number]));
        // It listens before it forks.
        master.wait_line("forked", secs(60));
        examine(master.pid(), 0, "neither it nor the 1 processes that it started have TCP");
        let client = std::net::TcpStream::connect(("127.0.0.1", port)).expect("a connection");
        master.wait_line("worker", secs(60));
        examine(master.pid(), 0, "; at the other end: badinput");
        drop(client);
        master.success(secs(60));

        let sleep = need("sleep")?;
        let mut run = Command::new(shortwire());
        run.args(["run", "--rsocket", "--"]).arg(&sleep).arg("100");
        let mut with_rsockets = c.start("rsockets", &mut run);
        let maps = format!("/proc/{}/maps", with_rsockets.pid());
        let is_loaded =
            || fs::read_to_string(&maps).is_ok_and(|all| all.contains("libshortwire_rs"));
        while !is_loaded() && with_rsockets.running() {
            std::thread::sleep(millis(5));
        }
        examine(with_rsockets.pid(), 0, "the library for rsockets is loaded");
        with_rsockets.signal(rustix::process::Signal::KILL);
        with_rsockets.wait(secs(60));

        for (dir, words) in [
            (c.dir().to_path_buf(), "are met in"),
            ("/no/such".into(), "is no directory that it sees"),
        ] {
            let mut command = Command::new(&many);
            command.args(["server", &number]).env("LD_PRELOAD", &library);
            let mut server = c.serve("server", port, command.env("SHORTWIRE_RENDEZVOUS", &dir));
            examine(server.pid(), 0, words);
            server.stop();
        }
        Ok(())
    });
}
