//! Entering the interpreter from the engine.
//!
//! Once per breath and app, so it is done by hand: on a stack of its own, which is at its base
//! whenever the engine runs, whatever the script was doing when it called the engine.
#![allow(unsafe_code)]

use std::cell::{Cell, RefCell};
use std::ffi::{CStr, c_int};
use std::rc::Rc;

use mlua::{Function, Lua, Table, Value, ffi};

use crate::lua::chain::Chains;
use crate::lua::interrupt;
use crate::lua::memory::{self, Memory};

/// What an instance has for the engine to call: references in Lua's registry.
pub struct Started {
    pub push: Option<c_int>,
    pub pull: Option<c_int>,
    pub tick: Option<c_int>,
    counters: *const u64,
    count: usize,
}

impl Started {
    /// All of them.
    pub fn counters(&self) -> Vec<u64> {
        let mut values = vec![0; self.count];
        self.read_counters(&mut values);
        values
    }

    /// The instance's own counters, which the script keeps.
    pub fn read_counters(&self, values: &mut [u64]) {
        for (i, value) in values.iter_mut().enumerate().take(self.count) {
            // SAFETY: the script's array has `count` numbers and lives as long as the instance: its
            // module keeps it.
            *value = unsafe { self.counters.add(i).read() };
        }
    }
}

/// The functions of `modules/shortwire/instances.lua`, and the stack for calls.
pub struct Calls {
    start: Function,
    stop: Function,
    reconfigure: Function,
    /// Makes one function of several.
    pub chain: Function,
    /// Those that it has made.
    pub chains: RefCell<Chains>,
    pub lua: Lua,
    stack: *mut ffi::lua_State,
    failures: Cell<u64>,
    /// Turns what was raised into a sentence.
    handler: c_int,
    memory: Rc<Memory>,
    /// An app found no memory: what it had goes when it is stopped.
    starved: Cell<bool>,
}

impl Calls {
    pub fn new(
        lua: &Lua,
        instances: &Table,
        handler: &Function,
        memory: &Rc<Memory>,
    ) -> mlua::Result<Self> {
        let mut stack = std::ptr::null_mut();
        // SAFETY: makes a thread, which the registry keeps from now on, and leaves the stack as it
        // was.
        unsafe {
            lua.exec_raw::<()>((), |state| {
                stack = ffi::lua_newthread(state);
                ffi::luaL_ref(state, ffi::LUA_REGISTRYINDEX);
            })?;
        }
        Ok(Self {
            start: instances.get("start")?,
            stop: instances.get("stop")?,
            reconfigure: instances.get("reconfigure")?,
            chain: instances.get("chain")?,
            chains: RefCell::default(),
            lua: lua.clone(),
            stack,
            failures: Cell::new(0),
            handler: keep(lua, handler)?,
            memory: Rc::clone(memory),
            starved: Cell::new(false),
        })
    }

    /// Makes an instance.
    pub fn start(&self, number: i64) -> Result<Started, String> {
        type Made = (bool, Value, Option<Function>, Option<Function>, Option<usize>, Option<usize>);
        let made: Made = self.start.call(number).map_err(|error| error.to_string())?;
        let (true, push, pull, tick, counters, count) = made else {
            return Err(match made.1 {
                Value::String(problem) => problem.to_string_lossy(),
                _ => "an error without a message".to_string(),
            });
        };
        let push = match push {
            Value::Function(push) => Some(push),
            _ => None,
        };
        let keep = |function: Option<Function>| {
            function
                .map(|function| keep(&self.lua, &function))
                .transpose()
                .map_err(|error| error.to_string())
        };
        Ok(Started {
            push: keep(push)?,
            pull: keep(pull)?,
            tick: keep(tick)?,
            counters: counters.unwrap_or(0) as *const u64,
            count: count.unwrap_or(0),
        })
    }

    pub fn stop(&self, number: i64) -> Result<(), String> {
        match self.stop.call::<(bool, Option<String>)>((number, self.starved.get())) {
            Ok((true, _)) => Ok(()),
            Ok((false, problem)) => Err(problem.unwrap_or_default()),
            Err(error) => Err(error.to_string()),
        }
    }

