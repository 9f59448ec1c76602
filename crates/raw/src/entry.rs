//! Where the program's system calls arrive: on a stack of ours, and from there in `front.rs`.
//!
//! Each thread has a block, found through a register that no program uses (`x86_64.rs`, `aarch64.rs`), and stacks
//! behind it: one for a call, and one for each signal handler that interrupts it and makes calls itself. Nothing is written
//! to the program's stack, which may be a goroutine's with no room for us. What the kernel keeps over
//! a call is kept: general registers, and the lower 128 bits of vector registers, to the upper ones
//! of which nothing here is compiled to reach.

use core::cell::Cell;
use core::ffi::c_int;
use core::sync::atomic::{AtomicBool, AtomicPtr, AtomicU32, Ordering::*};

use sites::Call;
use smc::{home, sys};
use socket::{fds, fork, kernel};

use crate::arch::{self, PAGE, STACK, SYS_fork, SYS_vfork};
use crate::call::plain;
use crate::{dispatch, exec, front, heap, later};

/// How many stacks a thread has. The lowest page of each ends the program rather than let it run into the next one.
pub const STACKS: usize = 4;
/// The block's page, the stacks, and as much again that nobody may touch: a vfork child that is killed
/// inside a call leaves its parent's thread one stack further up.
const MAPPED: usize = PAGE + (STACKS + 1) * STACK;

/// What a thread has.
#[repr(C)]
pub struct Block {
    pub own: Cell<*const Block>,
    /// Where the next stack begins.
    #[cfg(target_arch = "x86_64")]
    pub next: Cell<usize>,
    /// The thread pointer that the program has set, or believes to.
    #[cfg(target_arch = "aarch64")]
    pub pointer: Cell<usize>,
    /// The words of `shm::words`.
    words: [Cell<u32>; 4],
    errno: Cell<c_int>,
    /// Where a clone goes on.
    pub back: Cell<usize>,
    /// Registers of a thread that makes another one, or of a new one until it has what it needs.
    pub kept: [Cell<usize>; 6],
    /// The thread that uses it has ended, or will without coming here again: once no stack is in use,
    /// the block may serve another.
    pub is_free: AtomicU32,
    /// A vfork was left to the program, and this may be its child.
    may_be_child: Cell<bool>,
    /// The program believes that this thread blocks the signal of the net.
    blocks_signal: Cell<bool>,
    /// The block that the clone under way gives the new thread.
    pub child: Cell<*const Block>,
    /// The one made before it; blocks are never unmapped.
    older: Cell<*const Block>,
}

const _: () = assert!(core::mem::offset_of!(Block, words) == shm::words::BLOCK);

static NEWEST: AtomicPtr<Block> = AtomicPtr::new(core::ptr::null_mut());

impl Block {
    pub fn first_stack(&self) -> usize {
        core::ptr::from_ref(self).addr() + PAGE
    }

