//! An app written in Lua, as the engine sees it.

use std::ffi::c_int;
use std::rc::Rc;

use crate::app::{App, AppError, Io, Ports, Reconfigured};
use crate::lua::calls::{Calls, Started};
use crate::lua::host::Host;
use crate::registry::{Instance, KindInfo};
use crate::together::{Caller, Together};

/// The only argument that the engine sees: under which number the script knows the app.
pub const NUMBER: &str = "number";

/// The kind under which a class of a script is known to the engine.
pub fn kind(name: &'static str, pulls: bool, counters: &'static [&'static str]) -> KindInfo {
    KindInfo {
        name,
        about: "an app of the script",
        inputs: Ports::Any,
        outputs: Ports::Any,
        pulls,
        counters,
        check: |_| Vec::new(),
        file: |_| None,
        make: |args, _| Ok(Box::new(LuaApp::start(number_in(args))?)),
    }
}

fn number_in(args: &toml::Table) -> i64 {
    args.get(NUMBER).and_then(toml::Value::as_integer).unwrap_or_default()
}

struct LuaApp {
    calls: Rc<Calls>,
    number: i64,
    methods: Started,
    failure: Option<String>,
    told: bool,
    /// The counters as they were when the app failed.
    last: Vec<u64>,
}

impl LuaApp {
    fn start(number: i64) -> Result<Self, AppError> {
        let calls = Host::current().and_then(|host| host.calls());
        let calls =
            calls.ok_or_else(|| AppError::new("the script that made this app has ended"))?;
        let methods = calls.start(number).map_err(AppError::Failed)?;
        Ok(Self { calls, number, methods, failure: None, told: false, last: Vec::new() })
    }

    /// Calls a function of the script. The interpreter is entered once; the loops in there are
    /// compiled.
    #[inline]
    fn call(&mut self, function: Option<c_int>) {
        if self.failure.is_none()
            && let Some(function) = function
            && let Err(problem) = self.calls.call(function)
        {
            self.fail(problem);
        }
    }

    /// From now on the app is not called, and what is sent to it is discarded.
    #[cold]
    fn fail(&mut self, problem: String) {
        self.failure = Some(problem);
        self.calls.count_failure();
        self.last = self.methods.counters();
        // It may hold an interface or a file. There is a failure already; another one adds nothing.
        let _ = self.calls.stop(self.number);
        self.calls.forget(&mut self.methods);
    }

    #[cold]
    fn discard(&self, io: &Io) {
        for input in io.inputs() {
            input.discard();
        }
    }
}

impl App for LuaApp {
    fn pull(&mut self, _io: &Io) {
        self.call(self.methods.pull);
    }

    fn push(&mut self, io: &Io) {
        if self.failure.is_some() || self.methods.push.is_none() && self.methods.pull.is_none() {
            return self.discard(io);
        }
        self.call(self.methods.push);
    }

    fn tick(&mut self, _io: &Io) {
        self.call(self.methods.tick);
    }

    fn counters(&self, values: &mut [u64]) {
        match self.failure {
            None => self.methods.read_counters(values),
            Some(_) => values.iter_mut().zip(&self.last).for_each(|(value, last)| *value = *last),
        }
    }

    fn notice(&mut self) -> Option<String> {
        if std::mem::replace(&mut self.told, self.failure.is_some()) {
            return None;
        }
        self.failure.as_ref().map(|problem| {
            format!("{problem}\n  The app is stopped, and what is sent to it is discarded.")
        })
    }

    fn report(&self, out: &mut dyn std::fmt::Write) -> std::fmt::Result {
        match &self.failure {
            Some(problem) => write!(out, "stopped by an error: {problem}"),
            None => Ok(()),
        }
    }

    fn stop(&mut self) -> Result<(), AppError> {
        if self.failure.is_some() {
            return Ok(());
        }
        self.calls.stop(self.number).map_err(AppError::Failed)
    }
}

impl Instance for LuaApp {
    fn reconfigure_from(&mut self, args: &toml::Table) -> Result<Reconfigured, AppError> {
        let new = number_in(args);
        if self.failure.is_some()
            || !self.calls.reconfigure(self.number, new).map_err(AppError::Failed)?
        {
            return Ok(Reconfigured::NeedsRestart);
        }
        self.number = new;
        Ok(Reconfigured::Done)
    }

    fn together(&self, pulls: bool) -> Option<Together> {
        if self.failure.is_some() {
            return None;
        }
        let turn = if pulls { self.methods.pull } else { self.methods.push }?;
        let caller: Rc<dyn Caller> = self.calls.clone();
        Some(Together { caller, turn: turn.into() })
    }

    fn turn_failed(&mut self, problem: String) {
        if self.failure.is_none() {
            self.fail(problem);
        }
    }
}

impl Drop for LuaApp {
    fn drop(&mut self) {
        self.calls.forget(&mut self.methods);
    }
}