    /// False if the app must be stopped and made anew.
    pub fn reconfigure(&self, old: i64, new: i64) -> Result<bool, String> {
        match self.reconfigure.call::<(bool, Value)>((old, new)) {
            Ok((true, done)) => Ok(done.as_boolean().unwrap_or(false)),
            Ok((false, problem)) => Err(problem.to_string().unwrap_or_default()),
            Err(error) => Err(error.to_string()),
        }
    }

    /// Calls a kept function without arguments. The error is a sentence with file and line.
    #[inline]
    pub fn call(&self, function: c_int) -> Result<(), String> {
        let stack = self.stack;
        // SAFETY: a stack of the interpreter that is alive as long as `self`, used by this thread
        // only, with room for the two values. Errors of the function end in the handler.
        let status = unsafe {
            ffi::lua_rawgeti(stack, ffi::LUA_REGISTRYINDEX, self.handler.into());
            ffi::lua_rawgeti(stack, ffi::LUA_REGISTRYINDEX, function.into());
            ffi::lua_pcall(stack, 0, 0, -2)
        };
        let result = if status != 0 { Err(self.problem(status)) } else { Ok(()) };
        // SAFETY: empties the stack.
        unsafe { ffi::lua_settop(stack, 0) };
        result
    }

    #[cold]
    fn problem(&self, status: c_int) -> String {
        // The app's `stop` is called next, which is not to be interrupted.
        interrupt::calm_raised();
        // SAFETY: the error lies at the top; the text is copied before the stack is emptied.
        let text = unsafe { ffi::lua_tostring(self.stack, -1) };
        let text = if text.is_null() {
            "an error without a message".to_string()
        } else {
            // SAFETY: Lua ends its strings with a zero.
            unsafe { CStr::from_ptr(text) }.to_string_lossy().into_owned()
        };
        if let Some(why) = self.memory.take_exhaustion() {
            // One that some app has caught is not the cause of what failed later, in this one.
            let told = [ffi::LUA_ERRMEM, ffi::LUA_ERRERR].contains(&status);
            if told || text.contains(memory::ERROR) {
                self.starved.set(true);
                return memory::sentence(&why);
            }
            self.memory.refill();
        }
        text
    }

    /// What is [kept](keep).
    pub fn kept(&self, reference: c_int) -> mlua::Result<Function> {
        // SAFETY: puts one value on the stack, which is taken from there.
        unsafe {
            self.lua.exec_raw((), |state| {
                ffi::lua_rawgeti(state, ffi::LUA_REGISTRYINDEX, reference.into());
            })
        }
    }

    /// Gives up what was kept, once.
    pub fn release(&self, reference: c_int) {
        // SAFETY: a reference made by `keep`; a table of the registry changes, and no memory is needed.
        unsafe { ffi::luaL_unref(self.stack, ffi::LUA_REGISTRYINDEX, reference) };
    }

    /// An app ended in an error.
    pub fn count_failure(&self) {
        self.failures.set(self.failures.get() + 1);
    }

    pub fn failures(&self) -> u64 {
        self.failures.get()
    }

    /// Lets go of what [`Self::start`] kept.
    pub fn forget(&self, started: &mut Started) {
        for function in [&mut started.push, &mut started.pull, &mut started.tick] {
            let Some(reference) = function.take() else { continue };
            self.chains.borrow_mut().break_off(reference);
            self.release(reference);
        }
        // The array may be collected from now on.
        started.count = 0;
        if self.starved.take() {
            // It is the garbage of an app that found no memory.
            let _ = self.lua.gc_collect();
            self.memory.refill();
        }
    }
}

/// Keeps a function in Lua's registry.
pub fn keep(lua: &Lua, function: &Function) -> mlua::Result<c_int> {
    let mut reference = 0;
    // SAFETY: takes the argument off the stack into the registry.
    unsafe {
        lua.exec_raw::<()>(function, |state| {
            reference = ffi::luaL_ref(state, ffi::LUA_REGISTRYINDEX)
        })?;
    }
    Ok(reference)
}