    /// A new one. None without memory.
    fn map() -> Option<&'static Block> {
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;
        let access = libc::PROT_READ | libc::PROT_WRITE;
        let none = usize::MAX;
        // SAFETY: fresh memory.
        let at = unsafe {
            sys::by_number(libc::SYS_mmap, 0, MAPPED, access as usize, flags as usize, none, 0)
        };
        let at = usize::try_from(at).ok()?;
        for i in 0..=STACKS {
            let len = if i == STACKS { STACK } else { PAGE };
            let from = at + PAGE + i * STACK;
            // SAFETY: in what was mapped just now.
            unsafe { sys::by_number(libc::SYS_mprotect, from, len, 0, 0, 0, 0) };
        }
        // SAFETY: zeros are a valid block, and it is never unmapped.
        let block = unsafe { &*(at as *const Block) };
        block.own.set(block);
        block.leave_all();
        let mut newest = NEWEST.load(Acquire);
        loop {
            block.older.set(newest);
            let new = core::ptr::from_ref(block).cast_mut();
            match NEWEST.compare_exchange(newest, new, AcqRel, Acquire) {
                Ok(_) => return Some(block),
                Err(now) => newest = now,
            }
        }
    }

    fn all() -> impl Iterator<Item = &'static Block> {
        let at = |block: *const Block| {
            // SAFETY: null, or a block, which is never unmapped.
            unsafe { block.as_ref() }
        };
        core::iter::successors(at(NEWEST.load(Acquire)), move |block| at(block.older.get()))
    }

    /// One that nobody uses.
    fn take() -> Option<&'static Block> {
        let is_left = |block: &&Block| {
            let is_taken = block.is_free.load(Relaxed) == 1
                && block.is_free.compare_exchange(1, 0, AcqRel, Relaxed).is_ok();
            // SYNC: block. Behind the taking: looked at in front of it, the block could be taken and freed
            // by others meanwhile, whose thread still stands on its stack.
            let has_left = is_taken && block.has_left();
            if is_taken && !has_left {
                block.is_free.store(1, Release);
            }
            has_left
        };
        let block = Block::all().find(is_left);
        if let Some(block) = block {
            block.words.iter().for_each(|word| word.set(0));
            block.may_be_child.set(false);
        }
        block.or_else(Block::map)
    }
}

/// This thread's errno.
pub fn errno() -> *mut c_int {
    own().errno.as_ptr()
}

/// Gives the first thread its block. False without memory.
pub fn begin() -> bool {
    Block::map().is_some_and(arch::set_own)
}

/// Whether the program believes that this thread blocks the signal of the net.
#[cfg(target_arch = "x86_64")]
pub fn blocks_signal() -> &'static Cell<bool> {
    &own().blocks_signal
}

fn own() -> &'static Block {
    // SAFETY: this thread's, never unmapped.
    unsafe { &*arch::own() }
}

/// Whether `prepare` took the heap's lock, which a fork in a signal handler that interrupted its
/// holder does not.
static HEAP_HELD: AtomicBool = AtomicBool::new(false);

/// A fork with all that belongs to it, and its result.
fn fork_whole(call: &Call) -> isize {
    fork::prepare();
    // Held over the fork so that the child finds the heap whole.
    if !fds::has_stopped() && heap::HEAP.lock.lock().map(core::mem::forget).is_ok() {
        HEAP_HELD.store(true, Relaxed);
    }
    let result = plain(call);
    let was_held = HEAP_HELD.swap(false, Relaxed);
    if result == 0 {
        // The other threads are not in the child.
        for block in Block::all().filter(|block| !core::ptr::eq(*block, own())) {
            block.leave_all();
            block.is_free.store(1, Relaxed);
        }
        // SAFETY: the only thread of the child.
        unsafe { heap::HEAP.lock.reset() };
        // SAFETY: as above.
        unsafe { later::after_fork_child() };
        dispatch::after_fork_child();
        fork::child();
    } else {
        if was_held {
            // SAFETY: taken above by this thread.
            unsafe { heap::HEAP.lock.force_unlock() };
        }
        fork::parent();
        if result < 0 {
            fork::failed();
        }
    }
    result
}

