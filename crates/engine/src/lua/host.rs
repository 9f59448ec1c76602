//! What scripts can ask of the engine: the module `shortwire.host`, which the modules in Lua build
//! on.
//!
//! These functions raise no errors; they return sentences, so that a script meets errors as strings
//! with its own position.

use std::cell::{Cell, RefCell};
use std::collections::HashMap;
use std::rc::{Rc, Weak};
use std::time::{Duration, Instant};

use mlua::{Function, LightUserData, Lua, Table};

use crate::args::nearest;
use crate::clock::monotonic;
use crate::config::Config;
use crate::counters::RunDir;
use crate::engine::{ConfigureError, Ended, Engine, Pace, Until};
use crate::link::Link;
use crate::lua::calls::Calls;
use crate::lua::sampler::{self, Sampler};
use crate::lua::{Program, Settings};
use crate::lua::{c_parts, chain, direct, instance, interrupt, shared, tables};
use crate::pool::{self, PoolStats};
use crate::report;

/// What an interrupted run raises, for [`super::Session`] to know it.
const INTERRUPTED: &str = "interrupted";
/// When no timer is active.
const NEVER: u64 = u64::MAX;

/// What the engine must know of a class: its name, whether it pulls, and its counters.
type ClassKey = (String, bool, Vec<String>);

/// The engine of a script.
pub struct Host {
    engine: RefCell<Engine>,
    stop: Option<fn() -> bool>,
    program: Option<Program>,
    /// When the next timer is due; scripts write it. At a fixed address.
    due: Box<Cell<u64>>,
    interrupted: Cell<bool>,
    calls: RefCell<Option<Rc<Calls>>>,
    kinds: RefCell<HashMap<ClassKey, &'static str>>,
    last_report: Cell<(Instant, u64, PoolStats)>,
    sampler: RefCell<Option<Sampler>>,
}

thread_local! {
    /// Constructors of apps are plain functions; this is how they find their script.
    static CURRENT: RefCell<Weak<Host>> = const { RefCell::new(Weak::new()) };
}

impl Host {
    pub fn new(lua: &Lua, settings: Settings) -> mlua::Result<Rc<Self>> {
        let host = Rc::new(Self {
            engine: RefCell::new(Engine::new(settings.engine)),
            stop: settings.stop,
            program: settings.program,
            due: Box::new(Cell::new(NEVER)),
            interrupted: Cell::new(false),
            calls: RefCell::new(None),
            kinds: RefCell::default(),
            last_report: Cell::new((Instant::now(), 0, pool::stats())),
            sampler: RefCell::new(None),
        });
        CURRENT.with_borrow_mut(|current| *current = Rc::downgrade(&host));
        let module = host.module(lua)?;
        let loaded: Table = lua.globals().get::<Table>("package")?.get("loaded")?;
        loaded.set("shortwire.host", module)?;
        Ok(host)
    }

    pub fn current() -> Option<Rc<Self>> {
        CURRENT.with_borrow(Weak::upgrade)
    }

    /// The functions that know the script's instances, once their module is loaded.
    pub fn bind(&self, calls: Calls) {
        self.calls.replace(Some(Rc::new(calls)));
    }

    pub fn calls(&self) -> Option<Rc<Calls>> {
        self.calls.borrow().clone()
    }

    /// Whether a run, or a program, was interrupted since the last call.
    pub fn take_interrupted(&self) -> bool {
        self.interrupted.replace(false)
    }

    pub fn failures(&self) -> u64 {
        self.calls().map_or(0, |calls| calls.failures())
    }

    /// From now on the time that traces take is measured.
    pub fn sample(&self, sampler: Option<Sampler>) {
        self.sampler.replace(sampler);
    }

    fn samples(&self) -> HashMap<i32, u64> {
        self.sampler.borrow().as_ref().map(Sampler::take).unwrap_or_default()
    }

    /// # Panics
    /// While the engine runs.
    pub fn with_engine<R>(&self, look: impl FnOnce(&Engine) -> R) -> R {
        look(&self.engine.borrow())
    }

    pub fn stop(&self) {
        if let Ok(mut engine) = self.engine.try_borrow_mut() {
            // Nobody is left to be told.
            let _ = engine.stop();
        }
    }

