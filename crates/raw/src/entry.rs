//! Where the program's system calls arrive: on a stack of ours, and from there in `front.rs`.
//!
//! Each thread has a block, found through GS, which no program uses, and stacks behind it: one for a
//! call, and one for each signal handler that interrupts it and makes calls itself. Nothing is written
//! to the program's stack, which may be a goroutine's with no room for us. What the kernel keeps over
//! a call is kept: general registers, and the lower 128 bits of vector registers, to the upper ones
//! of which nothing here is compiled to reach.

use core::arch::global_asm;
use core::cell::Cell;
use core::ffi::c_int;
use core::sync::atomic::{AtomicBool, AtomicPtr, AtomicU32, Ordering::*};

use sites::Call;
use smc::sys;
use socket::{fds, fork, kernel};

use crate::call::plain;
use crate::{dispatch, exec, front, heap, later};

/// One stack, whose lowest page ends the program rather than let it run into the next one.
const STACK: usize = 128 << 10;
const STACKS: usize = 4;
const PAGE: usize = 4096;
/// The block's page, the stacks, and as much again that nobody may touch: a vfork child that is killed
/// inside a call leaves its parent's thread one stack further up.
const MAPPED: usize = PAGE + (STACKS + 1) * STACK;

/// What a thread has: GS leads to it.
#[repr(C)]
struct Block {
    own: Cell<*const Block>,
    /// Where the next stack begins.
    next: Cell<usize>,
    /// The words of `shm::words`.
    words: [Cell<u32>; 4],
    errno: Cell<c_int>,
    /// Where a clone goes on.
    back: Cell<usize>,
    /// Registers of a new thread while it sets GS and puts the net under itself.
    kept: [Cell<usize>; 6],
    /// The thread that uses it has ended, or will without coming here again: once `next` is as at
    /// first, the block may serve another.
    is_free: AtomicU32,
    /// A vfork was left to the program, and this may be its child.
    may_be_child: Cell<bool>,
    /// The program believes that this thread blocks the signal of the net.
    blocks_signal: Cell<bool>,
    /// The block that the clone under way gives the new thread.
    child: Cell<*const Block>,
    /// The one made before it; blocks are never unmapped.
    older: Cell<*const Block>,
}

const OWN: usize = core::mem::offset_of!(Block, own);
const NEXT: usize = core::mem::offset_of!(Block, next);
const BACK: usize = core::mem::offset_of!(Block, back);
/// See `dispatch.rs`.
pub const KEPT: usize = core::mem::offset_of!(Block, kept);
const FREE: usize = core::mem::offset_of!(Block, is_free);
const CHILD: usize = core::mem::offset_of!(Block, child);
const _: () = assert!(core::mem::offset_of!(Block, words) == shm::words::BLOCK);

static NEWEST: AtomicPtr<Block> = AtomicPtr::new(core::ptr::null_mut());

impl Block {
    fn first_stack(&self) -> usize {
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
        block.next.set(block.first_stack());
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
            block.is_free.load(Acquire) == 1
                && block.next.get() == block.first_stack()
                && block.is_free.compare_exchange(1, 0, AcqRel, Relaxed).is_ok()
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
    const SET_GS: usize = 0x1001;
    let Some(block) = Block::map() else { return false };
    let at = core::ptr::from_ref(block).addr();
    // SAFETY: GS is ours from here on.
    unsafe { sys::by_number(libc::SYS_arch_prctl, SET_GS, at, 0, 0, 0, 0) == 0 }
}

/// Whether the program believes that this thread blocks the signal of the net.
pub fn blocks_signal() -> &'static Cell<bool> {
    &own().blocks_signal
}

fn own() -> &'static Block {
    let at: *const Block;
    // SAFETY: GS leads to the block.
    unsafe {
        core::arch::asm!("mov {}, gs:[{own}]", out(reg) at, own = const OWN, options(nostack, readonly))
    };
    // SAFETY: this thread's, never unmapped.
    unsafe { &*at }
}

