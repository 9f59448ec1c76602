//! Go programs without the C library.

use super::*;

/// Goroutines, collections, signals, children and ending threads, as `herd.go` says.
#[test]
fn go_herd() {
    case("raw-go-herd", |c| {
        let herd = herd()?;
        pair(c, raw(&herd).arg("server"), raw(&herd).arg("client"), &["100", "200"], 100)
    });
}

/// A Go program that has a loader, which loads nothing.
#[test]
fn go_pie() {
    case("raw-go-pie", |c| {
        let herd = compile_pure_go("herd", "pie")?;
        pair(c, raw(&herd).arg("server"), raw(&herd).arg("client"), &["100", "400"], 20)
    });
}

#[test]
fn go_one_processor_and_no_preemption() {
    case("raw-go-one", |c| {
        let herd = herd()?;
        let one = |mode: &str| {
            let mut command = raw(&herd);
            command.arg(mode).env("GOMAXPROCS", "1").env("GODEBUG", "asyncpreemptoff=1");
            command
        };
        pair(c, &mut one("server"), &mut one("client"), &["50", "400"], 20)
    });
}

#[test]
fn go_net_http() {
    case("raw-go-http", |c| {
        let herd = herd()?;
        pair(c, raw(&herd).arg("http"), raw(&herd).arg("get"), &["6000"], 1)
    });
}

/// Each kind of C program as the other end, one of them by the library.
#[test]
fn go_and_c() {
    case("raw-go-and-c", |c| {
        let herd = herd()?;
        let mut kinds = vec![compile("many")?];
        for (compiler, how) in KINDS {
            kinds.push(in_c(c, "many.c", compiler, how)?);
        }
        for kind in kinds {
            pair(c, raw(&kind).arg("server"), raw(&herd).arg("client"), &["20", "600"], 10)?;
        }
        Ok(())
    });
}

/// The same with the kernel's net under it, for a call that is never made: each thread and child has it,
/// and no handler blocks its signal.
#[test]
fn go_herd_with_a_net() {
    case("raw-go-net", |c| {
        const UNTOLD: &str = "TEXT ·untold(SB),4,$0-0\nTESTQ AX, AX\nJEQ two\nMOVQ R9, R9\ntwo:\nSYSCALL\n\
                              JMP three\nUNDEF\nthree:\nRET\n";
        const KEPT: &str = "\nfunc untold()\n\nvar kept func()\n\nfunc init() { kept = untold }\n";
        let folder = c.dir().join("herd");
        fs::create_dir(&folder).expect("a folder");
        let text = fs::read_to_string(prog("herd.go")).expect("the source");
        fs::write(folder.join("herd.go"), text.replace("import \"C\"\n", "") + KEPT)
            .expect("source");
        fs::write(folder.join("untold.s"), UNTOLD).expect("source");
        fs::write(folder.join("go.mod"), "module herd\n\ngo 1.22\n").expect("a module");
        let program = c.dir().join("netted");
        let mut command = Command::new(need("go")?);
        command.args(["build", "-p", "2", "-o"]).arg(&program).current_dir(&folder);
        command.envs([("GOFLAGS", ""), ("CGO_ENABLED", "0")]);
        let said = command.output().expect("starting go");
        assert!(said.status.success(), "{}", String::from_utf8_lossy(&said.stderr));
        let mut help = c.start("help", raw(&program).arg("no such mode"));
        help.wait(secs(60));
        if help.stderr().contains("this kernel does not send") {
            return skip("no Syscall User Dispatch in this kernel");
        }
        assert!(help.stderr().contains("Syscall User Dispatch"), "{}", help.stderr());
        let herd = herd()?;
        pair(c, raw(&program).arg("server"), raw(&herd).arg("client"), &["100", "200"], 100)?;
        pair(c, raw(&herd).arg("server"), raw(&program).arg("client"), &["100", "200"], 100)
    });
}

/// A signal that arrives in a call finds the program's own function there, of which Go can tell.
#[test]
fn go_crash_names_its_function() {
    case("raw-go-crash", |c| {
        let mut kinds = vec![compile("crash.go")?];
        for kind in GO_KINDS {
            kinds.push(compile_pure_go("crash", kind)?);
        }
        for program in kinds {
            let mut crashed = c.start("crash", &mut raw(&program));
            assert_eq!(crashed.wait(secs(60)).code(), Some(2));
            let said = crashed.stderr();
            assert!(said.contains("Syscall6(") && !said.contains("unknown pc"), "{said}");
        }
        Ok(())
    });
}
