//! A network at work: signals, reloads, what apps have to say, and the report at its end.

use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;
use std::time::{Duration, Instant};

use ::engine::config::{ConfigFile, Settings};
use ::engine::counters::{self, RunDir};
use ::engine::pool::{self, PoolStats};
use ::engine::registry::Registry;
use ::engine::stop::Signals;
use ::engine::threads::{Health, ThreadsError};
use ::engine::{Options, Pace, Threads, report};
use anyhow::{Context, Result, bail};

use super::{Engine, Report};
use super::{describe, load, metrics};

/// How often signals and messages are looked at.
const ROUND: Duration = Duration::from_millis(50);

const ALL_CRASHED: &str = "all threads have crashed";

pub struct Session<'a> {
    args: &'a Engine,
    path: &'a Path,
    threads: Threads,
    settings: Settings,
    signals: Signals,
    run_dir: Option<Arc<RunDir>>,
    began: Instant,
    before: Load,
    crashed: Vec<usize>,
}

/// What all engines did so far.
#[derive(Clone, Copy, Default)]
struct Load {
    breaths: u64,
    pool: PoolStats,
}

fn could_not_start(apps: &[String]) -> String {
    match apps {
        [one] => format!("app '{one}' could not start"),
        apps => format!("{} apps could not start: {}", apps.len(), apps.join(", ")),
    }
}

/// For the operator; figures go to the standard output.
fn say(text: &str) {
    eprintln!("{text}");
}

impl<'a> Session<'a> {
    pub fn start(args: &'a Engine, path: &'a Path, file: &ConfigFile) -> Result<Self> {
        let signals = Signals::catch().context("cannot catch signals")?;
        let run_dir = publish(args.metrics.is_some())?;
        let mut options = Options { run_dir: run_dir.clone(), ..Options::default() };
        file.settings.apply(&mut options);
        if args.busywait {
            options.pace = Pace::Busy;
        }
        if let (Some(address), Some(dir)) = (args.metrics, &run_dir) {
            let bound = metrics::serve(address, dir.path().to_path_buf())
                .with_context(|| format!("cannot serve metrics on {address}"))?;
            say(&format!("metrics: {bound}metrics"));
        }
        let threads = Threads::new(options, Registry::standard().clone());
        let mut session = Self {
            args,
            path,
            threads,
            settings: file.settings.clone(),
            signals,
            run_dir,
            began: Instant::now(),
            before: Load::default(),
            crashed: Vec::new(),
        };
        session.apply(file)?;
        session.listen();
        let failed = session.failed();
        let running = session.threads.ask_all(|engine| engine.apps().count());
        if running.values().sum::<usize>() == 0 {
            bail!(
                "{}",
                if session.crashed.is_empty() { "no app could start" } else { ALL_CRASHED }
            );
        }
        if args.strict && !failed.is_empty() {
            bail!("{}, and --strict asks for all", could_not_start(&failed));
        }
        let sources = session.threads.ask_all(|engine| engine.sources());
        let (all, run) =
            sources.values().fold((0, 0), |(all, run), part| (all + part.0, run + part.1));
        if all > 0 && run == 0 {
            bail!("{}: nothing brings packets in", could_not_start(&failed));
        }
        session.before = session.load();
        session.began = Instant::now();
        say(&format!(
            "running: {}; process {}, Ctrl-C ends it",
            describe(&file.config),
            std::process::id()
        ));
        Ok(session)
    }

    /// Apps that cannot start are told; the others run.
    fn apply(&mut self, file: &ConfigFile) -> Result<()> {
        match self.threads.configure(&file.config) {
            Ok(()) => Ok(()),
            Err(error @ ThreadsError::Some(_)) => {
                say(&error.to_string());
                Ok(())
            }
            Err(error) => Err(error.into()),
        }
    }

    /// Until a signal, the time, or the end of all sources.
    pub fn run(&mut self) -> Result<()> {
        let end = self.args.duration.map(|seconds| self.began + Duration::from_secs_f64(seconds));
        while !self.signals.stop_requested() {
            let now = Instant::now();
            if end.is_some_and(|end| now >= end) {
                break;
            }
            std::thread::sleep(end.map_or(ROUND, |end| ROUND.min(end - now)));
            if self.signals.take_reload() {
                self.reload();
            }
            self.listen();
            if self.crashed.len() == self.threads.health().len() {
                bail!("{ALL_CRASHED}");
            }
            if self.args.until_finished && self.threads.finished() {
                break;
            }
        }
        Ok(())
    }

