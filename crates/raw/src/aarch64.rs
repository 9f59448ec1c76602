//! arm64: the thread pointer leads to a thread's block. Programs set and read that register themselves, by
//! instructions that are made to jump as calls are (`sites::aarch64`), and what they set lies in the block.
//!
//! The kernel leaves a program all registers over a call, so a stub comes here with two of them that its function
//! does not need. One holds where it goes on, and with the other one alone a stack is found and taken: who has taken
//! one says so by a word at its top.

use core::arch::{asm, global_asm, naked_asm};
use core::mem::offset_of;
use core::sync::atomic::{AtomicUsize, Ordering::*};

use sites::Call;
use socket::fds;

use crate::entry::{Block, STACKS, answer};
use crate::signals;
pub use crate::signals::action;

/// Of programs for this machine.
pub const MACHINE: u16 = 183;

/// What lies in front of the stacks, and at the far end of each: the largest page that a kernel has.
pub const PAGE: usize = 64 << 10;
/// One stack, with that page.
pub const STACK: usize = 256 << 10;

/// What is at the top of a stack in use: registers from the lowest address on, as a [`Call`] begins; the
/// last two words are where it goes on, and the program's stack.
const FRAME: usize = 704;
/// Where in it the word is that says that it is in use.
const TAKEN: usize = FRAME - 16;
/// Where in it x15 and x18 are, and x28 and x29.
const PLATFORM: usize = 136;
const GOROUTINE: usize = 144;
const _: () = assert!(size_of::<Call>() == 64 && FRAME.is_multiple_of(16));
const _: () = assert!(offset_of!(Block, pointer) == sites::POINTER);

#[unsafe(no_mangle)]
#[unsafe(naked)]
unsafe extern "C" fn _start() -> ! {
    naked_asm!(
        "mov x29, xzr",
        "mov x30, xzr",
        "mov x0, sp",
        "adrp x1, __ehdr_start",
        "add x1, x1, :lo12:__ehdr_start",
        "adrp x2, _DYNAMIC",
        "add x2, x2, :lo12:_DYNAMIC",
        "bl {begin}",
        "brk #1",
        begin = sym crate::begin::begin,
    )
}

unsafe extern "C" {
    static __init_array_start: u8;
    static __init_array_end: u8;
}

/// First of all, behind relocation: what the compiler's own library has to know of the processor, whether it has
/// atomic instructions.
pub fn begin() {
    let (mut at, end) =
        ((&raw const __init_array_start).addr(), (&raw const __init_array_end).addr());
    while at < end {
        // SAFETY: the linker's list of functions.
        let function = unsafe { *(at as *const extern "C" fn()) };
        function();
        at += size_of::<usize>();
    }
}

/// Goes where a program begins.
///
/// # Safety
/// With its stack, as the kernel would leave it.
pub unsafe fn leave_to(stack: *const usize, first: usize) -> ! {
    // SAFETY: forwarded.
    unsafe {
        asm!(
            "mov sp, {stack}",
            "mov x0, xzr",
            "mov x29, xzr",
            "mov x30, xzr",
            "br {first}",
            stack = in(reg) stack,
            first = in(reg) first,
            options(noreturn)
        )
    }
}

/// Ends the program.
pub fn trap() -> ! {
    // SAFETY: an instruction that does so.
    unsafe { asm!("brk #1", options(noreturn)) }
}

/// The processor sees what was written there: its caches of data and of instructions do not know of each other.
pub fn is_code(at: usize, len: usize) {
    /// No processor's lines are shorter.
    const LINE: usize = 16;
    let lines = || (at / LINE * LINE..at + len).step_by(LINE);
    for line in lines() {
        // SAFETY: readable memory, which stays as it is.
        unsafe { asm!("dc cvau, {}", in(reg) line, options(nostack, preserves_flags)) };
    }
    // SAFETY: an order of accesses.
    unsafe { asm!("dsb ish", options(nostack, preserves_flags)) };
    for line in lines() {
        // SAFETY: as above.
        unsafe { asm!("ic ivau, {}", in(reg) line, options(nostack, preserves_flags)) };
    }
    // SAFETY: as above.
    unsafe { asm!("dsb ish", "isb", options(nostack, preserves_flags)) };
}

