//! Turns of apps in Lua that follow each other: one entry into the interpreter for all of them.
//!
//! What is entered is a function that calls one app after the other (`modules/shortwire/instances.lua`),
//! so that the compiler sees the way from one app's loop to the next one's, and a chain of apps
//! becomes one set of traces.
#![allow(unsafe_code)]

use std::cell::Cell;
use std::ffi::c_int;
use std::rc::{Rc, Weak};

use mlua::{Function, LightUserData, Lua, ffi};

use crate::lua::calls::{Calls, keep};
use crate::together::{Call, Caller, Marks, Outcome};

unsafe extern "C-unwind" {
    fn shortwire_open_to_traces(state: *mut ffi::lua_State) -> c_int;
}

/// For `modules/shortwire/copies.lua`.
pub fn open_to_traces(lua: &Lua) -> mlua::Result<Function> {
    // SAFETY: keeps to the rules of Lua's C functions.
    unsafe { lua.create_c_function(shortwire_open_to_traces) }
}

/// Their function in Lua's registry, as long as all of its apps run.
pub struct Chain {
    calls: Rc<Calls>,
    /// References of what the apps have for the engine to call.
    turns: Box<[c_int]>,
    function: Cell<Option<c_int>>,
    /// At a fixed address, which the function has.
    _marks: Rc<Marks>,
}

/// Chains that may call an app.
#[derive(Default)]
pub struct Chains(Vec<Weak<Chain>>);

impl Chains {
    fn add(&mut self, chain: &Rc<Chain>) {
        self.0.retain(|chain| chain.strong_count() > 0);
        self.0.push(Rc::downgrade(chain));
    }

    /// Chains that call this function are whole no more, and keep nothing of it.
    pub fn break_off(&mut self, turn: c_int) {
        self.0.retain(|chain| {
            let Some(chain) = chain.upgrade() else { return false };
            let goes = chain.turns.contains(&turn);
            if goes {
                chain.let_go();
            }
            !goes
        });
    }
}

impl Chain {
    fn let_go(&self) {
        if let Some(function) = self.function.take() {
            self.calls.release(function);
        }
    }
}

impl Drop for Chain {
    fn drop(&mut self) {
        self.let_go();
    }
}

impl Call for Chain {
    #[inline]
    fn call(&self) -> Outcome {
        let Some(function) = self.function.get() else { return Outcome::Stale };
        match self.calls.call(function) {
            Ok(()) => Outcome::Done,
            Err(problem) => Outcome::Failed(problem),
        }
    }

    fn is_whole(&self) -> bool {
        self.function.get().is_some()
    }
}

impl Caller for Calls {
    fn call_for(self: Rc<Self>, turns: &[i64], marks: &Rc<Marks>) -> Option<Rc<dyn Call>> {
        let turns: Box<[c_int]> = turns.iter().map(|&turn| turn as c_int).collect();
        let kept = turns.iter().map(|&turn| self.kept(turn));
        let functions = kept.collect::<mlua::Result<Vec<Function>>>().ok()?;
        let place = LightUserData(Rc::as_ptr(marks).cast_mut().cast());
        let function: Function = self.chain.call((place, functions)).ok()?;
        let function = Cell::new(Some(keep(&self.lua, &function).ok()?));
        let _marks = Rc::clone(marks);
        let chain = Rc::new(Chain { calls: Rc::clone(&self), turns, function, _marks });
        self.chains.borrow_mut().add(&chain);
        Some(chain)
    }
}
