//! Where Go's system calls arrive: on a stack of ours, and from there in the hooks.
//!
//! A goroutine's stack has no room for us, and nothing is written to it. Each thread has stacks of its
//! own, mapped when it first comes here: one for a call, and one for each signal handler that
//! interrupts it and makes calls itself. They are found through the thread pointer: Go keeps what it
//! knows of its threads behind it too, as libc does, so a thread without one cannot run Go.
//!
//! What the kernel keeps is kept: general registers, and the lower 128 bits of vector registers. The
//! program has no function that has something in the upper ones at a call (`sites::is_among_wide`).
#![allow(unsafe_code)]

use core::arch::global_asm;
use core::cell::Cell;
use core::ffi::{c_int, c_void};
use core::ptr::null;
use core::sync::atomic::{AtomicU32, Ordering::Relaxed};

use libc::pthread_key_t;
use sites::Call;
use smc::{home, sys};
use socket::{fds, fork, kernel, programs};

use crate::calls::fd::syscall;
use crate::{artefact, errno, set_errno};

/// One stack, with a page in front that ends the program rather than let it run into the next one.
const STACK: usize = 128 << 10;
/// Go's handlers hold off all signals, so there are two at most: a call, and a handler's.
const STACKS: usize = 4;
/// What is mapped for a thread: behind the last stack lies as much that nobody may touch. A vfork child
/// that is killed inside a call leaves its parent's thread one stack further up; after four of them
/// it would write over the memory of others instead of ending.
const MAPPED: usize = (STACKS + 1) * STACK;

/// What a thread has. It lies in each thread's own memory, and is all zero at first. A signal handler
/// that interrupts leaves `next` and `saving` as it found them.
#[repr(C)]
struct Thread {
    /// Where the next stack begins; 0: there are none yet.
    next: Cell<usize>,
    /// How much of `saved` is in use.
    saving: Cell<usize>,
    /// Where the stacks are.
    stacks: Cell<usize>,
    /// `begin` has seen them.
    has_begun: Cell<usize>,
    /// Registers of a call for which stacks are mapped, and of handlers that interrupt that.
    saved: [Cell<[usize; 8]>; 3],
    /// A vfork was left to the program, and this may be its child.
    may_be_child: Cell<bool>,
}

fn is_fork(call: &Call) -> bool {
    // SAFETY: the arguments of such a call.
    unsafe { fork::is_fork(call.number(), call.given[0], call.given[1]) }
}

/// Makes of a vfork whose child would have its parent's number in another namespace an ordinary
/// fork: that child could not be told from its parent, and would give back what is the parent's.
/// Go's child does nothing that it could not do in a copy of the memory.
fn keep_apart(call: &mut Call) {
    const BOTH: usize = (libc::CLONE_VM | libc::CLONE_VFORK) as usize;
    let is_new = call.given[0] & libc::CLONE_NEWPID as usize != 0;
    if call.number() == libc::SYS_clone
        && call.given[0] & BOTH == BOTH
        && call.given[1] == 0
        && (is_new || std::process::id() == 1)
    {
        call.given[0] &= !BOTH;
    }
}

