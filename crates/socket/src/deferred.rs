//! What signal handlers send on the connection whose send they have interrupted. It stands half
//! done further up the stack and cannot be waited for, so the bytes are kept, and follow it.
#![allow(unsafe_code)]

use core::cell::UnsafeCell;
use core::sync::atomic::{AtomicU32, Ordering::*};

use smc::conn::Pieces;

/// Connections that may have such bytes at once, and how many each.
const SLOTS: usize = 16;
const ROOM: usize = 4096;

#[repr(C)]
struct Slot {
    /// Index of the connection, plus one; 0: free, `FILLING`: being taken.
    of: AtomicU32,
    len: AtomicU32,
    bytes: UnsafeCell<[u8; ROOM]>,
}

const FILLING: u32 = u32::MAX;

// SAFETY: the bytes are written by a handler that runs inside the connection's tx lock, and read
// under that lock.
unsafe impl Sync for Slot {}

static ALL: [Slot; SLOTS] = [const {
    Slot { of: AtomicU32::new(0), len: AtomicU32::new(0), bytes: UnsafeCell::new([0; ROOM]) }
}; SLOTS];
/// Slots in use.
static USED: AtomicU32 = AtomicU32::new(0);

/// Whether any connection has such bytes.
#[inline]
pub fn any() -> bool {
    USED.load(Relaxed) > 0
}

/// Keeps what fits of `from`, and moves it on; how many bytes that was. The calling thread holds
/// the tx lock further up its stack.
pub fn keep(index: u32, from: &mut Pieces) -> usize {
    let own = || ALL.iter().find(|slot| slot.of.load(Acquire) == index + 1);
    let free =
        || ALL.iter().find(|slot| slot.of.compare_exchange(0, FILLING, AcqRel, Relaxed).is_ok());
    let (slot, new) = match own() {
        Some(slot) => (slot, false),
        None => match free() {
            Some(slot) => (slot, true),
            None => return 0,
        },
    };
    let mut len = if new { 0 } else { slot.len.load(Relaxed) as usize };
    let before = len;
    while len < ROOM
        && let Some((src, n)) = from.next(ROOM - len)
    {
        // SAFETY: the application's buffer; within the slot, see `Slot`.
        unsafe {
            core::ptr::copy_nonoverlapping(src, slot.bytes.get().cast::<u8>().wrapping_add(len), n)
        };
        len += n;
    }
    slot.len.store(len as u32, Relaxed);
    if new {
        USED.fetch_add(1, Relaxed);
        slot.of.store(index + 1, Release);
    }
    len - before
}

/// Takes what was kept for a connection into `to`; how many bytes. The caller holds the tx lock.
pub fn take(index: u32, to: &mut [u8; ROOM]) -> usize {
    let Some(slot) = ALL.iter().find(|slot| slot.of.load(Acquire) == index + 1) else { return 0 };
    let len = slot.len.load(Relaxed) as usize;
    // SAFETY: see `Slot`.
    to[..len].copy_from_slice(&unsafe { &*slot.bytes.get() }[..len]);
    slot.of.store(0, Release);
    USED.fetch_sub(1, Relaxed);
    len
}

/// Forgets what was kept for a connection that has ended.
pub fn forget(index: u32) {
    if any() {
        take(index, &mut [0; ROOM]);
    }
}
