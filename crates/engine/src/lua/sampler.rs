//! Where the time goes: a thread that looks at what LuaJIT is doing, about a thousand times a
//! second.
//!
//! Traces store their number when they are entered, so that nothing needs to be added to what is
//! measured.
#![allow(unsafe_code)]

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, AtomicI32, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::Duration;

use mlua::{LightUserData, Lua, ffi};

unsafe extern "C" {
    fn shortwire_vmstate(state: *mut ffi::lua_State) -> *const AtomicI32;
    fn shortwire_recorded(state: *mut ffi::lua_State) -> *const u32;
}

/// How often each state was seen: numbers of traces, or complements of what else LuaJIT can be
/// doing.
type Counts = Arc<Mutex<HashMap<i32, u64>>>;

/// The thread and what it saw.
pub struct Sampler {
    counts: Counts,
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

/// The word of the interpreter, which is written by its thread alone.
pub struct State(pub *const AtomicI32);

/// Where the interpreter says what it is doing: the number of a trace, or below 0.
pub fn vmstate(lua: &Lua) -> mlua::Result<State> {
    let mut address = std::ptr::null();
    // SAFETY: a field of the interpreter's global state; the stack is left alone.
    unsafe { lua.exec_raw::<()>((), |state| address = shortwire_vmstate(state))? };
    Ok(State(address))
}

/// Where the compiler says how far it has recorded, for scripts to read through the FFI.
pub fn recorded(lua: &Lua) -> mlua::Result<LightUserData> {
    let mut address = std::ptr::null();
    // SAFETY: a field of the interpreter's global state; the stack is left alone.
    unsafe { lua.exec_raw::<()>((), |state| address = shortwire_recorded(state))? };
    Ok(LightUserData(address.cast_mut().cast()))
}

// SAFETY: read through an atomic; `Sampler::drop` ends the thread before the interpreter goes.
unsafe impl Send for State {}

impl Sampler {
    pub fn start(lua: &Lua) -> mlua::Result<Self> {
        let state = vmstate(lua)?;
        let (counts, stop) = (Counts::default(), Arc::new(AtomicBool::new(false)));
        let (theirs, ended) = (counts.clone(), stop.clone());
        let thread = std::thread::Builder::new()
            .name("sampler".into())
            .spawn(move || watch(&state, &theirs, &ended))?;
        Ok(Self { counts, stop, thread: Some(thread) })
    }

    /// What was seen since the last call.
    pub fn take(&self) -> HashMap<i32, u64> {
        self.counts.lock().map(|mut counts| std::mem::take(&mut *counts)).unwrap_or_default()
    }
}

fn watch(state: &State, counts: &Counts, stop: &AtomicBool) {
    let mut turn = 1_u32;
    while !stop.load(Ordering::Relaxed) {
        // Uneven, so that a loop with a rhythm of its own is not always seen at the same place.
        turn = turn.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        std::thread::sleep(Duration::from_micros(600 + u64::from(turn >> 22)));
        // SAFETY: the interpreter outlives this thread, see `Sampler::drop`.
        let now = unsafe { &*state.0 }.load(Ordering::Relaxed);
        if let Ok(mut counts) = counts.lock() {
            *counts.entry(now).or_default() += 1;
        }
    }
}

impl Drop for Sampler {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            // A sampler that panicked has nothing more to say.
            let _ = thread.join();
        }
    }
}