global_asm!(
    ".pushsection .tbss.shortwire_go, \"awT\", @nobits",
    ".balign 16",
    ".type shortwire_go_thread, @object",
    "shortwire_go_thread:",
    ".zero {thread}",
    ".size shortwire_go_thread, {thread}",
    ".popsection",
    ".pushsection .text.shortwire_go, \"ax\", @progbits",
    ".balign 64",
    ".globl shortwire_go_entry",
    ".hidden shortwire_go_entry",
    ".type shortwire_go_entry, @function",
    "shortwire_go_entry:",
    socket::leave_unwatched!(),
    "mov r11, qword ptr [rip + shortwire_go_thread@GOTTPOFF]",
    "cmp qword ptr fs:[r11], 0",
    "je 2f",
    // Taken before it is looked at: a handler that comes between the two puts it back.
    "add qword ptr fs:[r11], {stack}",
    "mov r11, qword ptr fs:[r11]",
    sites::keep_registers!(),
    // Given back when it is no longer stood on.
    "mov r11, qword ptr [rip + shortwire_go_thread@GOTTPOFF]",
    "sub qword ptr fs:[r11], {stack}",
    "jmp rcx",
    // This thread's first: mapped by a call that needs no stack.
    "2:",
    "add qword ptr fs:[r11 + 8], 64",
    "add r11, qword ptr fs:[r11 + 8]",
    "mov fs:[r11 - 32], rax",
    "mov fs:[r11 - 24], rdi",
    "mov fs:[r11 - 16], rsi",
    "mov fs:[r11 - 8], rdx",
    "mov fs:[r11], r10",
    "mov fs:[r11 + 8], r8",
    "mov fs:[r11 + 16], r9",
    "mov fs:[r11 + 24], rcx",
    "mov eax, {mmap}",
    "xor edi, edi",
    "mov esi, {stacks}",
    "mov edx, {access}",
    "mov r10d, {flags}",
    "mov r8, -1",
    "xor r9d, r9d",
    "syscall",
    "mov r11, qword ptr [rip + shortwire_go_thread@GOTTPOFF]",
    "mov rcx, rax",
    "cmp rax, -4096",
    "ja 3f",
    // A handler may have been here in the meantime; then these are too many, once.
    "cmp qword ptr fs:[r11], 0",
    "jne 3f",
    "mov fs:[r11 + 16], rax",
    "mov fs:[r11], rax",
    "3:",
    "add r11, qword ptr fs:[r11 + 8]",
    "mov rax, fs:[r11 - 32]",
    "mov rdi, fs:[r11 - 24]",
    "mov rsi, fs:[r11 - 16]",
    "mov rdx, fs:[r11 - 8]",
    "mov r10, fs:[r11]",
    "mov r8, fs:[r11 + 8]",
    "mov r9, fs:[r11 + 16]",
    "cmp rcx, -4096",
    "ja 4f",
    "mov rcx, fs:[r11 + 24]",
    "mov r11, qword ptr [rip + shortwire_go_thread@GOTTPOFF]",
    "sub qword ptr fs:[r11 + 8], 64",
    "jmp shortwire_go_entry",
    // Without memory there is no call: made past us it could put a byte where none belongs.
    "4:",
    "mov rax, rcx",
    "mov rcx, fs:[r11 + 24]",
    "mov r11, qword ptr [rip + shortwire_go_thread@GOTTPOFF]",
    "sub qword ptr fs:[r11 + 8], 64",
    "add rcx, 2",
    "jmp rcx",
    ".size shortwire_go_entry, . - shortwire_go_entry",
    // This thread's memory, for functions.
    ".globl shortwire_go_own",
    ".hidden shortwire_go_own",
    ".type shortwire_go_own, @function",
    "shortwire_go_own:",
    "mov rax, fs:[0]",
    "add rax, qword ptr [rip + shortwire_go_thread@GOTTPOFF]",
    "ret",
    ".size shortwire_go_own, . - shortwire_go_own",
    ".popsection",
    thread = const size_of::<Thread>(),
    stack = const STACK,
    stacks = const MAPPED,
    mmap = const libc::SYS_mmap,
    access = const libc::PROT_READ | libc::PROT_WRITE,
    flags = const libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE,
    answer = sym answer,
    limit = sym fds::LIMIT,
    words = sym fds::WORDS,
);

unsafe extern "C" {
    fn shortwire_go_entry();
    fn shortwire_go_own() -> *const Thread;
}

/// Where stubs jump to.
pub fn address() -> u64 {
    shortwire_go_entry as *const () as u64
}

/// By its destructor a thread's stacks are given back.
static KEY: AtomicU32 = AtomicU32::new(0);