    fn module(self: &Rc<Self>, lua: &Lua) -> mlua::Result<Table> {
        let module = lua.create_table()?;
        for (name, address) in direct::addresses() {
            module.set(name, LightUserData(address))?;
        }
        module.set("session", LightUserData(self.due.as_ptr().cast()))?;
        module.set("interrupted", INTERRUPTED)?;
        module.set("monotonic", lua.create_function(|_, ()| Ok(monotonic() as f64))?)?;
        self.network_functions(lua, &module)?;
        self.run_functions(lua, &module)?;
        self.report_functions(lua, &module)?;
        let host = Rc::downgrade(self);
        let samples = move |_: &Lua, ()| Ok(with(&host, Self::samples).unwrap_or_default());
        module.set("samples", lua.create_function(samples)?)?;
        module.set("recorded", sampler::recorded(lua)?)?;
        module.set("open_to_traces", chain::open_to_traces(lua)?)?;
        let near = |_: &Lua, (word, known): (String, Vec<String>)| {
            Ok(nearest(&word, known.iter().map(String::as_str)).map(str::to_string))
        };
        module.set("nearest", lua.create_function(near)?)?;
        let host = Rc::downgrade(self);
        let program = move |_: &Lua, words: Vec<String>| {
            Ok(with(&host, |host| host.run_program(&words)).flatten())
        };
        module.set("run_program", lua.create_function(program)?)?;
        c_parts::install(lua, &module)?;
        let folder = self.engine.borrow_mut().options_mut().run_dir.clone();
        shared::functions(lua, &module, folder.as_deref().map(RunDir::path))?;
        Ok(module)
    }

    fn network_functions(self: &Rc<Self>, lua: &Lua, module: &Table) -> mlua::Result<()> {
        let host = Rc::downgrade(self);
        let configure =
            move |_: &Lua, (apps, links, before): (Vec<Table>, Vec<String>, Function)| {
                with(&host, |host| host.configure(&apps, &links, &before))
                    .unwrap_or_else(|| Ok((false, None)))
            };
        module.set("configure", lua.create_function(configure)?)?;
        let host = Rc::downgrade(self);
        let link = move |_: &Lua, name: String| Ok(with(&host, |host| host.link(&name)).flatten());
        module.set("link", lua.create_function(link)?)?;
        let new_link = |_: &Lua, ()| Ok(LightUserData(direct::hold(&Rc::new(Link::new()))));
        module.set("new_link", lua.create_function(new_link)?)?;
        let host = Rc::downgrade(self);
        let has_kind = move |_: &Lua, name: String| {
            Ok(with(&host, |host| {
                Some(host.engine.try_borrow().ok()?.registry().get(&name).is_some())
            })
            .flatten())
        };
        module.set("has_kind", lua.create_function(has_kind)?)?;
        let host = Rc::downgrade(self);
        let nearest_kind = move |_: &Lua, name: String| {
            let near = |host: &Host| {
                let engine = host.engine.try_borrow().ok()?;
                nearest(&name, engine.registry().kinds().map(|kind| kind.name)).map(str::to_string)
            };
            Ok(with(&host, near).flatten())
        };
        module.set("nearest_kind", lua.create_function(nearest_kind)?)
    }

    fn run_functions(self: &Rc<Self>, lua: &Lua, module: &Table) -> mlua::Result<()> {
        let host = Rc::downgrade(self);
        let settle =
            move |_: &Lua, (tick, latency, pace, rate): (f64, bool, String, Option<f64>)| {
                with(&host, |host| host.settle(tick, latency, &pace, rate.unwrap_or(0.0)));
                Ok(())
            };
        module.set("settle", lua.create_function(settle)?)?;
        let host = Rc::downgrade(self);
        let run = move |_: &Lua, (seconds, ask, timers): (f64, bool, bool)| {
            Ok(with(&host, |host| host.run(seconds, ask, timers)).flatten())
        };
        module.set("run", lua.create_function(run)?)?;
        let host = Rc::downgrade(self);
        let breaths = move |_: &Lua, ()| Ok(with(&host, |host| host.breaths()));
        module.set("breaths", lua.create_function(breaths)?)
    }

