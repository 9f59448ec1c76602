//! The net under a program with system calls that cannot be told, or cannot be made to jump: the
//! kernel's Syscall User Dispatch sends each call that still comes from the program's code to a signal
//! handler, and that to the entry, as a jump would have. It costs microseconds for each such call, and
//! tens of nanoseconds for any, so it is used only where the program could not be followed otherwise.
//!
//! Calls from below `FROM`, where the program is, are sent here; what it maps later, library, stubs and
//! vDSO lie above. The signal must never be blocked, or the kernel ends the program: it is taken out of
//! each mask.

use alloc::boxed::Box;
use alloc::vec::Vec;
use core::arch::global_asm;
use core::cell::UnsafeCell;
use core::ffi::c_int;
use core::sync::atomic::{AtomicPtr, AtomicU64, AtomicUsize, Ordering::*};

use sites::{AREA_HEAD, Call, Found, LONGEST_STUB, NUMBERS, OF_PROGRAMS, Plain, Wanted};
use smc::sys;
use socket::faulty;

use crate::call::plain;
use crate::candidates::{self, Candidate};
use crate::patch::{self, Area, CODE, Code, protect, put, put_jump};
use crate::signals::{self, Action};
use crate::{arch, entry, front};

/// Those that are to be seen: also those that block signals.
static WANTED: Wanted = {
    let mut wanted = OF_PROGRAMS;
    wanted[libc::SYS_rt_sigprocmask as usize] = true;
    wanted[libc::SYS_rt_sigsuspend as usize] = true;
    wanted[IO_PGETEVENTS as usize] = true;
    wanted
};

/// All jump that can, as each that does not costs a signal: also the return from a handler, although
/// debuggers know that by its bytes. It would need twice the room on an alternate stack.
static MADE_TO_JUMP: Wanted = [true; NUMBERS];

/// Where calls are made from that the kernel lets pass, and how much that is; 0: all.
static FROM: AtomicUsize = AtomicUsize::new(0);
pub static LEN: AtomicUsize = AtomicUsize::new(0);
const TOP: usize = 1 << 47;

/// `libc` does not name it.
const IO_PGETEVENTS: i64 = 333;

const SET_DISPATCH: usize = 59;
const ON: usize = 1;
/// `si_code` of a call that was sent here.
const USER_DISPATCH: c_int = 2;
const SIGNAL: u64 = 1 << (libc::SIGSYS - 1);

/// How a call of the program's is made in its stead.
#[derive(Clone, Copy)]
struct Place {
    /// Behind the instruction in the program; 0 if a jump stands there.
    end: usize,
    /// An instruction of ours, with a jump back behind it.
    plain: usize,
    /// The same for a call that makes a process, which is told of the net first.
    child: usize,
}

/// By where they end.
static PLACES: AtomicPtr<Vec<Place>> = AtomicPtr::new(core::ptr::null_mut());

fn places() -> &'static [Place] {
    let at = PLACES.load(Acquire);
    // SAFETY: null, or a list that stays.
    unsafe { at.as_ref() }.map_or(&[], |places| places)
}

/// Whether the kernel may have one.
pub const IS_THERE: bool = true;

/// Whether the net is there.
pub fn is_on() -> bool {
    LEN.load(Relaxed) > 0
}

/// Room for the two ways of a `Place`.
const TAIL: usize = 32;

/// A place for a program that may be anywhere, below all that is mapped otherwise.
pub fn low_place() -> usize {
    const LOWEST: usize = 64 << 30;
    const PAGES: usize = (16 << 40) / 4096;
    let mut random = 0usize;
    let (at, len) = (&raw mut random as usize, size_of::<usize>());
    // SAFETY: a live word. Without an answer it is a place that can be told.
    unsafe { sys::by_number(libc::SYS_getrandom, at, len, 0, 0, 0, 0) };
    LOWEST + random % PAGES * 4096
}

