//! Functions that compiled Lua calls by address. They never call back into Lua, and raise no error.
#![allow(unsafe_code)]

use std::ffi::c_void;
use std::rc::Rc;
use std::sync::OnceLock;

use crate::arena::{SLOT, arena};
use crate::link::{Link, LinkStats};
use crate::packet::Packet;
use crate::pool;
use crate::together::Marks;

/// Bytes of a script's view of a packet.
const VIEW: usize = 32;

/// One view per slot; memory only for those that scripts meet. As the arena, it is there as long as
/// the process.
fn views() -> *mut c_void {
    static VIEWS: OnceLock<usize> = OnceLock::new();
    let make = || Vec::leak(vec![0_u8; arena().slots() * VIEW]).as_mut_ptr().expose_provenance();
    std::ptr::with_exposed_provenance_mut(*VIEWS.get_or_init(make))
}

/// Addresses under the names by which `modules/core/memory_layout.lua` knows them.
pub fn addresses() -> [(&'static str, *mut c_void); 10] {
    [
        ("arena", arena().base().as_ptr().cast()),
        ("views", views()),
        ("pool", pool::current().cast()),
        ("refill", refill as *mut c_void),
        ("give_back", give_back as *mut c_void),
        ("release_link", release_link as *mut c_void),
        ("forward", forward as *mut c_void),
        ("stats", stats as *mut c_void),
        ("discard", discard as *mut c_void),
        ("mark", mark as *mut c_void),
    ]
}

extern "C" fn refill() -> bool {
    pool::with(|pool| pool.ready(1) == 1).unwrap_or(false)
}

extern "C" fn give_back() {
    pool::with(|pool| pool.give());
}

/// # Safety
/// `link` came from [`hold`], and is not used any more.
unsafe extern "C" fn release_link(link: *const Link) {
    // SAFETY: the caller's.
    drop(unsafe { Rc::from_raw(link) });
}

/// A pointer that keeps the link until [`release_link`] gets it.
pub fn hold(link: &Rc<Link>) -> *mut c_void {
    Rc::into_raw(Rc::clone(link)).cast_mut().cast()
}

/// # Safety
/// Both are links, or null, which is an empty or full one.
unsafe extern "C" fn forward(from: *const Link, to: *const Link, most: u32) -> u32 {
    // SAFETY: the caller's.
    match unsafe { (from.as_ref(), to.as_ref()) } {
        (Some(from), Some(to)) => from.forward(to, most as usize) as u32,
        _ => 0,
    }
}

/// # Safety
/// `link` is a link or null, `to` has room for what it has counted.
unsafe extern "C" fn stats(link: *const Link, to: *mut LinkStats) {
    // SAFETY: the caller's.
    let stats = unsafe { link.as_ref() }.map(Link::stats).unwrap_or_default();
    // SAFETY: the caller's.
    unsafe { to.write(stats) };
}

/// # Safety
/// `link` is a link or null.
unsafe extern "C" fn discard(link: *const Link) -> u32 {
    // SAFETY: the caller's.
    unsafe { link.as_ref() }.map_or(0, |link| link.discard() as u32)
}

/// # Safety
/// `marks` are those of the chain that calls.
unsafe extern "C" fn mark(marks: *const Marks) {
    // SAFETY: the caller's.
    unsafe { &*marks }.mark();
}

// What `modules/core/memory_layout.lua` takes for granted; more in `link.rs`.
const _: () = {
    assert!(size_of::<Packet>() == 16 && size_of::<pool::Pool>() == 48);
    assert!(
        SLOT == 64 * VIEW
            && SLOT == 2048
            && crate::arena::CONTROL == 64
            && crate::packet::HEADROOM == 192
    );
};
