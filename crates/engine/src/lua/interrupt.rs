//! Ending a script that does not end by itself.
//!
//! A signal asks the engine to stop, and a run of it does. A script in a loop of its own hears
//! nothing; a while after the signal an error is raised wherever it is. Code that LuaJIT has
//! compiled looks at nothing: if it goes on the process ends by the signal, as without a handler.
#![allow(unsafe_code)]

use std::ffi::c_int;
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicPtr, AtomicU32, Ordering};

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
/// Runs of the engine that the request has ended.
static GRANTED: AtomicU32 = AtomicU32::new(0);

/// The interpreter that is interrupted is this one's, until it is dropped.
pub struct Armed(());

impl Drop for Armed {
    fn drop(&mut self) {
        calm();
        // An alarm that is still to come, or was sent on to this thread, finds nobody.
        THREAD.store(0, Ordering::Relaxed);
        // SYNC: alarm. Behind that: who arms next names its own thread.
        STATE.store(std::ptr::null_mut(), Ordering::Release);
    }
}

/// From now on [`request`] is about this interpreter, which this thread runs. None if it is about
/// another one, which goes on being so.
pub fn arm(lua: &Lua) -> mlua::Result<Option<Armed>> {
    if !STATE.load(Ordering::Relaxed).is_null() {
        return Ok(None);
    }
    let mut main = std::ptr::null_mut();
    // SAFETY: the stack is left alone. Hooks are the interpreter's, whichever of its stacks they are
    // set by.
    unsafe { lua.exec_raw::<()>((), |state| main = state)? };
    let vmstate = vmstate(lua)?.0.cast_mut();
    let none = std::ptr::null_mut();
    // SYNC: alarm. Pairs with the end of the one before.
    if STATE.compare_exchange(none, main, Ordering::Acquire, Ordering::Relaxed).is_err() {
        return Ok(None);
    }
    VMSTATE.store(vmstate, Ordering::Relaxed);
    // SYNC: alarm. Last: an alarm, which any thread may get, finds the others set; pairs with
    // `on_alarm`.
    THREAD.store(this_thread(), Ordering::Release);
    Ok(Some(Armed(())))
}

fn this_thread() -> i32 {
    rustix::thread::gettid().as_raw_nonzero().get()
}

/// Asks the script to end, from a signal handler.
pub fn request(signal: c_int) {
    SIGNAL.store(signal, Ordering::Relaxed);
    GRANTED.store(0, Ordering::Relaxed);
    // SAFETY: all zeros is a valid sigaction.
    let mut action: libc::sigaction = unsafe { std::mem::zeroed() };
    action.sa_sigaction = on_alarm as extern "C" fn(c_int) as libc::sighandler_t;
    action.sa_flags = libc::SA_RESTART;
    // Only now: until somebody asks, the alarm is the script's own.
    // SAFETY: async-signal-safe, and so is what the handler does.
    if unsafe { libc::sigaction(libc::SIGALRM, &action, std::ptr::null_mut()) } == 0 {
        wind(PATIENCE, SILENCE);
    }
}

/// A run of the engine has ended because somebody asked: what the script does at its end is not
/// disturbed. Once: a script that begins run after run would never end.
pub fn grant() {
    match GRANTED.fetch_add(1, Ordering::Relaxed) {
        0 => drop(calm()),
        1 if SIGNAL.load(Ordering::Relaxed) != 0 => wind(PATIENCE, SILENCE),
        _ => {}
    }
}

/// The engine is back in charge: nothing is raised any more, and nothing will be. True if something
/// was.
pub fn calm() -> bool {
    if SIGNAL.load(Ordering::Relaxed) == 0 || THREAD.load(Ordering::Relaxed) != this_thread() {
        return false;
    }
    wind(0, 0);
    calm_raised()
}

/// Nothing is raised any more, but an alarm that is still to come does. True if something was.
pub fn calm_raised() -> bool {
    let state = STATE.load(Ordering::Relaxed);
    if state.is_null()
        || THREAD.load(Ordering::Relaxed) != this_thread()
        || !RAISING.swap(false, Ordering::Relaxed)
    {
        return false;
    }
    // SAFETY: the interpreter lives as long as `Armed`, and this is its thread.
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
    // SYNC: alarm. First, see `arm`.
    let owner = THREAD.load(Ordering::Acquire);
    let state = STATE.load(Ordering::Relaxed);
    if owner == 0 || state.is_null() {
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
        // SAFETY: a word of the interpreter, which lives as long as `Armed`.
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