/// This thread's block is that from here on.
pub fn set_own(block: &Block) -> bool {
    // SAFETY: the program has not begun, and what is its own then leads elsewhere.
    unsafe {
        asm!("msr tpidr_el0, {}", in(reg) core::ptr::from_ref(block), options(nostack, preserves_flags))
    };
    true
}

/// This thread's block.
pub fn own() -> *const Block {
    let at: *const Block;
    // SAFETY: a register.
    unsafe { asm!("mrs {}, tpidr_el0", out(reg) at, options(nomem, nostack, preserves_flags)) };
    at
}

/// The word at the top of a stack, see `TAKEN`.
fn taken(top: usize) -> &'static AtomicUsize {
    // SAFETY: of a block's stacks, which are never unmapped.
    unsafe { &*((top - FRAME + TAKEN) as *const AtomicUsize) }
}

impl Block {
    fn tops(&self) -> impl Iterator<Item = usize> {
        let first = self.first_stack();
        (1..=STACKS).map(move |i| first + i * STACK)
    }

    /// None of its stacks is in use.
    pub fn has_left(&self) -> bool {
        self.tops().all(|top| taken(top).load(Acquire) == 0)
    }

    /// None of them is from here on.
    pub fn leave_all(&self) {
        self.tops()
            .map(taken)
            .filter(|word| word.load(Relaxed) != 0)
            .for_each(|word| word.store(0, Relaxed));
    }

    /// Those below the stack that a thread's last call has arrived on are left for good: by handlers
    /// that have jumped out of calls. The block would else serve no other thread.
    pub fn leave_others(&self, call: &Call) {
        let own = core::ptr::from_ref(call).addr() + FRAME;
        self.tops().filter(|top| *top != own).for_each(|top| taken(top).store(0, Relaxed));
    }

    /// The stack that a call has arrived on counts as left, or no longer.
    pub fn leave(&self, call: &Call, is_left: bool) {
        let top = core::ptr::from_ref(call).addr() + FRAME;
        taken(top).store(usize::from(!is_left), Relaxed);
    }
}

