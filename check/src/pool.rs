//! Several tests at once. Jobs come in while others run; those in virtual machines wait until nothing
//! is built any more; what must be alone comes last.

use std::collections::{BTreeSet, VecDeque};
use std::fs;
use std::process::Command;
use std::sync::{Condvar, Mutex, MutexGuard};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use crate::cargo::Binary;
use crate::children::{self, Ended};
use crate::isolate::{self, Isolation, Scratch};
use crate::screen::Screen;
use crate::tally::Tally;

/// A test that hangs is not waited for longer.
const LIMIT: Duration = Duration::from_secs(1800);

/// The module of tests that run when nothing else does.
const ALONE: &str = "alone";

/// Programs with tests in virtual machines. Their time limits hold where compilers and others
/// of their kind do not keep those from the processors.
const MACHINES: &[&str] = &["guest", "arm64"];

/// Programs whose tests mostly sleep: some run beside those that keep the processors busy.
const SLEEPERS: &[&str] = &["review", "conformance", "sandbox"];

/// Which jobs a thread takes.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Share {
    All,
    Sleepers,
}

/// A program with tests, or one of its tests.
struct Job {
    binary: usize,
    test: Option<String>,
}

impl Job {
    fn is_alone(&self) -> bool {
        self.test.as_ref().is_some_and(|test| test.split("::").any(|part| part == ALONE))
    }
}

/// What has come of a program so far.
struct Report {
    binary: Binary,
    /// Jobs that have not ended.
    open: usize,
    ended: Vec<(Option<String>, Ended)>,
}

#[derive(Default)]
struct State {
    waiting: VecDeque<Job>,
    sleepers: VecDeque<Job>,
    machines: Vec<Job>,
    machines_running: usize,
    alone: Vec<Job>,
    reports: Vec<Report>,
    running: BTreeSet<String>,
    /// What else is going on.
    building: BTreeSet<String>,
    known: usize,
    done: usize,
    closed: bool,
    /// Nothing is built until what is there has run.
    settling: bool,
    sum: Tally,
}

impl State {
    fn next(&mut self, share: Share) -> Option<Job> {
        let others = if share == Share::All { self.waiting.pop_front() } else { None };
        others.or_else(|| self.sleepers.pop_front())
    }

    /// One machine at a time beside other tests, and one for each processor behind them.
    fn next_machine(&mut self, share: Share) -> Option<Job> {
        let most = if self.waiting.is_empty() { crate::processors() } else { 1 };
        let quiet = self.closed || self.settling;
        let may = share == Share::All && quiet && self.machines_running < most;
        let job = if may { self.machines.pop() } else { None };
        self.machines_running += usize::from(job.is_some());
        job
    }
}

pub struct Pool<'a> {
    state: Mutex<State>,
    changed: Condvar,
    isolation: Isolation,
    screen: &'a Screen,
    /// Names this run: what its tests share is no other's.
    run: String,
}