/// False if threads cannot be told of.
pub fn prepare() -> bool {
    let mut key: pthread_key_t = 0;
    // SAFETY: a function that stays loaded.
    let made = unsafe { libc::pthread_key_create(&raw mut key, Some(ended)) } == 0;
    KEY.store(key, Relaxed);
    made
}

/// The first time that this thread is here.
#[cold]
fn begin(thread: &Thread) {
    let stacks = thread.stacks.get();
    for i in 0..STACKS {
        // SAFETY: the far end of a stack, to which nobody has come yet.
        unsafe { libc::mprotect((stacks + i * STACK) as *mut c_void, 4096, libc::PROT_NONE) };
    }
    // SAFETY: behind the last stack, of the same mapping.
    unsafe { libc::mprotect((stacks + STACKS * STACK) as *mut c_void, STACK, libc::PROT_NONE) };
    // SAFETY: a key of ours. A value of one of the first 32 keys needs no memory of libc's.
    unsafe { libc::pthread_setspecific(KEY.load(Relaxed), stacks as *const c_void) };
    thread.has_begun.set(1);
}

/// A thread that ends stands on its own stack, and may yet come here once more.
extern "C" fn ended(stacks: *mut c_void) {
    let thread = own();
    thread.next.set(0);
    thread.has_begun.set(0);
    // SAFETY: mapped for this thread, which does not stand on them.
    unsafe { sys::unmap(stacks.cast(), MAPPED) };
}

fn own() -> &'static Thread {
    // SAFETY: no arguments.
    let own = unsafe { shortwire_go_own() };
    // SAFETY: this thread's, as long as it runs.
    unsafe { &*own }
}

/// Answers a call, or leaves it to the `syscall` to which the entry then returns.
extern "C" fn answer(call: &mut Call) {
    let thread = own();
    if thread.has_begun.get() == 0 {
        begin(thread);
    }
    let before = errno();
    let number = call.number();
    keep_apart(call);
    // A vfork child runs with what its parent's thread has, but its descriptors are its own: what it
    // has put over a number here is not the connection that its parent has there, and the word that
    // an exec failed would go to that one's peer. What it leaves open its exec looks at.
    let is_child = thread.may_be_child.get() && !home::is_owner();
    thread.may_be_child.set(is_child);
    if is_child && !matches!(number, libc::SYS_execve | libc::SYS_execveat) {
        return;
    }
    match number {
        libc::SYS_fork | libc::SYS_vfork | libc::SYS_clone | libc::SYS_clone3 if !is_fork(call) => {
            // The child runs in this memory, and returns first: the call is made where no stack of
            // ours is in use. A thread has its parent's descriptors.
            if number != libc::SYS_clone || call.given[0] & libc::CLONE_THREAD as usize == 0 {
                fork::before_vfork();
                thread.may_be_child.set(true);
            }
        }
        libc::SYS_execve | libc::SYS_execveat => {
            fds::before_exec();
            // A vfork child does not come back from it, and its parent goes on with what it left.
            let left = if is_child { STACK } else { 0 };
            thread.next.set(thread.next.get() - left);
            let [given @ .., _] = call.given;
            // SAFETY: the program's own call.
            let result = unsafe { programs::exec(artefact::path(), number, given, null()) };
            thread.next.set(thread.next.get() + left);
            fds::undo_exec();
            call.done(result);
        }
        libc::SYS_exit_group => fork::exit(call.given[0] as c_int),
        libc::SYS_rt_sigaction => {
            // SAFETY: the program's own call.
            let result = unsafe { sys::by_list(number, call.arguments()) };
            kernel::handlers_changed();
            call.done(result);
        }
        _ => {
            set_errno(0);
            let [a, b, c, d, e, f] = call.given;
            // SAFETY: the program's own call, by its number.
            let result = unsafe { syscall(number, a, b, c, d, e, f) } as isize;
            let failed = result == -1 && errno() != 0;
            call.done(if failed { -(errno() as isize) } else { result });
        }
    }
    set_errno(before);
}