/// Puts jumps in the code of a program that has no loader, and the net under the rest of what lies below
/// `end`. False if that cannot be done: the program is then not to be started from this memory.
pub fn put_under<'a>(code: impl Iterator<Item = (Code, &'a Vec<Candidate>)>, end: usize) -> bool {
    let mut all = Vec::new();
    for (code, candidates) in code {
        let Some(area) = put_in(&code, candidates, &mut all) else { return false };
        if area.at < end {
            return false;
        }
    }
    all.sort_unstable_by_key(|place: &Place| place.end);
    PLACES.store(Box::into_raw(Box::new(all)), Release);
    FROM.store(end, Relaxed);
    LEN.store(TOP - end, Relaxed);
    listen() && here()
}

fn put_in(code: &Code, candidates: &[Candidate], all: &mut Vec<Place>) -> Option<Area> {
    let found: Vec<_> = candidates::judge(code.bytes(), candidates, &MADE_TO_JUMP).collect();
    const SLOT: usize = LONGEST_STUB + TAIL;
    let area = Area::near(code, AREA_HEAD + found.len() * SLOT)?;
    put(area.at, &sites::area_head(patch::entry(), &WANTED));
    put(area.at + 8, &(shortwire_raw_told as *const () as u64).to_le_bytes());
    code.protect(libc::PROT_READ | libc::PROT_WRITE)?;
    let mut last = 0;
    for (i, (at, found)) in found.into_iter().enumerate() {
        let slot = area.at + AREA_HEAD + i * SLOT;
        let end = code.at + at + 2;
        let (mut plain, mut is_left) = (slot, true);
        // What is moved for one call is not there to be moved for the next one.
        if let Found::Site(window) = found
            && window.start >= last
        {
            last = window.end;
            // The net lets pass what is made above the program alone.
            plain = put_jump(code, &window, area.at, slot, Plain::InStub)?;
            // The instruction behind a jump in the place of its number may be jumped to by itself.
            is_left = !window.replaced().contains(&at);
        } else {
            put(slot, &[0x0f, 0x05, 0xe9]); // syscall; jmp
            put(slot + 3, &distance(slot + 7, end)?);
        }
        let child = slot + LONGEST_STUB;
        put(child, &[0x0f, 0x05, 0x48, 0x8d, 0x0d]); // syscall; lea plain + 2(%rip), %rcx
        put(child + 5, &distance(child + 9, plain + 2)?);
        put(child + 9, &[0x48, 0x85, 0xc0, 0x75, 6, 0xff, 0x25]); // test %rax, %rax; jnz; jmp *told(%rip)
        put(child + 16, &distance(child + 20, area.at + 8)?);
        put(child + 20, &[0xff, 0xe1]); // jmp *%rcx
        all.push(Place { end: if is_left { end } else { 0 }, plain, child });
    }
    protect((area.at, area.len), CODE)?;
    code.protect(CODE)?;
    Some(area)
}

fn distance(from: usize, to: usize) -> Option<[u8; 4]> {
    i32::try_from(to.wrapping_sub(from).cast_signed()).ok().map(i32::to_le_bytes)
}

global_asm!(
    ".pushsection .text.shortwire_raw, \"ax\", @progbits",
    // A new thread or process: the kernel has put no net under it. Goes on at rcx.
    ".globl shortwire_raw_told",
    ".hidden shortwire_raw_told",
    "shortwire_raw_told:",
    "mov gs:[{kept}], rdi",
    "mov gs:[{kept} + 8], rsi",
    "mov gs:[{kept} + 16], rdx",
    "mov gs:[{kept} + 24], r10",
    "mov gs:[{kept} + 32], r8",
    "mov gs:[{kept} + 40], rcx",
    "mov edi, {set}",
    "mov esi, {on}",
    "mov rdx, [rip + {from}]",
    "mov r10, [rip + {len}]",
    "xor r8d, r8d",
    "mov eax, {prctl}",
    "syscall",
    // A filter of the program's may refuse that: what passes unseen would put wrong bytes on connections.
    "test rax, rax",
    "jz 2f",
    "ud2",
    "2:",
    "mov rdi, gs:[{kept}]",
    "mov rsi, gs:[{kept} + 8]",
    "mov rdx, gs:[{kept} + 16]",
    "mov r10, gs:[{kept} + 24]",
    "mov r8, gs:[{kept} + 32]",
    "mov rcx, gs:[{kept} + 40]",
    "xor eax, eax",
    "jmp rcx",
    ".globl shortwire_raw_return",
    ".hidden shortwire_raw_return",
    "shortwire_raw_return:",
    "mov eax, {sigreturn}",
    "syscall",
    ".popsection",
    kept = const arch::KEPT,
    set = const SET_DISPATCH,
    on = const ON,
    from = sym FROM,
    len = sym LEN,
    prctl = const libc::SYS_prctl,
    sigreturn = const libc::SYS_rt_sigreturn,
);