global_asm!(
    ".pushsection .text.shortwire_raw, \"ax\", @progbits",
    ".balign 64",
    ".globl shortwire_raw_entry",
    ".hidden shortwire_raw_entry",
    "shortwire_raw_entry:",
    socket::leave_unwatched!(),
    // Taken before it is looked at: a handler that comes between the two puts it back.
    "add qword ptr gs:[{next}], {stack}",
    "mov r11, qword ptr gs:[{next}]",
    sites::keep_registers!(),
    // Given back when it is no longer stood on.
    "sub qword ptr gs:[{next}], {stack}",
    "jmp rcx",
    // A new thread: made off our stacks, as both go on from here. The new one has its creator's GS at
    // first, and finds the address of its own block below its stack.
    ".globl shortwire_raw_clone",
    ".hidden shortwire_raw_clone",
    "shortwire_raw_clone:",
    "syscall",
    "test rax, rax",
    "jz 2f",
    "js 3f",
    "4:",
    "mov r11, gs:[{back}]",
    "jmp r11",
    "3:",
    "mov r11, gs:[{child}]",
    "mov dword ptr [r11 + {free}], 1",
    "jmp 4b",
    "2:",
    "mov r11, [rsp - 8]",
    "mov [r11 + {kept}], rdi",
    "mov [r11 + {kept} + 8], rsi",
    "mov rsi, r11",
    "mov edi, 0x1001",
    "mov eax, {arch_prctl}",
    "syscall",
    // A filter of the program's may refuse that: two threads on one stack would be worse than an end.
    "test rax, rax",
    "jz 5f",
    "ud2",
    "5:",
    "mov rdi, gs:[{kept}]",
    "mov rsi, gs:[{kept} + 8]",
    "mov rcx, gs:[{back}]",
    "xor eax, eax",
    "cmp qword ptr [rip + {net}], 0",
    "jne shortwire_raw_told",
    "jmp rcx",
    ".popsection",
    next = const NEXT,
    back = const BACK,
    kept = const KEPT,
    free = const FREE,
    child = const CHILD,
    net = sym dispatch::LEN,
    limit = sym fds::LIMIT,
    words = sym fds::WORDS,
    stack = const STACK,
    arch_prctl = const libc::SYS_arch_prctl,
    answer = sym answer,
);

unsafe extern "C" {
    fn shortwire_raw_entry();
    fn shortwire_raw_clone();
}

/// Where stubs jump to.
pub fn address() -> u64 {
    shortwire_raw_entry as *const () as u64
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
            block.next.set(block.first_stack());
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
        let (args, len) = (call.rdi as *const u64, call.rsi);
        // SAFETY: the program's own arguments, of the length that it says.
        if socket::faulty(args) || len < 64 || unsafe { *args.add(5) } != 0 {
            return call.done(-(libc::ENOSYS as isize));
        }
    }
    let has_stack = is_clone && call.rsi != 0;
    if is_clone && call.rdi & (THREAD | VFORK) == THREAD {
        let Some(child) = has_stack.then(Block::take).flatten() else {
            return call.done(-(libc::EAGAIN as isize));
        };
        // SAFETY: below the stack that the program gives its new thread.
        unsafe { (call.rsi as *mut usize).sub(1).write(core::ptr::from_ref(child).addr()) };
        child.back.set(call.rcx + 2);
        block.back.set(call.rcx + 2);
        block.child.set(child);
        child.blocks_signal.set(block.blocks_signal.get());
        call.rcx = shortwire_raw_clone as *const () as usize;
        return;
    }
    // Without its parent's memory the child of a namespace could be told from it, but not without
    // that by its number, which both see as their own.
    let is_shared = is_clone && call.rdi & THREAD != 0 || call.number() == libc::SYS_vfork;
    let is_apart = is_clone && call.rdi & libc::CLONE_NEWPID as usize != 0 || sys::getpid() == 1;
    if is_clone && is_shared && is_apart && !has_stack {
        call.rdi &= !(THREAD | VFORK);
    }
    // SAFETY: the arguments of such a call.
    if !has_stack && unsafe { fork::is_fork(call.number(), call.rdi, call.rsi) } {
        let result = fork_whole(call);
        return call.done(result);
    }
    // The child runs in this memory, or on another stack, and returns by itself: the call is made
    // where no stack of ours is in use.
    fork::before_vfork();
    block.may_be_child.set(is_shared || call.number() == libc::SYS_clone3);
    if dispatch::is_on() {
        call.rcx = dispatch::for_child(call.rcx);
    }
}

/// Answers a call, or leaves it to the `syscall` to which the entry then returns.
extern "C" fn answer(call: &mut Call) {
    let block = own();
    let number = call.number();
    // A vfork child runs with what its parent's thread has, but its descriptors are its own: what it
    // has put over a number here is not the connection that its parent has there. What it leaves open
    // its exec looks at.
    let is_child = block.may_be_child.get() && !fds::owner();
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
        libc::SYS_fork | libc::SYS_vfork | libc::SYS_clone | libc::SYS_clone3 => clone(block, call),
        libc::SYS_execve | libc::SYS_execveat => {
            fds::before_exec();
            // A vfork child does not come back from it, and its parent goes on with what it left.
            let left = if is_child { STACK } else { 0 };
            block.next.set(block.next.get() - left);
            let result = exec::exec(call);
            block.next.set(block.next.get() + left);
            fds::undo_exec();
            call.done(result);
        }
        // The block serves another thread when this one has left its stack.
        libc::SYS_exit => block.is_free.store(1, Release),
        libc::SYS_exit_group => fork::exit(call.rdi as c_int),
        libc::SYS_rt_sigaction => {
            let result = plain(call);
            kernel::handlers_changed();
            call.done(result);
        }
        // GS is ours.
        libc::SYS_arch_prctl => {
            const SET_GS: usize = 0x1001;
            if call.rdi == SET_GS {
                call.done(-(libc::EPERM as isize));
            }
        }
        _ => {
            // SAFETY: the program's own call.
            if let Some(result) = unsafe { front::answer(call) } {
                call.done(result);
            }
        }
    }
}
