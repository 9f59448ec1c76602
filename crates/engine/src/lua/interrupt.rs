//! Ending a script that does not end by itself.
//!
//! A signal asks the engine to stop, and a run of it does. A script in a loop of its own hears
//! nothing; a while after the signal an error is raised wherever it is. Code that LuaJIT has
//! compiled looks at nothing: if it goes on the process ends by the signal, as without a handler.
#![allow(unsafe_code)]

use std::ffi::c_int;
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicPtr, Ordering};

use mlua::{Lua, ffi};

use crate::lua::sampler::vmstate;

/// Microseconds that a script has to end by itself.
const PATIENCE: i64 = 300_000;
/// And then until the process ends, or the user is told what to do.
const SILENCE: i64 = 1_000_000;

const ENDED: &[u8] = b"\nThe script did not end, and was in compiled code: ended as it was.\n";
const HINT: &[u8] = b"\nThe script goes on; Ctrl-C once more ends it at once.\n";

/// The interpreter that is to be interrupted, and its thread. Null: none.
static STATE: AtomicPtr<ffi::lua_State> = AtomicPtr::new(std::ptr::null_mut());
static THREAD: AtomicI32 = AtomicI32::new(0);
/// What LuaJIT is at, and the signal that asks.
static VMSTATE: AtomicPtr<AtomicI32> = AtomicPtr::new(std::ptr::null_mut());
static SIGNAL: AtomicI32 = AtomicI32::new(0);
/// Whether errors are raised: until the engine is back in charge.
static RAISING: AtomicBool = AtomicBool::new(false);

/// From now on [`request`] is about this interpreter, which this thread runs.
pub fn arm(lua: &Lua) -> mlua::Result<()> {
    let mut main = std::ptr::null_mut();
    // SAFETY: the stack is left alone. Hooks are the interpreter's, whichever of its stacks they are
    // set by.
    unsafe { lua.exec_raw::<()>((), |state| main = state)? };
    VMSTATE.store(vmstate(lua)?.0.cast_mut(), Ordering::Relaxed);
    // SAFETY: all zeros is a valid sigaction.
    let mut action: libc::sigaction = unsafe { std::mem::zeroed() };
    action.sa_sigaction = on_alarm as extern "C" fn(c_int) as libc::sighandler_t;
    action.sa_flags = libc::SA_RESTART;
    // SAFETY: the handler keeps to what a handler may do.
    if unsafe { libc::sigaction(libc::SIGALRM, &action, std::ptr::null_mut()) } != 0 {
        return Err(mlua::Error::external(std::io::Error::last_os_error()));
    }
    THREAD.store(rustix::thread::gettid().as_raw_nonzero().get(), Ordering::Relaxed);
    STATE.store(main, Ordering::Relaxed);
    Ok(())
}

/// Before the interpreter goes.
pub fn disarm() {
    wind(0, 0);
    STATE.store(std::ptr::null_mut(), Ordering::Relaxed);
}

/// Asks the script to end, from a signal handler.
pub fn request(signal: c_int) {
    SIGNAL.store(signal, Ordering::Relaxed);
    if !STATE.load(Ordering::Relaxed).is_null() {
        wind(PATIENCE, SILENCE);
    }
}

/// The engine is back in charge: nothing is raised any more. True if something was.
pub fn calm() -> bool {
    let state = STATE.load(Ordering::Relaxed);
    if state.is_null() {
        return false;
    }
    wind(0, 0);
    if !RAISING.swap(false, Ordering::Relaxed) {
        return false;
    }
    // SAFETY: the interpreter lives until `disarm`, and this is its thread.
    unsafe { ffi::lua_sethook(state, None, 0, 0) };
    true
}

/// One alarm, and a second one behind it; zeros: none.
fn wind(first: i64, second: i64) {
    let time = |microseconds: i64| libc::timeval {
        tv_sec: microseconds / 1_000_000,
        tv_usec: microseconds % 1_000_000,
    };
    let alarm = libc::itimerval { it_value: time(first), it_interval: time(second) };
    // SAFETY: a system call, as good as async-signal-safe; nothing else here uses the timer.
    unsafe { libc::setitimer(libc::ITIMER_REAL, &raw const alarm, std::ptr::null_mut()) };
}

extern "C" fn on_alarm(signal: c_int) {
    let (state, owner) = (STATE.load(Ordering::Relaxed), THREAD.load(Ordering::Relaxed));
    if state.is_null() {
        return;
    }
    // SAFETY: a system call.
    let here = unsafe { libc::syscall(libc::SYS_gettid) } == libc::c_long::from(owner);
    if !here {
        // The kernel takes the first thread where it can; LuaJIT's hooks are set on their own.
        let pid = std::process::id();
        // SAFETY: a system call, which keeps errno if it succeeds: the thread is there.
        unsafe { libc::syscall(libc::SYS_tgkill, pid, owner, signal) };
        return;
    }
    if RAISING.swap(true, Ordering::Relaxed) {
        wind(0, 0);
        // SAFETY: this thread's own.
        let errno = unsafe { libc::__errno_location() };
        // SAFETY: as above.
        let kept = unsafe { errno.read() };
        // SAFETY: a word of the interpreter, which lives until `disarm`.
        let compiled = unsafe { &*VMSTATE.load(Ordering::Relaxed) }.load(Ordering::Relaxed) >= 0;
        let text = if compiled { ENDED } else { HINT };
        // SAFETY: a system call on a constant.
        unsafe { libc::write(libc::STDERR_FILENO, text.as_ptr().cast(), text.len()) };
        if compiled {
            // SAFETY: the handler of the first signal is gone with it (SA_RESETHAND), and a signal of
            // this thread is delivered before `raise` returns.
            unsafe { libc::raise(SIGNAL.load(Ordering::Relaxed)) };
        }
        // SAFETY: as above.
        unsafe { errno.write(kept) };
        return;
    }
    let events = ffi::LUA_MASKCALL | ffi::LUA_MASKRET | ffi::LUA_MASKCOUNT;
    // SAFETY: LuaJIT's own command does this in its signal handler, on the interpreter's thread.
    unsafe { ffi::lua_sethook(state, Some(raise), events, 1) };
}

/// Raised again and again, so that no `pcall` of the script keeps it.
unsafe extern "C-unwind" fn raise(state: *mut ffi::lua_State, _: *mut ffi::lua_Debug) {
    // SAFETY: a hook has room for a few values.
    unsafe { ffi::lua_pushstring(state, c"interrupted".as_ptr()) };
    // SAFETY: as Lua's hooks may; nothing here needs to be dropped.
    unsafe { ffi::lua_error(state) }
}