    fn report_functions(self: &Rc<Self>, lua: &Lua, module: &Table) -> mlua::Result<()> {
        let host = Rc::downgrade(self);
        module.set(
            "report_load",
            lua.create_function(move |_, ()| Ok(with(&host, Self::report_load)))?,
        )?;
        let host = Rc::downgrade(self);
        let links = move |_: &Lua, ()| {
            Ok(with(&host, |host| {
                host.engine.try_borrow().map(|engine| engine.report_links()).unwrap_or_default()
            }))
        };
        module.set("report_links", lua.create_function(links)?)?;
        let host = Rc::downgrade(self);
        let app = move |_: &Lua, name: String| Ok(with(&host, |host| host.report_app(&name)));
        module.set("report_app", lua.create_function(app)?)?;
        let host = Rc::downgrade(self);
        let finished = move |_: &Lua, name: String| {
            let ask = |host: &Host| {
                let engine = host.engine.try_borrow().ok()?;
                let app = engine.apps().find(|(other, _)| *other == name);
                Some(app.is_some_and(|(_, app)| app.finished()))
            };
            Ok(with(&host, ask).flatten())
        };
        module.set("app_finished", lua.create_function(finished)?)?;
        let host = Rc::downgrade(self);
        let failed = move |_: &Lua, (name, problem): (String, String)| {
            eprintln!("shortwire: app '{name}': {problem}");
            Ok(with(&host, |host| host.calls().inspect(|calls| calls.count_failure()).is_some()))
        };
        module.set("app_failed", lua.create_function(failed)?)
    }

    /// What went wrong, if anything did.
    fn run_program(&self, words: &[String]) -> Option<String> {
        let ended = self.program.map(|run| run(words));
        if self.stop.is_some_and(|stop| stop()) {
            self.interrupted.set(true);
            return Some(INTERRUPTED.to_string());
        }
        match ended {
            Some(Ok(status)) if status.success() => None,
            Some(Ok(status)) => Some(format!("ended with {status}")),
            Some(Err(error)) => Some(format!("cannot be started: {error}")),
            None => Some("cannot be started from here".to_string()),
        }
    }

    /// True and perhaps a sentence about apps that do not run; or false and why nothing was
    /// changed. `before` is called when nothing can be refused any more.
    fn configure(
        &self,
        apps: &[Table],
        links: &[String],
        before: &Function,
    ) -> mlua::Result<(bool, Option<String>)> {
        let Ok(mut engine) = self.engine.try_borrow_mut() else {
            let busy = "the engine is in the middle of a breath: configure it from a timer, not from an app";
            return Ok((false, Some(busy.to_string())));
        };
        let config = match self.describe(&mut engine, apps, links) {
            Ok(config) => config,
            Err(problem) => return Ok((false, Some(problem))),
        };
        if let Err(problems) = config.check(engine.registry()) {
            return Ok((false, Some(problems.to_string())));
        }
        before.call::<()>(())?;
        match engine.configure(&config) {
            Ok(()) => Ok((true, None)),
            Err(ConfigureError::Refused(problems)) => Ok((false, Some(problems.to_string()))),
            Err(failures) => Ok((true, Some(failures.to_string()))),
        }
    }

    fn describe(
        &self,
        engine: &mut Engine,
        apps: &[Table],
        links: &[String],
    ) -> Result<Config, String> {
        let mut config = Config::new();
        for app in apps {
            let name: String = get(app, "name")?;
            let (kind, args) = match get::<Option<i64>>(app, instance::NUMBER)? {
                Some(number) => {
                    let kind = self.kind(engine, app)?;
                    (
                        kind,
                        toml::Table::from_iter([(
                            instance::NUMBER.to_string(),
                            toml::Value::Integer(number),
                        )]),
                    )
                }
                None => {
                    let kind: String = get(app, "kind")?;
                    let args = tables::to_toml(&get(app, "arguments")?);
                    (
                        kind.clone(),
                        args.map_err(|problem| format!("app '{name}' ({kind}): {problem}"))?,
                    )
                }
            };
            config.app(&name, &kind, args).map_err(|error| error.to_string())?;
        }
        for link in links {
            config.link(link).map_err(|error| error.to_string())?;
        }
        Ok(config)
    }