/// A clone, in whatever form.
fn clone(block: &Block, call: &mut Call) {
    const THREAD: usize = libc::CLONE_VM as usize;
    const VFORK: usize = libc::CLONE_VFORK as usize;
    let is_clone = call.number() == libc::SYS_clone;
    if call.number() == libc::SYS_clone3 {
        // Its arguments are behind a pointer. What asks for a stack has another way, which libraries
        // of C and Go take; without one it is a fork or a vfork.
        let (args, len) = (call.given[0] as *const [u64; 8], call.given[1]);
        if socket::faulty(args) || len < size_of::<[u64; 8]>() {
            return call.done(-(libc::ENOSYS as isize));
        }
        // SAFETY: the program's own arguments, of the length that it says.
        let [flags, _, _, _, _, stack, ..] = unsafe { *args };
        if stack != 0 || flags & arch::SETS_OURS != 0 {
            return call.done(-(libc::ENOSYS as isize));
        }
    }
    let has_stack = is_clone && call.given[1] != 0;
    if is_clone && call.given[0] & (THREAD | VFORK) == THREAD {
        let Some(child) = has_stack.then(Block::take).flatten() else {
            return call.done(-(libc::EAGAIN as isize));
        };
        child.blocks_signal.set(block.blocks_signal.get());
        if call.given[0] & libc::CLONE_FILES as usize == 0 {
            // No thread, but a process in this memory whose descriptors are its own.
            fork::before_vfork();
        }
        arch::make_thread(block, child, call);
        return;
    }
    // Without its parent's memory the child of a namespace could be told from it, but not without
    // that by its number, which both see as their own.
    let is_shared = is_clone && call.given[0] & THREAD != 0 || call.number() == SYS_vfork;
    let is_apart =
        is_clone && call.given[0] & libc::CLONE_NEWPID as usize != 0 || sys::getpid() == 1;
    if is_clone && is_shared && is_apart && !has_stack {
        call.given[0] &= !(THREAD | VFORK);
    }
    let pointer = arch::take_pointer(call);
    // SAFETY: the arguments of such a call.
    if !has_stack && unsafe { fork::is_fork(call.number(), call.given[0], call.given[1]) } {
        let result = fork_whole(call);
        if let Some(pointer) = pointer.filter(|_| result == 0) {
            arch::set_pointer(block, pointer);
        }
        return call.done(result);
    }
    // Its block is this thread's for the time.
    if pointer.is_some() {
        return call.done(-(libc::ENOSYS as isize));
    }
    // The child runs in this memory, or on another stack, and returns by itself: the call is made
    // where no stack of ours is in use.
    fork::before_vfork();
    block.may_be_child.set(is_shared || call.number() == libc::SYS_clone3);
    if dispatch::is_on() {
        call.next = dispatch::for_child(call.next);
    }
}

/// Answers a call, or leaves it to the `syscall` to which the entry then returns.
pub extern "C" fn answer(call: &mut Call) {
    let block = own();
    let number = call.number();
    // A vfork child runs with what its parent's thread has, but its descriptors are its own: what it
    // has put over a number here is not the connection that its parent has there. What it leaves open
    // its exec looks at.
    let is_child = block.may_be_child.get() && !home::is_owner();
    block.may_be_child.set(is_child);
    if dispatch::is_on()
        && let Some(result) = dispatch::answer(call, is_child)
    {
        return call.done(result);
    }
    if is_child && !matches!(number, libc::SYS_execve | libc::SYS_execveat) {
        return;
    }
    match number {
        SYS_fork | SYS_vfork | libc::SYS_clone | libc::SYS_clone3 => clone(block, call),
        libc::SYS_execve | libc::SYS_execveat => {
            fds::before_exec();
            // A vfork child does not come back from it, and its parent goes on with what it left.
            if is_child {
                block.leave(call, true);
            }
            let result = exec::exec(call);
            if is_child {
                block.leave(call, false);
            }
            fds::undo_exec();
            call.done(result);
        }
        // The block serves another thread when this one has left its stack.
        // SYNC: block. Here, and in the release by which the stack is left.
        libc::SYS_exit => {
            block.leave_others(call);
            block.is_free.store(1, Release);
        }
        libc::SYS_exit_group => fork::exit(call.given[0] as c_int),
        libc::SYS_rt_sigaction => {
            let result = arch::action(call);
            kernel::handlers_changed();
            call.done(result);
        }
        _ => {
            // SAFETY: the program's own call.
            let result = arch::answer_own(call).or_else(|| unsafe { front::answer(call) });
            if let Some(result) = result {
                call.done(result);
            }
        }
    }
}
