//! The program's signal handlers, which are entered by way of one of ours: `shortwire_raw_handler` of `x86_64.rs` and
//! `aarch64.rs`.

use core::sync::atomic::{AtomicUsize, Ordering::*};

use sites::Call;
use smc::sys;
use socket::faulty;

use crate::arch;
use crate::call::plain;

/// `struct sigaction` of the kernel.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct Action {
    pub handler: usize,
    pub flags: u64,
    pub restorer: usize,
    pub mask: u64,
}

/// The program's handlers, by signal.
pub static HANDLERS: [AtomicUsize; 65] = [const { AtomicUsize::new(0) }; 65];

/// A call of rt_sigaction, and its result: handlers are ours, which lead to the program's.
pub fn action(call: &Call) -> isize {
    let [number, asked, old, len, ..] = call.given;
    let read = |at: usize| {
        let at = at as *const Action;
        // SAFETY: the program's own.
        (!faulty(at)).then(|| unsafe { *at })
    };
    let wanted = read(asked);
    let is_odd = asked != 0 && wanted.is_none() || old != 0 && faulty(old as *const Action);
    let Some(place) = HANDLERS.get(number).filter(|_| number > 0 && len == 8 && !is_odd) else {
        return plain(call);
    };
    let ours = arch::handler();
    let mut given = call.given;
    // Ours is what a vfork child was told, whose parent may have it from there: the program's stays, or it
    // would lead to itself for ever.
    let changed = wanted.filter(|wanted| {
        !matches!(wanted.handler, libc::SIG_DFL | libc::SIG_IGN) && wanted.handler != ours
    });
    let own = changed.map(|action| Action { handler: ours, ..action });
    if let Some(own) = &own {
        given[1] = core::ptr::from_ref(own).addr();
    }
    // A signal that comes in the middle of it is one that came before or behind.
    let before = changed.map_or_else(|| place.load(Acquire), |new| place.swap(new.handler, AcqRel));
    // SAFETY: the program's own call, of another handler.
    let result = unsafe { sys::by_list(call.number(), given) };
    if result != 0 && changed.is_some() {
        place.store(before, Release);
    }
    if let Some(was) = read(old).filter(|was| result == 0 && was.handler == ours) {
        // SAFETY: the program's own, which the kernel has just written to.
        unsafe { *(old as *mut Action) = Action { handler: before, ..was } };
    }
    result
}
