//! The library's own heap, apart from the application's.
//!
//! A hook may run in a signal handler that interrupted malloc, or inside a replacement malloc that
//! reads /proc: the application's allocator is out of bounds. Small blocks come from size classes
//! over mapped chunks; a signal handler that interrupted our own allocator gets a mapping of its
//! own instead of waiting for itself.
#![allow(unsafe_code)]

use core::alloc::{GlobalAlloc, Layout};
use core::cell::UnsafeCell;
use core::sync::atomic::{AtomicBool, Ordering::Relaxed};

use shm::lock::FastLock;
use smc::sys;

const CLASSES: usize = 9; // 32 bytes to 8 KiB
const CHUNK: usize = 256 << 10;

/// A chunk for when the kernel gives no more: an allocation that fails ends the program. Costs
/// nothing before that.
#[repr(align(8192))]
struct Last(UnsafeCell<[u8; CHUNK]>, AtomicBool);
// SAFETY: handed out once.
unsafe impl Sync for Last {}
static LAST: Last = Last(UnsafeCell::new([0; CHUNK]), AtomicBool::new(false));

fn chunk() -> usize {
    match sys::anonymous(CHUNK) as usize {
        0 if !LAST.1.swap(true, Relaxed) => LAST.0.get() as usize,
        fresh => fresh,
    }
}

/// See the module documentation.
pub struct Heap {
    pub lock: FastLock<false>,
    free: UnsafeCell<[*mut u8; CLASSES]>,
    chunk: UnsafeCell<(usize, usize)>,
}

// SAFETY: the cells are only touched under the lock.
unsafe impl Sync for Heap {}

#[global_allocator]
pub static HEAP: Heap = Heap {
    lock: FastLock::new(),
    free: UnsafeCell::new([core::ptr::null_mut(); CLASSES]),
    chunk: UnsafeCell::new((0, 0)),
};

fn class(layout: Layout) -> Option<usize> {
    let size = layout.size().max(layout.align()).max(32).next_power_of_two();
    let class = size.trailing_zeros() as usize - 5;
    (class < CLASSES).then_some(class)
}

// SAFETY: blocks are at least as large and as aligned as asked for, and handed out once.
unsafe impl GlobalAlloc for Heap {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        let Some(class) = class(layout) else { return sys::anonymous(layout.size()) };
        let Ok(_guard) = self.lock.lock() else { return sys::anonymous(layout.size().max(4096)) };
        // SAFETY: the lock is held.
        let free = unsafe { &mut *self.free.get() };
        // SAFETY: the lock is held.
        let chunk = unsafe { &mut *self.chunk.get() };
        let head = free[class];
        if !head.is_null() {
            // SAFETY: a free block begins with the address of the next.
            free[class] = unsafe { head.cast::<*mut u8>().read() };
            return head;
        }
        let size = 32usize << class;
        // A chunk is page-aligned and blocks are powers of two: rounding up aligns a block to its
        // size.
        let at = chunk.0.next_multiple_of(size);
        if chunk.0 == 0 || at + size > chunk.1 {
            let fresh = self::chunk();
            if fresh == 0 {
                return core::ptr::null_mut();
            }
            *chunk = (fresh + size, fresh + CHUNK);
            return fresh as *mut u8;
        }
        chunk.0 = at + size;
        at as *mut u8
    }

    unsafe fn dealloc(&self, block: *mut u8, layout: Layout) {
        let Some(class) = class(layout) else {
            // SAFETY: it was mapped by `alloc` with this length.
            unsafe { sys::unmap(block, layout.size()) };
            return;
        };
        // A handler that interrupted the allocator leaks the block rather than wait for itself.
        let Ok(_guard) = self.lock.lock() else { return };
        // SAFETY: the lock is held.
        let free = unsafe { &mut *self.free.get() };
        // SAFETY: the block is ours again, and has room for an address.
        unsafe { block.cast::<*mut u8>().write(free[class]) };
        free[class] = block;
    }
}
