//! The memory of scripts: what is not there, or not allowed, is an error of the script.
//!
//! mlua's own allocator ends the process when the system has no more memory. This one takes and
//! gives from the same heap, and says no instead, which LuaJIT makes an error of.
#![allow(unsafe_code)]

use std::alloc::{Layout, alloc, dealloc, realloc};
use std::cell::{Cell, RefCell};
use std::ffi::c_void;
use std::ptr::null_mut;
use std::rc::Rc;

use mlua::{Lua, ffi};

/// Given back when there is none left, and allowed beyond the limit: who tells of it needs some, and
/// so does the app's `stop`.
const BALLAST: usize = 1 << 20;

/// What LuaJIT raises.
pub const ERROR: &str = "not enough memory";

/// What a script's user is told.
pub fn sentence(why: &str) -> String {
    format!("the script has not enough memory: {why}")
}

/// What a script has, in bytes.
#[derive(Default)]
pub struct Memory {
    used: Cell<usize>,
    limit: Cell<usize>,
    /// The limit, or somewhat more.
    most: Cell<usize>,
    ballast: RefCell<Vec<u8>>,
    exhausted: Cell<bool>,
    before: Cell<Option<(ffi::lua_Alloc, *mut c_void)>>,
}

impl Memory {
    /// Takes the interpreter's memory over; with a limit, if there is one. Dropped before the
    /// interpreter, it would be used after that.
    pub fn take_over(self: &Rc<Self>, lua: &Lua, limit: Option<usize>) -> mlua::Result<()> {
        let memory = self;
        memory.used.set(lua.used_memory());
        memory.limit.set(limit.unwrap_or(usize::MAX));
        memory.refill();
        // With a limit of its own mlua expects that any call of the interpreter may fail.
        lua.set_memory_limit(isize::MAX as usize)?;
        let data = Rc::as_ptr(memory).cast_mut().cast();
        // SAFETY: the stack is left alone. The caller keeps `self` for as long as the interpreter, also
        // where it fails to start; blocks of the allocator before are of the same heap.
        unsafe {
            lua.exec_raw::<()>((), |state| {
                let mut theirs = null_mut();
                let allocator = ffi::lua_getallocf(state, &raw mut theirs);
                memory.before.set(Some((allocator, theirs)));
                ffi::lua_setallocf(state, allocate, data);
            })
        }
    }

    /// Lets mlua have its allocator back, before the interpreter goes.
    pub fn give_back(&self, lua: &Lua) {
        if let Some((allocator, data)) = self.before.take() {
            // SAFETY: as it was found. An interpreter that has no memory left keeps ours, which is
            // alive for another moment: fields are dropped in the order of the session's.
            let _ = unsafe {
                lua.exec_raw::<()>((), |state| ffi::lua_setallocf(state, allocator, data))
            };
        }
    }

    /// Why there was no more, if there was none since the last call.
    pub fn take_exhaustion(&self) -> Option<String> {
        if !self.exhausted.replace(false) {
            return None;
        }
        let mib = |bytes: usize| bytes.div_ceil(1 << 20);
        Some(match self.limit.get() {
            usize::MAX => {
                format!("it has {} MiB, and the system gives no more", mib(self.used.get()))
            }
            limit => format!("its limit is {} MiB (--memory)", mib(limit)),
        })
    }

    /// Something to give back the next time, if there is as much again.
    pub fn refill(&self) {
        self.most.set(self.limit.get());
        let mut ballast = Vec::new();
        if ballast.try_reserve_exact(BALLAST).is_ok() {
            self.ballast.replace(ballast);
        }
    }

    #[cold]
    fn refuse(&self) -> *mut c_void {
        self.exhausted.set(true);
        self.most.set(self.limit.get().saturating_add(BALLAST));
        drop(self.ballast.take());
        null_mut()
    }
}

/// # Safety
/// As `lua_Alloc`: `block` has `old` bytes, and came from here or from mlua.
unsafe extern "C" fn allocate(
    data: *mut c_void,
    block: *mut c_void,
    old: usize,
    new: usize,
) -> *mut c_void {
    // SAFETY: what `take_over` gave, alive as long as the interpreter uses this function.
    let memory = unsafe { &*data.cast::<Memory>() };
    let old = if block.is_null() { 0 } else { old };
    let layout = |size| Layout::from_size_align(size, ffi::SYS_MIN_ALIGN).ok();
    let (Some(old_layout), Some(new_layout)) = (layout(old), layout(new)) else {
        return memory.refuse();
    };
    // What is given back at the very end was not all counted when it was taken over.
    let used = memory.used.get().saturating_sub(old) + new;
    if new > old && used > memory.most.get() {
        return memory.refuse();
    }
    let given = match (old, new) {
        (0, 0) => null_mut(),
        // SAFETY: the size is not zero.
        (0, _) => unsafe { alloc(new_layout) },
        (_, 0) => {
            // SAFETY: a block of this layout, which is not used any more.
            unsafe { dealloc(block.cast(), old_layout) };
            null_mut()
        }
        // SAFETY: a block of this layout, and a new size of at least one.
        _ => unsafe { realloc(block.cast(), old_layout, new) },
    };
    if given.is_null() && new > 0 {
        return memory.refuse();
    }
    memory.used.set(used);
    given.cast()
}
