//! Where the processor's time goes: a thread that looks at what LuaJIT is doing, about a thousand
//! times a second, if the thread of LuaJIT has run since. One that waits for a processor stands where
//! it was put off, and would make that place look costly.
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
        let clock = own_clock();
        let thread = std::thread::Builder::new()
            .name("sampler".into())
            .spawn(move || watch(&state, clock, &theirs, &ended))?;
        Ok(Self { counts, stop, thread: Some(thread) })
    }

    /// What was seen since the last call.
    pub fn take(&self) -> HashMap<i32, u64> {
        self.counts.lock().map(|mut counts| std::mem::take(&mut *counts)).unwrap_or_default()
    }
}

/// The clock of the calling thread's time on a processor, for other threads to read; None if it has
/// none.
fn own_clock() -> Option<libc::clockid_t> {
    let mut clock = 0;
    // SAFETY: of a living thread, its own; the result is written on success.
    let failed = unsafe { libc::pthread_getcpuclockid(libc::pthread_self(), &raw mut clock) };
    (failed == 0).then_some(clock)
}

/// What a clock says; None once its thread has ended.
fn read(clock: libc::clockid_t) -> Option<(i64, i64)> {
    let mut now = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: `now` is live.
    let failed = unsafe { libc::clock_gettime(clock, &raw mut now) };
    (failed == 0).then_some((now.tv_sec, now.tv_nsec))
}

fn watch(state: &State, clock: Option<libc::clockid_t>, counts: &Counts, stop: &AtomicBool) {
    let mut turn = 1_u32;
    let mut before = None;
    while !stop.load(Ordering::Relaxed) {
        // Uneven, so that a loop with a rhythm of its own is not always seen at the same place.
        turn = turn.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        std::thread::sleep(Duration::from_micros(600 + u64::from(turn >> 22)));
        // The same time on a processor as before: it was put off, or sleeps.
        let ran = clock.and_then(read);
        if ran.is_some() && std::mem::replace(&mut before, ran) == ran {
            continue;
        }
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