    /// Makes a class of the script known to the engine. Names live as long as the process; there
    /// are as many as classes.
    fn kind(&self, engine: &mut Engine, app: &Table) -> Result<String, String> {
        let (class, pulls, counters): (String, bool, Vec<String>) =
            (get(app, "class")?, get(app, "pulls")?, get(app, "counters")?);
        let mut kinds = self.kinds.borrow_mut();
        let key = (class.clone(), pulls, counters);
        if let Some(name) = kinds.get(&key) {
            return Ok(name.to_string());
        }
        let taken = |name: &str| engine.registry().get(name).is_some();
        let name = std::iter::once(class.clone())
            .chain((2..).map(|i| format!("{class}#{i}")))
            .find(|name| !taken(name));
        let name: &'static str = name.unwrap_or(class).leak();
        let counters: Vec<&'static str> = key.2.iter().map(|name| &*name.clone().leak()).collect();
        engine.registry_mut().add(instance::kind(name, pulls, counters.leak()));
        kinds.insert(key, name);
        Ok(name.to_string())
    }

    /// A pointer to the link that keeps it, for `release_link`.
    fn link(&self, name: &str) -> Option<LightUserData> {
        Some(LightUserData(direct::hold(self.engine.try_borrow().ok()?.link(name)?)))
    }

    fn settle(&self, tick: f64, latency: bool, pace: &str, rate: f64) {
        let Ok(mut engine) = self.engine.try_borrow_mut() else { return };
        let options = engine.options_mut();
        options.pace = match pace {
            "busy" => Pace::Busy,
            "hertz" => Pace::Hertz(rate),
            _ => Pace::Adaptive { longest: Duration::from_micros(rate.clamp(0.0, 1e6) as u64) },
        };
        options.tick = tick.clamp(1.0, 1e6) as u32;
        options.latency = latency;
        let breaths = engine.breaths();
        self.last_report.set((Instant::now(), breaths, pool::stats()));
    }

    /// Breathes for so long, or until a timer is due, or `ask` and there is reason to ask the
    /// script. True if interrupted; None if the engine runs already.
    fn run(&self, seconds: f64, ask: bool, timers: bool) -> Option<bool> {
        let mut engine = self.engine.try_borrow_mut().ok()?;
        let (stop, due) = (self.stop, &self.due);
        let wanted = || stop.is_some_and(|stop| stop());
        let done = move |_: &Engine| {
            ask || wanted() || timers && due.get() != NEVER && monotonic() >= due.get()
        };
        let until = Until {
            duration: Some(Duration::from_secs_f64(seconds.clamp(0.0, 1e6))),
            done: Some(Box::new(done)),
            finished: false,
        };
        let ended = engine.run(until);
        for notice in engine.take_notices() {
            eprintln!("shortwire: {notice}");
        }
        let interrupted = ended == Ended::Stopped || wanted();
        self.interrupted.set(interrupted);
        if interrupted {
            // The run has ended as it should, and what the script does at its end is not disturbed.
            interrupt::grant();
        }
        Some(interrupted)
    }

    fn breaths(&self) -> u64 {
        self.engine.try_borrow().map_or(0, |engine| engine.breaths())
    }

    fn report_load(&self) -> String {
        let (since, breaths, before) = self.last_report.get();
        let (after, now) = (pool::stats(), self.breaths());
        self.last_report.set((Instant::now(), now, after));
        let rest = self.engine.try_borrow().map_or(Duration::ZERO, |engine| engine.resting());
        report::load(since.elapsed(), now - breaths, before, after, rest)
    }

    fn report_app(&self, name: &str) -> String {
        let mut text = String::new();
        if let Ok(engine) = self.engine.try_borrow()
            && let Some((_, app)) = engine.apps().find(|(other, _)| *other == name)
        {
            // A String takes everything.
            let _ = app.report(&mut text);
        }
        text
    }
}

fn with<R>(host: &Weak<Host>, body: impl FnOnce(&Host) -> R) -> Option<R> {
    host.upgrade().map(|host| body(&host))
}

fn get<T: mlua::FromLua>(table: &Table, key: &str) -> Result<T, String> {
    table.get(key).map_err(|error| format!("{key}: {error}"))
}