global_asm!(
    ".pushsection .text.shortwire_raw, \"ax\", @progbits",
    // The stack of this number, from the block on; goes on behind all of them if it is not in use.
    ".macro shortwire_raw_take number",
    "mrs x17, tpidr_el0",
    "add x17, x17, #(({page} + (\\number + 1) * {stack}) >> 12), lsl #12",
    "ldur x17, [x17, #-16]",
    "cbnz x17, 7f",
    "mrs x17, tpidr_el0",
    "add x17, x17, #(({page} + (\\number + 1) * {stack}) >> 12), lsl #12",
    // A handler that came just now has used it and left it again.
    "stur x16, [x17, #-16]",
    "b 8f",
    "7:",
    ".endm",
    ".macro shortwire_raw_vectors how",
    "\\how q0, q1, [x17, #176]",
    "\\how q2, q3, [x17, #208]",
    "\\how q4, q5, [x17, #240]",
    "\\how q6, q7, [x17, #272]",
    "\\how q8, q9, [x17, #304]",
    "\\how q10, q11, [x17, #336]",
    "\\how q12, q13, [x17, #368]",
    "\\how q14, q15, [x17, #400]",
    "\\how q16, q17, [x17, #432]",
    "\\how q18, q19, [x17, #464]",
    "\\how q20, q21, [x17, #496]",
    "\\how q22, q23, [x17, #528]",
    "\\how q24, q25, [x17, #560]",
    "\\how q26, q27, [x17, #592]",
    "\\how q28, q29, [x17, #624]",
    "\\how q30, q31, [x17, #656]",
    ".endm",
    ".macro shortwire_raw_general how",
    "\\how x2, x3, [x17, #24]",
    "\\how x4, x5, [x17, #40]",
    "\\how x6, x7, [x17, #64]",
    "\\how x9, x10, [x17, #80]",
    "\\how x11, x12, [x17, #96]",
    "\\how x13, x14, [x17, #112]",
    "\\how x15, x18, [x17, #128]",
    "\\how x28, x29, [x17, #144]",
    ".endm",
    // The program's handler of the signal in x0.
    ".macro shortwire_raw_find",
    "adrp x16, {handlers}",
    "add x16, x16, :lo12:{handlers}",
    "ldr x16, [x16, w0, uxtw #3]",
    ".endm",
    ".balign 64",
    ".globl shortwire_raw_entry",
    ".hidden shortwire_raw_entry",
    "shortwire_raw_entry:",
    "shortwire_raw_take 0",
    "shortwire_raw_take 1",
    "shortwire_raw_take 2",
    "shortwire_raw_take 3",
    // Handlers have left calls by jumps more often than there are stacks.
    "brk #2",
    "8:",
    "sub x17, x17, #{frame}",
    "stp x0, x1, [x17, #8]",
    "shortwire_raw_general stp",
    "str x8, [x17]",
    "str x16, [x17, #56]",
    "mrs x0, nzcv",
    "stp x30, x0, [x17, #160]",
    "mov x0, sp",
    "str x0, [x17, #{program}]",
    "ldr x0, [x17, #8]",
    socket::leave_unwatched!(),
    "shortwire_raw_vectors stp",
    // From here on a handler finds the program's registers by where the stack is.
    "mov sp, x17",
    "mov x0, x17",
    "mov x29, xzr",
    "bl {answer}",
    "mov x17, sp",
    "shortwire_raw_vectors ldp",
    "5:",
    "ldp x30, x0, [x17, #160]",
    "msr nzcv, x0",
    "shortwire_raw_general ldp",
    "ldr x0, [x17, #{program}]",
    "mov sp, x0",
    "ldr x8, [x17]",
    "ldr x16, [x17, #56]",
    "ldp x0, x1, [x17, #8]",
    // Given back when it is no longer stood on, and all is read that was there: another thread may take the block of
    // one that ends.
    "add x17, x17, #{taken}",
    "stlr xzr, [x17]",
    "br x16",
    // A new thread: made off our stacks, as both go on from here. The kernel gives it its thread pointer.
    ".globl shortwire_raw_clone",
    ".hidden shortwire_raw_clone",
    "shortwire_raw_clone:",
    "svc #0",
    "mrs x16, tpidr_el0",
    "tbnz x0, #63, 3f",
    "2:",
    "ldr x3, [x16, #{kept}]",
    "ldr x17, [x16, #{back}]",
    "br x17",
    "3:",
    "ldr x17, [x16, #{child}]",
    "add x17, x17, #{free}",
    "mov w3, #1",
    "stlr w3, [x17]",
    "b 2b",
    // A signal's handler: the program's own is told what the kernel would leave it of its registers, if the signal
    // has come in the middle of a call. Go keeps what it is doing in x28.
    ".globl shortwire_raw_handler",
    ".hidden shortwire_raw_handler",
    "shortwire_raw_handler:",
    "mrs x16, tpidr_el0",
    "add x16, x16, #({page} >> 12), lsl #12",
    "ldr x17, [sp, #{interrupted}]",
    "sub x17, x17, x16",
    "mov x9, #{stacks}",
    "cmp x17, x9",
    "b.hs 4f",
    "orr x17, x17, #({stack} - 1)",
    "add x17, x17, x16",
    "sub x17, x17, #({frame} - 1)",
    "ldr x18, [x17, #{platform}]",
    "ldr x28, [x17, #{goroutine}]",
    // Where the program has given it no stack, the kernel begins it on that of the call: it goes on to the program's
    // own, where there is as much room as the program expects.
    "mov x10, sp",
    "sub x10, x10, x16",
    "cmp x10, x9",
    "b.hs 4f",
    "shortwire_raw_find",
    "mov x9, sp",
    "ldr x10, [x17, #{program}]",
    "mov sp, x10",
    "stp x9, x30, [sp, #-16]!",
    "blr x16",
    "ldp x9, x30, [sp]",
    "mov sp, x9",
    "ret",
    "4:",
    "shortwire_raw_find",
    "br x16",
    ".popsection",
    page = const PAGE,
    stack = const STACK,
    stacks = const STACKS * STACK,
    frame = const FRAME,
    taken = const TAKEN,
    program = const FRAME - 8,
    platform = const PLATFORM,
    goroutine = const GOROUTINE,
    interrupted = const INTERRUPTED,
    kept = const offset_of!(Block, kept),
    back = const offset_of!(Block, back),
    child = const offset_of!(Block, child),
    free = const offset_of!(Block, is_free),
    handlers = sym signals::HANDLERS,
    limit = sym fds::LIMIT,
    words = sym fds::WORDS,
    answer = sym answer,
);