    fn reload(&mut self) {
        let file = match load(self.path) {
            Ok(file) => file,
            Err(error) => {
                return say(&format!("reload refused, the network runs on as it was\n{error:#}"));
            }
        };
        if file.settings != self.settings {
            say("[engine] has changed: that part takes effect at the next start");
            self.settings = file.settings.clone();
        }
        self.crashed.clear();
        match self.apply(&file) {
            Ok(()) => say(&format!("reloaded: {}", describe(&file.config))),
            Err(error) => say(&format!("reload failed: {error:#}")),
        }
    }

    /// Passes on what apps and threads have to say.
    fn listen(&mut self) {
        for notice in self.threads.ask_all(::engine::Engine::take_notices).into_values().flatten() {
            say(&notice);
        }
        for (thread, health) in self.threads.health() {
            if let Health::Crashed(why) = health
                && !self.crashed.contains(&thread)
            {
                say(&format!(
                    "thread {thread} crashed, the others run on; SIGHUP starts it again: {why}"
                ));
                self.crashed.push(thread);
            }
        }
    }

    fn load(&mut self) -> Load {
        let mut all = Load::default();
        for (breaths, stats) in
            self.threads.ask_all(|engine| (engine.breaths(), pool::stats())).into_values()
        {
            all.breaths += breaths;
            all.pool.frees += stats.frees;
            all.pool.freebytes += stats.freebytes;
            all.pool.live += stats.live;
        }
        all
    }

    /// The report, then the orderly end.
    pub fn finish(mut self) -> Result<ExitCode> {
        self.listen();
        let wants =
            |part| self.args.report.contains(&part) && !self.args.report.contains(&Report::None);
        let (load, links, apps) = (wants(Report::Load), wants(Report::Links), wants(Report::Apps));
        let passed = self.began.elapsed();
        let mut text = String::new();
        if load {
            let after = self.load();
            let breaths = after.breaths.saturating_sub(self.before.breaths);
            text += &report::load(passed, breaths, self.before.pool, after.pool, self.sleep());
            text.push('\n');
        }
        if links {
            text += &report::links(self.threads.links().into_iter());
            let lost = |engine: &mut ::engine::Engine| {
                engine.lost().map(|(app, lost)| (app.to_string(), lost)).collect::<Vec<_>>()
            };
            text += &report::losses(self.threads.ask_all(lost).into_values().flatten());
        }
        if apps {
            let parts = self.threads.ask_all(|engine| engine.report_apps());
            text += "apps report:\n";
            for line in parts.values().flat_map(|part| part.lines().skip(1)) {
                text += line;
                text.push('\n');
            }
        }
        let failed = self.failed();
        let problems = self.problems();
        let stopped = self.threads.stop();
        // Only now: it fails where nobody reads any more.
        terminal::out!("{text}")?;
        if let Err(error) = stopped {
            bail!("{error}");
        }
        if !failed.is_empty() {
            bail!("{}", could_not_start(&failed));
        }
        // What happened was told when it did; it may be far above.
        if !problems.is_empty() {
            bail!("not all packets passed: {}", problems.join("; "));
        }
        Ok(if self.crashed.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
    }

    /// Apps that do not run.
    fn failed(&mut self) -> Vec<String> {
        let failed =
            |engine: &mut ::engine::Engine| engine.failed().map(str::to_string).collect::<Vec<_>>();
        self.threads.ask_all(failed).into_values().flatten().collect()
    }

    /// Apps that run and whose work is not whole.
    fn problems(&mut self) -> Vec<String> {
        let told = |engine: &mut ::engine::Engine| {
            engine.problems().map(|(app, why)| format!("app '{app}': {why}")).collect::<Vec<_>>()
        };
        self.threads.ask_all(told).into_values().flatten().collect()
    }

    /// The longest present rest of the engines.
    fn sleep(&self) -> Duration {
        let Some(dir) = &self.run_dir else { return Duration::ZERO };
        let own = counters::Process {
            pid: std::process::id(),
            path: dir.path().to_path_buf(),
            alive: true,
        };
        let engines = own.read().map(|tree| tree.engines).unwrap_or_default();
        Duration::from_micros(
            engines.values().map(|engine| engine.counters.get("sleep_us")).max().unwrap_or(0),
        )
    }
}

/// Where counters go. Without a place for them the engine runs all the same, unless they are asked
/// for.
fn publish(needed: bool) -> Result<Option<Arc<RunDir>>> {
    let made = counters::run_root().and_then(|root: PathBuf| RunDir::create(&root));
    match made {
        Ok(dir) => Ok(Some(Arc::new(dir))),
        Err(error) if needed => Err(error).context("metrics need a run directory"),
        Err(error) => {
            say(&format!("`shortwire engine top` will not see this engine: {error}"));
            Ok(None)
        }
    }
}
