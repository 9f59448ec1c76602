//! A program under measurement: started in a process group of its own, waited for with a limit, and
//! always ended, by the id that we were given when we started it.

use std::ffi::OsString;
use std::fs::{self, File};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{
    Pid, PidfdFlags, Signal, WaitId, WaitIdOptions, kill_process, kill_process_group, pidfd_open,
    waitid,
};
use terminal::signals;

use super::cpu;
use crate::sys;

/// How long a server may take to come up, and to end when asked.
const START_LIMIT: Duration = Duration::from_secs(10);
const STOP_LIMIT: Duration = Duration::from_secs(3);
const STEP: Duration = Duration::from_millis(5);

pub struct Process {
    child: Child,
    /// What it is, for messages: "redis-server over shortwire".
    label: String,
    output: PathBuf,
    errors: PathBuf,
    /// Processor time that it had taken when it was ready.
    at_ready: f64,
}

/// What a program left behind.
pub struct Ended {
    pub output: String,
    /// Seconds of processor time, with those of what it started.
    pub cpu: f64,
}

impl Process {
    /// Its output goes to files: nobody has to keep reading while figures are taken.
    pub fn start(
        label: String,
        command: &[OsString],
        cpu: Option<usize>,
        user: Option<(u32, u32)>,
        base: &Path,
    ) -> Result<Process> {
        let (output, errors) = (base.with_extension("out"), base.with_extension("err"));
        let mut builder = Command::new(&command[0]);
        builder.args(&command[1..]).stdin(Stdio::null()).process_group(0);
        builder.stdout(File::create(&output)?).stderr(File::create(&errors)?);
        if let Some((user, group)) = user {
            builder.uid(user).gid(group);
        }
        sys::at_start(&mut builder, cpu);
        let child = builder.spawn().with_context(|| format!("cannot start {label}"))?;
        Ok(Process { child, label, output, errors, at_ready: 0.0 })
    }

    pub fn group(&self) -> u32 {
        self.child.id()
    }

    /// Waits until `ready` gives something; an error if the program ends first or takes too long.
    pub fn wait_until<T>(&mut self, ready: impl FnMut(&Process) -> Result<Option<T>>) -> Result<T> {
        self.wait_at_most(START_LIMIT, ready)
    }

    pub fn wait_at_most<T>(
        &mut self,
        limit: Duration,
        mut ready: impl FnMut(&Process) -> Result<Option<T>>,
    ) -> Result<T> {
        let deadline = Instant::now() + limit;
        loop {
            if let Some(value) = ready(self)? {
                self.forget_cpu();
                return Ok(value);
            }
            if let Some(status) = self.child.try_wait()? {
                bail!("{} ended at once with {status}: {}", self.label, self.last_words());
            }
            if Instant::now() > deadline {
                bail!(
                    "{} did not come up within {} s: {}",
                    self.label,
                    limit.as_secs(),
                    self.last_words()
                );
            }
            signals::go_on_unless_interrupted("")?;
            std::thread::sleep(STEP);
        }
    }

    /// Seconds of processor time since it was ready, with those of what it started.
    pub fn cpu(&self) -> f64 {
        cpu::of_tree(self.group()) - self.at_ready
    }

    /// What it did so far does not count.
    pub fn forget_cpu(&mut self) {
        self.at_ready = cpu::of_tree(self.group());
    }

    /// The first line that the program printed, once it is whole.
    pub fn first_line(&self) -> Result<Option<String>> {
        let text = fs::read_to_string(&self.output)?;
        Ok(text.split_once('\n').map(|(line, _)| line.to_string()))
    }

    /// Whether a line of its log has `words`.
    pub fn says(&self, words: &str) -> bool {
        fs::read_to_string(&self.errors).is_ok_and(|text| text.contains(words))
    }

    /// Asks it to end as Ctrl-C does, and waits until it has.
    pub fn interrupt(mut self) -> Result<()> {
        kill_process(Pid::from_child(&self.child), Signal::INT)
            .context("cannot interrupt a process")?;
        let deadline = Instant::now() + STOP_LIMIT;
        while self.child.try_wait()?.is_none() {
            ensure!(Instant::now() < deadline, "{} did not end when interrupted", self.label);
            std::thread::sleep(STEP);
        }
        Ok(())
    }