unsafe extern "C" {
    fn shortwire_raw_told();
    fn shortwire_raw_return();
}

/// Puts the net under this thread.
pub fn here() -> bool {
    let (from, len) = (FROM.load(Relaxed), LEN.load(Relaxed));
    // SAFETY: calls of ours come from above.
    unsafe { sys::by_number(libc::SYS_prctl, SET_DISPATCH, ON, from, len, 0, 0) == 0 }
}

/// In the child of a fork.
pub fn after_fork_child() {
    if is_on() && !here() {
        sys::exit(126);
    }
}

/// Where a call that makes a process, and would be made at `plain`, is made instead.
pub fn for_child(plain: usize) -> usize {
    places().iter().find(|place| place.plain == plain).map_or(plain, |place| place.child)
}

/// What the program has asked for the signal to do.
struct Own(UnsafeCell<Action>);
// SAFETY: words, of which each is written as a whole.
unsafe impl Sync for Own {}
static OWN: Own = Own(UnsafeCell::new(Action { handler: 0, flags: 0, restorer: 0, mask: 0 }));
/// For which signals it has asked that a handler blocks ours.
static BLOCKED_IN: AtomicU64 = AtomicU64::new(0);

/// Has calls that are sent arrive.
fn listen() -> bool {
    const RESTORER: u64 = 0x0400_0000;
    let flags = RESTORER | (libc::SA_SIGINFO | libc::SA_ONSTACK) as u64;
    let restorer = shortwire_raw_return as *const () as usize;
    let action = Action { handler: arrived as *const () as usize, flags, restorer, mask: !0 };
    let (number, at) = (libc::SIGSYS as usize, &raw const action as usize);
    // SAFETY: a live structure.
    let r = unsafe { sys::by_number(libc::SYS_rt_sigaction, number, at, 0, 8, 0, 0) };
    r == 0 && set_mask(libc::SIG_UNBLOCK, SIGNAL)
}

fn set_mask(how: c_int, mask: u64) -> bool {
    let at = &raw const mask as usize;
    // SAFETY: a live word.
    unsafe { sys::by_number(libc::SYS_rt_sigprocmask, how as usize, at, 0, 8, 0, 0) == 0 }
}

type Handler = unsafe extern "C" fn(c_int, *mut libc::siginfo_t, *mut libc::ucontext_t);

/// The handler: has the program go on at the entry, or where its call is made.
unsafe extern "C" fn arrived(
    number: c_int,
    info: *mut libc::siginfo_t,
    context: *mut libc::ucontext_t,
) {
    const X86_64: u32 = 0xc000_003e;
    /// `siginfo_t` of this signal.
    #[repr(C)]
    struct Sent {
        _signal: c_int,
        _errno: c_int,
        code: c_int,
        _address: usize,
        _call: c_int,
        architecture: u32,
    }
    // SAFETY: the kernel's.
    let sent = unsafe { &*info.cast::<Sent>() };
    // SAFETY: the kernel's, for this handler to change.
    let at = unsafe { &mut *context };
    if sent.code != USER_DISPATCH {
        // SAFETY: forwarded.
        return unsafe { for_program(number, info, context) };
    }
    let registers = &mut at.uc_mcontext.gregs;
    let now = *registers;
    let register = |i: c_int| now[i as usize] as usize;
    let call = register(libc::REG_RAX);
    let end = register(libc::REG_RIP);
    let places = places();
    if let Ok(i) = places.binary_search_by_key(&end, |place| place.end) {
        let plain = places[i].plain as i64;
        if WANTED.get(call as u32 as usize).is_some_and(|wanted| *wanted) {
            registers[libc::REG_RCX as usize] = plain;
            registers[libc::REG_RIP as usize] = patch::entry() as i64;
        } else {
            registers[libc::REG_RIP as usize] = plain;
        }
        return;
    }
    // Of code that the program has written itself or mapped down here, or by the way of 32-bit programs.
    let [a, b, c] = [libc::REG_RDI, libc::REG_RSI, libc::REG_RDX].map(register);
    let [d, e, f] = [libc::REG_R10, libc::REG_R8, libc::REG_R9].map(register);
    let is_whole = sent.architecture == X86_64;
    let result = match i64::from(call as u32) {
        // These would come back here, in the middle of a handler.
        libc::SYS_clone | libc::SYS_clone3 | libc::SYS_fork | libc::SYS_vfork => {
            -(libc::ENOSYS as isize)
        }
        // SAFETY: the program's own call.
        number if is_whole => unsafe { sys::by_number(number, a, b, c, d, e, f) },
        _ => -(libc::ENOSYS as isize),
    };
    registers[libc::REG_RAX as usize] = result as i64;
}

