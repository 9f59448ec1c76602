//! One test: with a directory of its own, clean afterwards, and no other test of its process beside
//! it. `make check` runs each test as a process of its own, several at a time; what must have the
//! machine for itself is in a module `alone`.

use std::collections::BTreeSet;
use std::env;
use std::ffi::OsString;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Mutex;
use std::thread::sleep;

use rustix::process::{Pid, Signal, kill_process, set_child_subreaper};

use crate::deadline::Deadline;
use crate::leak::{self, descendants};
use crate::net::listening;
use crate::run::{Proc, Side};
use crate::skip::{Outcome, count};
use crate::ss::Watch;
use crate::{millis, report, secs};

/// Under `cargo test`, which runs the tests of a file as threads of one process: ports, children and
/// descriptors are those of a process, so that one test would take another's for its own leaks.
static ALONE: Mutex<()> = Mutex::new(());

pub struct Case {
    dir: PathBuf,
    files: BTreeSet<String>,
    started: std::cell::Cell<u32>,
}

/// Runs one test. A `Skip` is printed and counted; whatever the test leaves behind fails it.
pub fn case(name: &str, test: impl FnOnce(&Case) -> Outcome) {
    let _alone = ALONE.lock().unwrap_or_else(|e| e.into_inner());
    let _ = set_child_subreaper(Pid::from_raw(1));
    let dir = env::temp_dir().join(format!("swt-{}-{name}", std::process::id()));
    let _ = fs::remove_dir_all(&dir);
    fs::create_dir_all(&dir).expect("a directory for the test");
    // Some servers give up root and must still get here.
    let _ = fs::set_permissions(&dir, fs::Permissions::from_mode(0o777));
    let this = Case { files: leak::files(&dir), dir, started: Default::default() };
    let outcome = catch_unwind(AssertUnwindSafe(|| test(&this)));
    let left = this.clean_up();
    match outcome {
        Err(panic) => resume_unwind(panic),
        Ok(Err(why)) => count(name, &why),
        Ok(Ok(())) => assert!(left.is_empty(), "left behind: {}", left.join("; ")),
    }
}

impl Case {
    pub fn dir(&self) -> &Path {
        &self.dir
    }

    /// Starts a program; the name is for messages and need not be unique.
    pub fn start(&self, name: &str, command: &mut Command) -> Proc {
        let number = self.started.get();
        self.started.set(number + 1);
        command.env("TMPDIR", &self.dir).env("XDG_RUNTIME_DIR", &self.dir);
        command.env("SHORTWIRE_RUN_DIR", self.dir.join("run"));
        self.forget_the_user(command);
        Proc::start(&format!("{number}-{name}"), &self.dir, command)
    }

    /// What whoever runs the tests has settled for programs, and the test itself has not: a proxy would
    /// be asked for 127.0.0.1, rules decide which connections are upgraded, and messages are read in
    /// English.
    fn forget_the_user(&self, command: &mut Command) {
        let set: Vec<OsString> = command.get_envs().map(|(name, _)| name.to_owned()).collect();
        let is_set = |name: &str| set.iter().any(|of_test| of_test == name);
        let others = ["http_proxy", "https_proxy", "all_proxy", "HTTP_PROXY", "HTTPS_PROXY"];
        for name in others.into_iter().chain(["ALL_PROXY", "LC_ALL", "SHORTWIRE_CONFIG"]) {
            if !is_set(name) {
                command.env_remove(name);
            }
        }
        if !is_set("LC_ALL") {
            command.env("LC_ALL", "C.UTF-8");
        }
        if !is_set("HOME") && !is_set("XDG_CONFIG_HOME") {
            command.env("XDG_CONFIG_HOME", self.dir.join("config"));
            command.env("CURL_HOME", &self.dir);
        }
    }

    /// Starts a server and waits until it listens.
    pub fn serve(&self, name: &str, port: u16, command: &mut Command) -> Proc {
        let mut server = self.start(name, command);
        let end = Deadline::within(secs(60));
        while !listening(port) {
            if let Some(status) = server.poll() {
                panic!(
                    "{name} ended with {status} before it listened on {port}: {}",
                    server.stderr()
                );
            }
            assert!(
                !end.is_over(),
                "{name} hangs: it does not listen on {port}\n{}",
                report::everything(&[])
            );
            sleep(millis(5));
        }
        server
    }

    /// Runs a client to its good end and gives what it printed.
    pub fn client(&self, name: &str, side: Side, program: &Path, args: &[&str]) -> String {
        self.start(name, side.command(program).args(args)).success(secs(60))
    }

    /// Looks at the connections of these ports from now on.
    pub fn watch(&self, ports: &[u16]) -> Watch {
        Watch::start(ports)
    }

    fn clean_up(&self) -> Vec<String> {
        let end = Deadline::within(secs(30));
        reap();
        let mut left = leak::left_behind(&self.files, &self.dir);
        while !left.is_empty() && !end.is_over() {
            sleep(millis(20));
            reap();
            left = leak::left_behind(&self.files, &self.dir);
        }
        for pid in descendants().into_iter().filter_map(Pid::from_raw) {
            let _ = kill_process(pid, Signal::KILL);
        }
        if env::var_os("SHORTWIRE_KEEP").is_none() {
            let _ = fs::remove_dir_all(&self.dir);
        }
        left
    }
}

/// Orphans come to us, and one that nobody waits for keeps its PID namespace. No program of a test
/// is waited for elsewhere any more.
fn reap() {
    while let Ok(Some(_)) = rustix::process::wait(rustix::process::WaitOptions::NOHANG) {}
}