    /// Waits for the end and gives what was printed. `look` is called with the time that has passed
    /// and says when it wants to be called again. Beyond `limit` the program counts as hung and is
    /// ended.
    pub fn finish(
        mut self,
        limit: Duration,
        mut look: impl FnMut(Duration) -> Option<Duration>,
    ) -> Result<Ended> {
        let began = Instant::now();
        let pid = Pid::from_child(&self.child);
        let handle =
            pidfd_open(pid, PidfdFlags::empty()).context("cannot watch a process (pidfd_open)")?;
        // It stays a zombie: its times can still be read.
        let ended = WaitIdOptions::EXITED | WaitIdOptions::NOHANG | WaitIdOptions::NOWAIT;
        while waitid(WaitId::Pid(pid), ended)?.is_none() {
            signals::go_on_unless_interrupted("")?;
            let elapsed = began.elapsed();
            if elapsed > limit {
                bail!(
                    "{} hung: no end after {:.0} s, killed. Its last words: {}",
                    self.label,
                    limit.as_secs_f64(),
                    self.last_words()
                );
            }
            let next = look(elapsed).map_or(limit, |at| at.min(limit));
            // Slices only so that a signal that came just before the call is noticed soon.
            let wait = next
                .saturating_sub(elapsed)
                .clamp(Duration::from_millis(1), Duration::from_millis(500));
            let timeout = Timespec { tv_sec: 0, tv_nsec: wait.as_nanos() as _ };
            let _ = poll(&mut [PollFd::new(&handle, PollFlags::IN)], Some(&timeout));
        }
        let cpu = cpu::of_tree(self.group());
        let status = self.child.wait()?;
        if !status.success() {
            bail!("{} failed with {status}: {}", self.label, self.last_words());
        }
        let output = fs::read_to_string(&self.output);
        let output = output.with_context(|| format!("cannot read what {} printed", self.label))?;
        Ok(Ended { output, cpu })
    }

    fn last_words(&self) -> String {
        let read = |path: &Path| {
            fs::read(path)
                .map(|bytes| String::from_utf8_lossy(&bytes).into_owned())
                .unwrap_or_default()
        };
        let text = [read(&self.errors), read(&self.output)]
            .into_iter()
            .find(|text| !text.trim().is_empty());
        let text = text.unwrap_or_else(|| "nothing".into());
        let lines: Vec<&str> = text.trim().lines().rev().take(3).collect();
        lines.into_iter().rev().collect::<Vec<_>>().join(" / ")
    }
}

impl Drop for Process {
    /// Asks first, so that servers remove what they made; then insists, with the whole group of
    /// what they started.
    fn drop(&mut self) {
        let pid = Pid::from_child(&self.child);
        if matches!(self.child.try_wait(), Ok(None)) {
            let _ = kill_process(pid, Signal::TERM);
            let deadline = Instant::now() + STOP_LIMIT;
            while matches!(self.child.try_wait(), Ok(None)) && Instant::now() < deadline {
                std::thread::sleep(STEP);
            }
        }
        let _ = kill_process_group(pid, Signal::KILL);
        let _ = self.child.wait();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shell(script: &str, directory: &Path) -> Process {
        let command = ["/bin/sh", "-c", script].map(OsString::from);
        Process::start("shell over tcp".into(), &command, None, None, &directory.join("shell"))
            .unwrap()
    }

    #[test]
    fn output_comes_back() {
        let directory = tempfile::tempdir().unwrap();
        assert_eq!(
            shell("echo hello", directory.path()).finish(START_LIMIT, |_| None).unwrap().output,
            "hello\n"
        );
    }

    #[test]
    fn failure_and_hang_are_told_with_the_last_words() {
        let directory = tempfile::tempdir().unwrap();
        let error = |process: Process, limit| {
            process.finish(limit, |_| None).err().expect("an error").to_string()
        };
        let failed = error(shell("echo why >&2; exit 3", directory.path()), START_LIMIT);
        assert!(failed.contains("why") && failed.contains("exit status: 3"), "{failed}");
        let hung = error(shell("exec sleep 60", directory.path()), Duration::from_millis(50));
        assert!(hung.contains("shell over tcp hung"), "{hung}");
    }

    #[test]
    fn dropping_ends_the_whole_group() {
        let directory = tempfile::tempdir().unwrap();
        let mut process = shell("sleep 60 & echo $!; wait", directory.path());
        let inner: i32 =
            process.wait_until(|process| process.first_line()).unwrap().parse().unwrap();
        drop(process);
        let gone = || !Path::new(&format!("/proc/{inner}")).exists() || is_zombie(inner);
        let deadline = Instant::now() + START_LIMIT;
        while !gone() && Instant::now() < deadline {
            std::thread::sleep(STEP);
        }
        assert!(gone(), "the shell's child is still there");
    }

    fn is_zombie(pid: i32) -> bool {
        fs::read_to_string(format!("/proc/{pid}/stat")).is_ok_and(|stat| stat.contains(") Z "))
    }
}