impl<'a> Pool<'a> {
    pub fn new(isolation: Isolation, screen: &'a Screen) -> Pool<'a> {
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let run = format!("{}-{}", std::process::id(), now.as_nanos());
        Pool { state: Mutex::default(), changed: Condvar::new(), isolation, screen, run }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }

    /// How many tests run at once.
    pub fn width(&self) -> usize {
        let asked = std::env::var("CHECK_JOBS")
            .ok()
            .and_then(|text| text.parse().ok())
            .filter(|&jobs| jobs > 0);
        match self.isolation {
            Isolation::None => 1,
            _ => asked.unwrap_or_else(|| 2 * crate::processors()),
        }
    }

    /// Programs whose tests are to run. System tests are jobs of their own, the tests of another
    /// program are one.
    pub fn add(&self, binaries: Vec<Binary>) {
        self.add_some(binaries, "");
    }

    /// The same; of system tests only those with `name` in "BINARY TEST".
    pub fn add_some(&self, binaries: Vec<Binary>, name: &str) {
        for binary in binaries {
            let tests: Vec<Option<String>> = match binary.is_system_test() {
                true => {
                    let all = binary.tests();
                    if all.is_empty() {
                        let why = format!("{}: it lists no tests", binary.title());
                        self.state().sum.add(Tally::one_failed(&why));
                    }
                    let wanted = all
                        .into_iter()
                        .filter(|test| format!("{} {test}", binary.name).contains(name));
                    wanted.map(Some).collect()
                }
                false => vec![None],
            };
            if tests.is_empty() {
                continue;
            }
            let mut state = self.state();
            let number = state.reports.len();
            let is_one_of =
                |names: &[&str]| binary.is_system_test() && names.contains(&binary.name.as_str());
            let (machines, sleepers) = (is_one_of(MACHINES), is_one_of(SLEEPERS));
            state.known += tests.len();
            state.reports.push(Report { binary, open: tests.len(), ended: Vec::new() });
            for test in tests {
                let job = Job { binary: number, test };
                match () {
                    () if job.is_alone() => state.alone.push(job),
                    () if machines => state.machines.push(job),
                    () if sleepers => state.sleepers.push_back(job),
                    () => state.waiting.push_back(job),
                }
            }
        }
        self.changed.notify_all();
    }

    /// Nothing comes any more.
    pub fn close(&self) {
        self.state().closed = true;
        self.changed.notify_all();
    }

    /// Waits until all that has come has run, but for what must be alone.
    pub fn settle(&self) {
        let mut state = self.state();
        state.settling = true;
        self.changed.notify_all();
        while state.done + state.alone.len() < state.known {
            state = self.changed.wait(state).unwrap_or_else(|poisoned| poisoned.into_inner());
        }
        state.settling = false;
    }

    /// A step that is no test program has begun.
    pub fn begin(&self, name: &str) {
        self.state().building.insert(name.to_string());
        self.tell();
    }

    /// A step that is no test program has ended.
    pub fn step(&self, name: &str, ended: &Ended, tally: Tally) {
        let mut block = format!("== {name}");
        for line in &ended.lines {
            block += &format!("\n{line}");
        }
        block += &format!("\n-- {name}: {} ({})", tally.closing_line(), ended.times());
        self.screen.block(&block);
        let mut state = self.state();
        state.building.remove(name);
        state.sum.add(tally);
    }

    /// Runs jobs until there are none and will be none. Several threads call it.
    pub fn work(&self, share: Share) {
        loop {
            let mut state = self.state();
            let (job, machine) = loop {
                if let Some(job) = state.next_machine(share) {
                    break (job, true);
                }
                if let Some(job) = state.next(share) {
                    break (job, false);
                }
                if state.closed && state.machines.is_empty() {
                    return;
                }
                state = self.changed.wait(state).unwrap_or_else(|poisoned| poisoned.into_inner());
            };
            drop(state);
            self.perform(job);
            if machine {
                self.state().machines_running -= 1;
                self.changed.notify_all();
            }
        }
    }

    /// Runs what must be alone, and gives all results.
    pub fn finish(self) -> Tally {
        loop {
            // Not in a condition, whose guard would be held over the job.
            let job = self.state().alone.pop();
            match job {
                Some(job) => self.perform(job),
                None => break,
            }
        }
        self.screen.clear();
        self.state.into_inner().unwrap_or_else(|poisoned| poisoned.into_inner()).sum
    }

    fn perform(&self, job: Job) {
        let (binary, name) = {
            let mut state = self.state();
            let binary = state.reports[job.binary].binary.clone();
            let name = job
                .test
                .clone()
                .map_or_else(|| binary.title(), |test| format!("{} {test}", binary.name));
            state.running.insert(name.clone());
            (binary, name)
        };
        self.tell();
        let ended = perform(self.isolation, &binary, job.test.as_deref(), Some(&self.run));
        let mut state = self.state();
        state.running.remove(&name);
        state.done += 1;
        let report = &mut state.reports[job.binary];
        report.open -= 1;
        report.ended.push((job.test, ended));
        if report.open == 0 {
            let (block, tally) = report.tell();
            self.screen.block(&block);
            state.sum.add(tally);
        }
        drop(state);
        self.changed.notify_all();
        self.tell();
    }

    fn tell(&self) {
        let state = self.state();
        let mut text = format!("{} of {} jobs", state.done, state.known);
        if state.sum.failed > 0 {
            text += &format!(", {} failed", state.sum.failed);
        }
        for names in [&state.building, &state.running] {
            if !names.is_empty() {
                text += &format!("; {}", names.iter().cloned().collect::<Vec<_>>().join(", "));
            }
        }
        self.screen.progress(&text);
    }
}

/// Runs a program with tests, or one of them, which shares what it can with the others of `run`.
pub fn perform(
    isolation: Isolation,
    binary: &Binary,
    test: Option<&str>,
    run: Option<&str>,
) -> Ended {
    static NUMBER: std::sync::atomic::AtomicU32 = std::sync::atomic::AtomicU32::new(0);
    let number = NUMBER.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
    let own = children::scratch().join(number.to_string());
    let _scratch = Scratch::new(&own);
    let (program, arguments) = binary.command_line(test);
    let mut command: Command = isolation.command(&program, &arguments);
    binary.environment(&mut command);
    command.envs(run.map(|run| ("CHECK_RUN", run)));
    let home = std::env::var_os("HOME").unwrap_or_default();
    let needed = [crate::root(), &binary.path, std::path::Path::new(&home)];
    command.env("TMPDIR", isolate::temporary(isolation, &own, &needed)).env("OWN", &own);
    children::run(&mut command, Some(LIMIT))
}

impl Report {
    /// All that it printed, and what that says.
    fn tell(&mut self) -> (String, Tally) {
        let title = self.binary.title();
        self.ended.sort_by(|(one, _), (other, _)| one.cmp(other));
        let mut block = format!("== {title}");
        let mut sum = Tally::default();
        let (mut took, mut computed) = (0.0, 0.0);
        for (test, ended) in &self.ended {
            took += ended.took.as_secs_f64();
            computed += ended.computed.as_secs_f64();
            let mut tally = Tally::of(ended.lines.iter().map(String::as_str));
            let name =
                test.as_ref().map_or_else(|| title.clone(), |test| format!("{title} {test}"));
            if tally.failed == 0 && !ended.success {
                tally.add(Tally::one_failed(&format!("{name} (ended early)")));
            }
            if test.is_some() && tally.is_empty() {
                tally.add(Tally::one_failed(&format!("{name} (did not run)")));
            }
            block += &shown(test.as_deref(), ended, &tally);
            sum.add(tally);
        }
        block += &format!(
            "\n-- {title}: {} ({took:.1} s, {computed:.1} s of a processor)",
            sum.closing_line()
        );
        (block, sum)
    }
}

/// One test that passed is one line, with what it says of skipped parts.
fn shown(test: Option<&str>, ended: &Ended, tally: &Tally) -> String {
    let whole = || ended.lines.iter().map(|line| format!("\n{line}")).collect::<String>();
    match test {
        Some(test) if ended.success && tally.failed == 0 => {
            let skips = tally.remarks.iter().map(|line| format!("\n{line}"));
            let line =
                ended.lines.iter().find(|line| line.starts_with("test ") && line.contains(" ... "));
            let end = line.and_then(|line| line.split_once(" ... ")).map_or("ok", |(_, end)| end);
            let end = match end {
                end if end.starts_with("ignored") => end,
                _ if tally.passed == 0 => "skipped",
                _ => "ok",
            };
            format!("{}\ntest {test} ... {end} ({})", skips.collect::<String>(), ended.times())
        }
        _ => whole(),
    }
}

/// Files that the last run has left, if it was killed.
pub fn sweep() {
    let all = fs::read_dir(std::env::temp_dir()).into_iter().flatten().flatten();
    for entry in all {
        let name = entry.file_name().to_string_lossy().into_owned();
        let owner = name.strip_prefix("swc-").and_then(|pid| pid.parse::<u32>().ok());
        if owner.is_some_and(|pid| !std::path::Path::new(&format!("/proc/{pid}")).exists()) {
            let _ = fs::remove_dir_all(entry.path());
        }
    }
}