/// The signal has come for another reason: as the program has asked for.
unsafe fn for_program(number: c_int, info: *mut libc::siginfo_t, context: *mut libc::ucontext_t) {
    // SAFETY: see `Own`.
    let own = unsafe { *OWN.0.get() };
    match own.handler {
        libc::SIG_DFL => {
            let none = Action { handler: libc::SIG_DFL, flags: 0, restorer: 0, mask: 0 };
            let (number, at) = (number as usize, &raw const none as usize);
            // SAFETY: a live structure.
            unsafe { sys::by_number(libc::SYS_rt_sigaction, number, at, 0, 8, 0, 0) };
            // SAFETY: integers.
            let thread = unsafe { sys::by_number(libc::SYS_gettid, 0, 0, 0, 0, 0, 0) } as usize;
            let process = sys::getpid() as usize;
            // SAFETY: integers. It ends the program when this handler is left.
            unsafe { sys::by_number(libc::SYS_tgkill, process, thread, number, 0, 0, 0) };
        }
        libc::SIG_IGN => {}
        handler => {
            // SAFETY: the kernel's.
            let mask = unsafe { &raw const (*context).uc_sigmask };
            // SAFETY: as above; its first word is all that the kernel has.
            let before = unsafe { *mask.cast::<u64>() };
            set_mask(libc::SIG_SETMASK, (before | own.mask) & !SIGNAL);
            // SAFETY: what the program has named for it.
            let handler = unsafe { core::mem::transmute::<usize, Handler>(handler) };
            // SAFETY: as the kernel would call it.
            unsafe { handler(number, info, context) };
        }
    }
}

/// The result of a call that could block the signal, or take its handler; None of any other. A vfork
/// child's asks for nothing of its parent's.
pub fn answer(call: &Call, is_child: bool) -> Option<isize> {
    match call.number() {
        libc::SYS_rt_sigaction if call.given[3] == 8 => Some(action(call, is_child)),
        libc::SYS_rt_sigprocmask if call.given[3] == 8 => Some(mask(call, is_child)),
        libc::SYS_prctl if call.given[0] == SET_DISPATCH => Some(-(libc::EINVAL as isize)),
        libc::SYS_rt_sigsuspend => waits(call, 0, is_child),
        libc::SYS_ppoll => waits(call, 3, is_child),
        libc::SYS_epoll_pwait | libc::SYS_epoll_pwait2 => waits(call, 4, is_child),
        libc::SYS_pselect6 | IO_PGETEVENTS => waits_by_pair(call, is_child),
        _ => None,
    }
}

/// The same of one whose argument of this number is a mask for as long as it waits.
fn waits(call: &Call, i: usize, is_child: bool) -> Option<isize> {
    let mut given = call.arguments();
    let mask = read(given[i] as *const u64).filter(|mask| mask & SIGNAL != 0)? & !SIGNAL;
    given[i] = &raw const mask as usize;
    Some(made_with(call, given, is_child))
}

