//! x86-64: GS leads to a thread's block, as no program uses it; where stubs and new threads arrive, how the artefact
//! begins and leaves.

use core::arch::{asm, global_asm, naked_asm};
use core::mem::offset_of;

use sites::Call;
use smc::sys;
use socket::fds;

use crate::entry::{Block, STACKS, answer};
use crate::{dispatch, signals};

pub use crate::signals::action;

/// Of programs for this machine.
pub const MACHINE: u16 = 62;

/// What lies in front of the stacks, and at the far end of each.
pub const PAGE: usize = 4096;
/// One stack, with that page.
pub const STACK: usize = 128 << 10;

const OWN: usize = offset_of!(Block, own);
const NEXT: usize = offset_of!(Block, next);
const BACK: usize = offset_of!(Block, back);
/// See `dispatch.rs`.
pub const KEPT: usize = offset_of!(Block, kept);
const FREE: usize = offset_of!(Block, is_free);
const CHILD: usize = offset_of!(Block, child);

const SET_GS: usize = 0x1001;

#[unsafe(no_mangle)]
#[unsafe(naked)]
unsafe extern "C" fn _start() -> ! {
    naked_asm!(
        "xor ebp, ebp",
        "mov rdi, rsp",
        "lea rsi, [rip + __ehdr_start]",
        "lea rdx, [rip + _DYNAMIC]",
        "and rsp, -16",
        "call {begin}",
        "ud2",
        begin = sym crate::begin::begin,
    )
}

/// First of all, behind relocation.
pub fn begin() {}

/// Goes where a program begins.
///
/// # Safety
/// With its stack, as the kernel would leave it.
pub unsafe fn leave_to(stack: *const usize, first: usize) -> ! {
    // SAFETY: forwarded.
    unsafe {
        asm!(
            "mov rsp, {stack}",
            "xor edx, edx",
            "xor ebp, ebp",
            "jmp {first}",
            stack = in(reg) stack,
            first = in(reg) first,
            options(noreturn)
        )
    }
}

/// Ends the program.
pub fn trap() -> ! {
    // SAFETY: an instruction that does so.
    unsafe { asm!("ud2", options(noreturn)) }
}

/// The processor sees what was written there.
pub fn is_code(_at: usize, _len: usize) {}

/// This thread's block is that from here on.
pub fn set_own(block: &Block) -> bool {
    let at = core::ptr::from_ref(block).addr();
    // SAFETY: GS is ours.
    unsafe { sys::by_number(libc::SYS_arch_prctl, SET_GS, at, 0, 0, 0, 0) == 0 }
}

/// This thread's block.
pub fn own() -> *const Block {
    let at: *const Block;
    // SAFETY: GS leads to the block.
    unsafe { asm!("mov {}, gs:[{own}]", out(reg) at, own = const OWN, options(nostack, readonly)) };
    at
}

impl Block {
    /// None of its stacks is in use.
    pub fn has_left(&self) -> bool {
        self.next.get() == self.first_stack()
    }

    /// None of them is from here on.
    pub fn leave_all(&self) {
        self.next.set(self.first_stack());
    }

    /// Those below the stack that a thread's last call has arrived on are left for good: by handlers
    /// that have jumped out of calls. The block would else serve no other thread. What that call itself
    /// gives back is the last one then; no handler comes before it has, as threads end with signals
    /// blocked.
    pub fn leave_others(&self, _call: &Call) {
        self.next.set(self.first_stack() + STACK);
    }

    /// The stack that a call has arrived on counts as left, or no longer.
    pub fn leave(&self, _call: &Call, is_left: bool) {
        let next = self.next.get();
        self.next.set(if is_left { next - STACK } else { next + STACK });
    }
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
    // A signal's handler. The kernel begins it on a stack of ours if the signal has come in the middle of a call and the
    // program has given it none: it goes on to the program's own, where there is as much room as the program expects.
    ".globl shortwire_raw_handler",
    ".hidden shortwire_raw_handler",
    "shortwire_raw_handler:",
    "lea rax, [rip + {handlers}]",
    "mov ecx, edi",
    "mov rax, [rax + rcx * 8]",
    "mov r11, gs:[{own}]",
    "add r11, {page}",
    "mov rcx, rsp",
    "sub rcx, r11",
    "cmp rcx, {stacks}",
    "jae 6f",
    // The end of that stack, with the program's stack pointer right below, unless the signal has come in front of the
    // push that puts it there.
    "or rcx, {stack} - 1",
    "lea r11, [r11 + rcx + 1]",
    "cmp r11, [rdx + {rsp}]",
    "jne 7f",
    "mov rcx, [rdx + {r11}]",
    "mov [r11 - 8], rcx",
    "7:",
    "mov rcx, [r11 - 8]",
    "mov r11, rsp",
    // Behind what a function may keep below its stack.
    "lea rsp, [rcx - 128]",
    "and rsp, -16",
    "push r11",
    "push r11",
    "call rax",
    "mov rsp, [rsp]",
    "ret",
    "6:",
    "jmp rax",
    ".popsection",
    handlers = sym signals::HANDLERS,
    own = const OWN,
    page = const PAGE,
    stacks = const STACKS * STACK,
    rsp = const INTERRUPTED + 8 * libc::REG_RSP as usize,
    r11 = const INTERRUPTED + 8 * libc::REG_R11 as usize,
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
    fn shortwire_raw_handler();
}

/// Where in a `ucontext_t` the registers are of what was interrupted.
const INTERRUPTED: usize =
    offset_of!(libc::ucontext_t, uc_mcontext) + offset_of!(libc::mcontext_t, gregs);

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
    // SAFETY: below the stack that the program gives its new thread.
    unsafe { (call.given[1] as *mut usize).sub(1).write(core::ptr::from_ref(child).addr()) };
    child.back.set(call.next + 2);
    block.back.set(call.next + 2);
    block.child.set(child);
    call.next = shortwire_raw_clone as *const () as usize;
}

/// Flags of a clone that would set the register by which blocks are found.
pub const SETS_OURS: u64 = 0;

/// What a process that is made is to have for a thread pointer of its own, which the kernel is not to set: FS is
/// the program's.
pub fn take_pointer(_call: &mut Call) -> Option<usize> {
    None
}

/// See `take_pointer`.
pub fn set_pointer(_block: &Block, _pointer: usize) {}

/// The result of a call that is this machine's alone.
pub fn answer_own(call: &Call) -> Option<isize> {
    // GS is ours.
    let is_gs = call.number() == libc::SYS_arch_prctl && call.given[0] == SET_GS;
    is_gs.then_some(-(libc::EPERM as isize))
}

/// Calls that not every machine has.
pub use libc::{
    SYS_access, SYS_creat, SYS_dup2, SYS_epoll_create, SYS_epoll_wait, SYS_fork, SYS_open,
    SYS_poll, SYS_readlink, SYS_select, SYS_stat, SYS_vfork,
};