unsafe extern "C" {
    fn shortwire_raw_entry();
    fn shortwire_raw_clone();
    fn shortwire_raw_handler();
}

/// Where above a handler's stack the kernel puts the stack pointer of what was interrupted: a `siginfo_t`, and a
/// `ucontext_t` with its `sp`.
const INTERRUPTED: usize =
    128 + offset_of!(libc::ucontext_t, uc_mcontext) + offset_of!(libc::mcontext_t, sp);

/// What the kernel is told for a handler of the program's.
pub fn handler() -> usize {
    shortwire_raw_handler as *const () as usize
}

/// Where stubs jump to.
pub fn entry_address() -> u64 {
    shortwire_raw_entry as *const () as u64
}

/// Has a call make a thread with a block of its own.
pub fn make_thread(block: &Block, child: &Block, call: &mut Call) {
    let [flags, _, _, pointer, ..] = call.given;
    let is_set = flags & libc::CLONE_SETTLS as usize != 0;
    child.pointer.set(if is_set { pointer } else { block.pointer.get() });
    for one in [block, child] {
        one.kept[0].set(pointer);
        one.back.set(call.next + 4);
    }
    block.child.set(child);
    call.given[0] |= libc::CLONE_SETTLS as usize;
    call.given[3] = core::ptr::from_ref(child).addr();
    call.next = shortwire_raw_clone as *const () as usize;
}

/// Flags of a clone that would set the register by which blocks are found.
pub const SETS_OURS: u64 = libc::CLONE_SETTLS as u64;

/// What a process that is made is to have for a thread pointer of its own, which the kernel is not to set.
pub fn take_pointer(call: &mut Call) -> Option<usize> {
    let is_set = call.number() == libc::SYS_clone && call.given[0] as u64 & SETS_OURS != 0;
    call.given[0] &= if is_set { !(SETS_OURS as usize) } else { usize::MAX };
    is_set.then_some(call.given[3])
}

/// See `take_pointer`.
pub fn set_pointer(block: &Block, pointer: usize) {
    block.pointer.set(pointer);
}

/// The result of a call that is this machine's alone.
pub fn answer_own(_call: &Call) -> Option<isize> {
    None
}

/// Calls that other machines have: no number is negative.
pub const SYS_access: i64 = -1;
pub const SYS_creat: i64 = -2;
pub const SYS_dup2: i64 = -3;
pub const SYS_epoll_create: i64 = -4;
pub const SYS_epoll_wait: i64 = -5;
pub const SYS_fork: i64 = -6;
pub const SYS_open: i64 = -7;
pub const SYS_poll: i64 = -8;
pub const SYS_readlink: i64 = -9;
pub const SYS_select: i64 = -10;
pub const SYS_stat: i64 = -11;
pub const SYS_vfork: i64 = -12;