/// The same of one whose last argument is a pair: the address of the mask, and a length.
fn waits_by_pair(call: &Call, is_child: bool) -> Option<isize> {
    let mut given = call.arguments();
    let [at, len] = read(given[5] as *const [usize; 2])?;
    let mask = read(at as *const u64).filter(|mask| mask & SIGNAL != 0)? & !SIGNAL;
    let pair = [&raw const mask as usize, len];
    given[5] = &raw const pair as usize;
    Some(made_with(call, given, is_child))
}

fn made_with(call: &Call, given: [usize; 6], is_child: bool) -> isize {
    let call = call.with(given);
    if is_child {
        return plain(&call);
    }
    // SAFETY: the program's own call, of a mask without the signal.
    unsafe { front::answer(&call) }.unwrap_or_else(|| plain(&call))
}

fn read<T: Copy>(at: *const T) -> Option<T> {
    // SAFETY: the program's own.
    (!faulty(at)).then(|| unsafe { *at })
}

fn action(call: &Call, is_child: bool) -> isize {
    let [number, asked, old, ..] = call.arguments();
    let wanted = read(asked as *const Action);
    if asked != 0 && wanted.is_none() || old != 0 && faulty(old as *const Action) {
        return plain(call);
    }
    if number == libc::SIGSYS as usize {
        // SAFETY: see `Own`.
        let was = unsafe { *OWN.0.get() };
        if let Some(wanted) = wanted.filter(|_| !is_child) {
            // SAFETY: as above.
            unsafe { *OWN.0.get() = wanted };
        }
        if old != 0 {
            // SAFETY: the program's own.
            unsafe { *(old as *mut Action) = was };
        }
        return 0;
    }
    let bit = if number < 64 { 1 << number } else { 0 };
    let had = BLOCKED_IN.load(Relaxed) & bit != 0;
    let mut given = call.arguments();
    let given_action = wanted.map(|wanted| Action { mask: wanted.mask & !SIGNAL, ..wanted });
    if let Some(action) = &given_action {
        given[1] = core::ptr::from_ref(action) as usize;
    }
    // Of a mask without the signal. A vfork child's handlers are not those of its parent.
    let call = call.with(given);
    let result = if is_child { plain(&call) } else { signals::action(&call) };
    if result == 0 && old != 0 && had {
        // SAFETY: the program's own.
        unsafe { (*(old as *mut Action)).mask |= SIGNAL };
    }
    if let Some(wanted) = wanted.filter(|_| result == 0 && !is_child) {
        match wanted.mask & SIGNAL {
            0 => BLOCKED_IN.fetch_and(!bit, Relaxed),
            _ => BLOCKED_IN.fetch_or(bit, Relaxed),
        };
    }
    socket::kernel::handlers_changed();
    result
}

fn mask(call: &Call, is_child: bool) -> isize {
    let [how, asked, old, ..] = call.arguments();
    let wanted = read(asked as *const u64);
    if asked != 0 && wanted.is_none() || old != 0 && faulty(old as *const u64) {
        return plain(call);
    }
    let is_unblocked = how == libc::SIG_UNBLOCK as usize;
    let mut given = call.arguments();
    let given_mask = wanted.map(|mask| if is_unblocked { mask } else { mask & !SIGNAL });
    if let Some(mask) = &given_mask {
        given[1] = core::ptr::from_ref(mask) as usize;
    }
    // SAFETY: the program's own call, of a mask without the signal.
    let result = unsafe { sys::by_list(call.number(), given) };
    if result != 0 {
        return result;
    }
    // What the program believes of it.
    let believed = entry::blocks_signal();
    if old != 0 && believed.get() {
        // SAFETY: the program's own.
        unsafe { *(old as *mut u64) |= SIGNAL };
    }
    if let Some(wanted) = wanted.filter(|_| !is_child) {
        let has = wanted & SIGNAL != 0;
        match how as c_int {
            libc::SIG_BLOCK => believed.set(believed.get() | has),
            libc::SIG_UNBLOCK => believed.set(believed.get() & !has),
            _ => believed.set(has),
        }
    }
    result
}
