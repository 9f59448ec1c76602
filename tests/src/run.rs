//! A program under a watchdog.
#![allow(unsafe_code)]

use std::ffi::OsStr;
use std::fs::{self, File};
use std::io::Write;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::thread::sleep;
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process, kill_process_group};

use crate::deadline::Deadline;
use crate::{leak, millis, plain, report, secs, shortwire};

/// On which side of the experiment a program stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Side {
    /// Under `shortwire run`.
    Run,
    /// Without the library.
    Plain,
}

impl Side {
    pub fn command(self, program: impl AsRef<OsStr>) -> Command {
        let mut command = match self {
            Side::Run if !plain() => {
                let mut command = Command::new(shortwire());
                command.args(["run", "--"]).arg(program);
                command
            }
            _ => Command::new(program),
        };
        command.env_remove("LD_PRELOAD");
        command
    }
}

pub struct Proc {
    name: String,
    child: Child,
    out: PathBuf,
    err: PathBuf,
    ended: Option<ExitStatus>,
}

impl Proc {
    /// Output goes to files: nothing to drain, and it can be read while the program runs. A test
    /// that is killed takes its programs with it.
    pub(crate) fn start(name: &str, dir: &Path, command: &mut Command) -> Proc {
        let (out, err) = (dir.join(format!("{name}.out")), dir.join(format!("{name}.err")));
        let create = |path| File::create(path).expect("an output file");
        command.stdin(Stdio::piped()).stdout(create(&out)).stderr(create(&err)).process_group(0);
        let with_us = || Ok(rustix::process::set_parent_process_death_signal(Some(Signal::KILL))?);
        // SAFETY: one system call, no memory is touched between fork and exec.
        unsafe { command.pre_exec(with_us) };
        let child = command.spawn().unwrap_or_else(|e| panic!("cannot start {command:?}: {e}"));
        Proc { name: name.to_string(), child, out, err, ended: None }
    }

    pub fn pid(&self) -> i32 {
        self.child.id() as i32
    }

    pub fn stdout(&self) -> String {
        String::from_utf8_lossy(&fs::read(&self.out).unwrap_or_default()).into_owned()
    }

    pub fn stderr(&self) -> String {
        String::from_utf8_lossy(&fs::read(&self.err).unwrap_or_default()).into_owned()
    }

    pub fn stdout_path(&self) -> &Path {
        &self.out
    }

    pub fn poll(&mut self) -> Option<ExitStatus> {
        if self.ended.is_none() {
            self.ended = self.child.try_wait().expect("waiting for a child");
        }
        self.ended
    }

    pub fn running(&mut self) -> bool {
        self.poll().is_none()
    }

    /// Its end, which must come in time.
    pub fn wait(&mut self, limit: Duration) -> ExitStatus {
        drop(self.child.stdin.take());
        self.wait_open(limit)
    }

    /// The same with standard input left open.
    pub fn wait_open(&mut self, limit: Duration) -> ExitStatus {
        let end = Deadline::within(limit);
        let mut pause = millis(1);
        loop {
            if let Some(status) = self.poll() {
                return status;
            }
            if end.is_over() {
                panic!(
                    "{} hangs: it did not end within {limit:?}\n{}\n{}",
                    self.name,
                    self.said(),
                    report::everything(&[])
                );
            }
            sleep(pause);
            pause = (pause * 2).min(millis(20));
        }
    }

    /// Waits for a good end and gives what it printed.
    pub fn success(&mut self, limit: Duration) -> String {
        let status = self.wait(limit);
        assert!(status.success(), "{} failed: {status}\n{}", self.name, self.said());
        self.stdout()
    }

    fn said(&self) -> String {
        format!(
            "-- its output\n{}\n-- its errors\n{}",
            report::tail(&self.out, 20),
            report::tail(&self.err, 20)
        )
    }

    /// Waits until it has printed a line that starts so, on either stream.
    pub fn wait_line(&mut self, start: &str, limit: Duration) -> String {
        self.wait_lines(start, 1, limit).pop().unwrap_or_default()
    }

    pub fn wait_lines(&mut self, start: &str, count: usize, limit: Duration) -> Vec<String> {
        let end = Deadline::within(limit);
        loop {
            let ended = self.poll();
            let said = [self.stdout(), self.stderr()];
            // A line without its end may be half of what the program is about to say.
            let whole = said
                .iter()
                .flat_map(|text| text.split_inclusive('\n'))
                .filter(|line| line.ends_with('\n'));
            let found: Vec<String> = whole
                .map(str::trim_end)
                .filter(|line| line.starts_with(start))
                .map(String::from)
                .collect();
            if found.len() >= count {
                return found;
            }
            if let Some(status) = ended {
                panic!(
                    "{} ended with {status} before it said `{start}`\n{}",
                    self.name,
                    self.said()
                );
            }
            if end.is_over() {
                panic!(
                    "{} hangs: no `{start}` within {limit:?}\n{}\n{}",
                    self.name,
                    self.said(),
                    report::everything(&[])
                );
            }
            sleep(millis(2));
        }
    }

    pub fn say(&mut self, text: &str) {
        let stdin = self.child.stdin.as_mut().expect("standard input is open");
        // A program that has ended is noticed by whoever waits for it.
        let _ = stdin.write_all(text.as_bytes()).and_then(|()| stdin.flush());
    }

    pub fn signal(&self, signal: Signal) {
        if self.ended.is_none() {
            let _ = kill_process(pid(self.pid()), signal);
        }
    }

    /// Asks it to end; a server that does not within the limit hangs.
    pub fn stop(&mut self) -> ExitStatus {
        self.signal(Signal::TERM);
        self.wait(secs(60))
    }

    /// utime and stime in clock ticks.
    pub fn cpu_ticks(&self) -> u64 {
        let stat = fs::read_to_string(format!("/proc/{}/stat", self.pid())).unwrap_or_default();
        let rest = stat.rsplit_once(')').map_or("", |(_, rest)| rest);
        rest.split_whitespace().skip(11).take(2).filter_map(|n| n.parse::<u64>().ok()).sum()
    }
}

fn pid(raw: i32) -> Pid {
    Pid::from_raw(raw).expect("a process id")
}

impl Drop for Proc {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("---- {} ({:?})\n{}", self.name, self.ended, self.said());
        }
        if self.poll().is_none() {
            let _ = kill_process_group(pid(self.pid()), Signal::KILL);
            let _ = self.child.wait();
            // What our child started (nsenter starts the program that it is given) holds its port
            // for a moment longer: the next server's would seem to be open.
            let end = Deadline::within(secs(5));
            while leak::group_holds_files(self.pid()) && !end.is_over() {
                sleep(millis(2));
            }
        }
    }
}
