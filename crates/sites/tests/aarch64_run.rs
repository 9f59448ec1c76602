//! Functions with calls, run as they are and with jumps in them: registers, flags and result must not differ, each
//! wanted call passes the entry once, and no other does. By user emulation where the machine is another.
#![cfg(target_arch = "aarch64")]
#![allow(unsafe_code)]

use core::arch::global_asm;

use sites::aarch64::{AREA_HEAD, Found, Kind, LONGEST_STUB, POINTER, area_head, find, jump, stub};
use sites::{NUMBERS, Plain, Wanted};

// Each function takes the address of 32 words: x0 to x30, of which x16 to x18 are of no meaning, and the flags.
global_asm!(
    ".pushsection .text",
    ".macro function name",
    ".balign 16",
    "\\name:",
    "stp x29, x30, [sp, #-112]!",
    "stp x19, x20, [sp, #16]",
    "stp x21, x22, [sp, #32]",
    "stp x23, x24, [sp, #48]",
    "stp x25, x26, [sp, #64]",
    "stp x27, x28, [sp, #80]",
    "str x0, [sp, #96]",
    "ldr x1, [x0, #248]",
    "msr nzcv, x1",
    "ldp x2, x3, [x0, #16]",
    "ldp x4, x5, [x0, #32]",
    "ldp x6, x7, [x0, #48]",
    "ldp x8, x9, [x0, #64]",
    "ldp x10, x11, [x0, #80]",
    "ldp x12, x13, [x0, #96]",
    "ldp x14, x15, [x0, #112]",
    "ldp x19, x20, [x0, #152]",
    "ldp x21, x22, [x0, #168]",
    "ldp x23, x24, [x0, #184]",
    "ldp x25, x26, [x0, #200]",
    "ldp x27, x28, [x0, #216]",
    "ldp x29, x30, [x0, #232]",
    "ldp x0, x1, [x0]",
    ".endm",
    ".macro finish name",
    "ldr x16, [sp, #96]",
    "stp x0, x1, [x16]",
    "mrs x17, nzcv",
    "str x17, [x16, #248]",
    "stp x2, x3, [x16, #16]",
    "stp x4, x5, [x16, #32]",
    "stp x6, x7, [x16, #48]",
    "stp x8, x9, [x16, #64]",
    "stp x10, x11, [x16, #80]",
    "stp x12, x13, [x16, #96]",
    "stp x14, x15, [x16, #112]",
    "stp x19, x20, [x16, #152]",
    "stp x21, x22, [x16, #168]",
    "stp x23, x24, [x16, #184]",
    "stp x25, x26, [x16, #200]",
    "stp x27, x28, [x16, #216]",
    "stp x29, x30, [x16, #232]",
    "ldp x19, x20, [sp, #16]",
    "ldp x21, x22, [sp, #32]",
    "ldp x23, x24, [sp, #48]",
    "ldp x25, x26, [sp, #64]",
    "ldp x27, x28, [sp, #80]",
    "ldp x29, x30, [sp], #112",
    "ret",
    "\\name\\()_end:",
    ".endm",
    // getpid, by a number that is known.
    "function run_known",
    "mov x8, #172",
    "svc #0",
    "finish run_known",
    // By one that is given.
    "function run_any",
    "nop",
    "svc #0",
    "finish run_any",
    // What precedes it is moved.
    "function run_go",
    "add x5, x5, #3",
    "svc #0",
    "cmn x0, #4095",
    "finish run_go",
    // The thread pointer: what is written is what is read.
    "function run_pointer",
    "msr tpidr_el0, x16",
    "msr tpidr_el0, x9",
    "mrs x3, tpidr_el0",
    "finish run_pointer",
    // An entry that counts, and has the call made.
    ".balign 16",
    "run_entry:",
    "stp x0, x1, [sp, #-16]!",
    "adrp x17, {counter}",
    "add x17, x17, :lo12:{counter}",
    "ldr x0, [x17]",
    "add x0, x0, #1",
    "str x0, [x17]",
    "ldp x0, x1, [sp], #16",
    "br x16",
    ".popsection",
    counter = sym COUNTER,
);

static mut COUNTER: u64 = 0;

unsafe extern "C" {
    static run_known: u8;
    static run_known_end: u8;
    static run_any: u8;
    static run_any_end: u8;
    static run_go: u8;
    static run_go_end: u8;
    static run_pointer: u8;
    static run_pointer_end: u8;
    fn run_entry();
}

fn counted() -> u64 {
    // SAFETY: one thread runs such functions.
    unsafe { (&raw const COUNTER).read_volatile() }
}

/// Code, and behind it the area.
struct Memory(*mut u8);

const MAPPED: usize = 8192;
const AREA: usize = 4096;

impl Memory {
    fn new() -> Memory {
        let access = libc::PROT_READ | libc::PROT_WRITE | libc::PROT_EXEC;
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
        // SAFETY: a new mapping.
        let at = unsafe { libc::mmap(core::ptr::null_mut(), MAPPED, access, flags, -1, 0) };
        assert_ne!(at, libc::MAP_FAILED, "memory to run code in");
        Memory(at.cast())
    }

    fn put(&self, at: usize, bytes: &[u8]) {
        assert!(at + bytes.len() <= MAPPED);
        // SAFETY: within the mapping, where nothing runs now.
        unsafe { core::ptr::copy_nonoverlapping(bytes.as_ptr(), self.0.add(at), bytes.len()) };
    }

    fn run(&self, mut state: [u64; 32]) -> [u64; 32] {
        let lines = || (0..MAPPED).step_by(16);
        for line in lines() {
            // SAFETY: a line of the mapping.
            unsafe { core::arch::asm!("dc cvau, {}", in(reg) self.0.add(line)) };
        }
        // SAFETY: an order.
        unsafe { core::arch::asm!("dsb ish") };
        for line in lines() {
            // SAFETY: as above.
            unsafe { core::arch::asm!("ic ivau, {}", in(reg) self.0.add(line)) };
        }
        // SAFETY: orders.
        unsafe { core::arch::asm!("dsb ish", "isb") };
        // SAFETY: a function of this kind was put there.
        let f: extern "C" fn(*mut u64) = unsafe { core::mem::transmute(self.0) };
        f(state.as_mut_ptr());
        state
    }

    fn base(&self) -> u64 {
        self.0 as u64
    }
}

fn code(from: *const u8, to: *const u8) -> Vec<u8> {
    // SAFETY: between two labels.
    unsafe { core::slice::from_raw_parts(from, to as usize - from as usize) }.to_vec()
}

struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0
    }

    fn state(&mut self) -> [u64; 32] {
        let mut state: [u64; 32] = core::array::from_fn(|_| self.next());
        state[31] &= 0xf000_0000;
        state
    }
}

/// What a function with jumps in it does to a state, and how often the entry was passed.
fn patched(memory: &Memory, code: &[u8], wanted: &Wanted, state: [u64; 32]) -> ([u64; 32], u64) {
    let area = memory.base() + AREA as u64;
    let entry = run_entry as *const () as u64;
    memory.put(0, code);
    memory.put(AREA, &area_head(entry, wanted));
    let all: Vec<_> = find(code, wanted).collect();
    for (i, (_, found)) in all.into_iter().enumerate() {
        let Found::Site(window) = found else { continue };
        let at = AREA + AREA_HEAD + i * LONGEST_STUB;
        let (mut out, mut jumps) = ([0; LONGEST_STUB], [0; 4]);
        let address = memory.base() + at as u64;
        let written =
            stub(code, memory.base(), &window, area, address, Plain::InPlace, &mut out).unwrap();
        memory.put(at, &out[..written.len]);
        jump(memory.base(), &window, address, &mut jumps).unwrap();
        memory.put(window.start, &jumps);
    }
    let before = counted();
    let after = memory.run(state);
    (after, counted() - before)
}

#[test]
fn patched_and_unpatched_do_the_same() {
    let (memory, mut random) = (Memory::new(), Random(0x1234_5678_9abc_def1));
    // SAFETY: labels.
    let functions = unsafe {
        [
            (code(&raw const run_known, &raw const run_known_end), 4, true),
            (code(&raw const run_any, &raw const run_any_end), 0, false),
            (code(&raw const run_go, &raw const run_go_end), 4, false),
        ]
    };
    for round in 0..2000 {
        let (code, _, is_known) = &functions[round % 3];
        let mut state = random.state();
        let number = if *is_known { 172 } else { [172, 173, 178, 511, 512, 600][round / 3 % 6] };
        // The kernel looks at the lower half alone.
        state[8] = state[8] << 32 | number;
        let mut wanted: Wanted = [false; NUMBERS];
        wanted.iter_mut().for_each(|wanted| *wanted = random.next() % 2 == 0);
        let is_wanted = wanted.get(number as usize).is_some_and(|wanted| *wanted);
        memory.put(0, code);
        let plain = memory.run(state);
        let (after, passed) = patched(&memory, code, &wanted, state);
        assert_eq!(plain, after, "round {round}, number {number}");
        assert_eq!(passed, u64::from(is_wanted), "round {round}, number {number}");
    }
    for (code, before, _) in functions {
        let found: Vec<_> = find(&code, &[true; NUMBERS]).collect();
        let [(at, Found::Site(window))] = found[..] else { panic!("{found:?}") };
        assert!(matches!(window.kind, Kind::Call(_)));
        assert_eq!(at - window.start, before);
    }
}

/// Behind the test's own thread pointer a word is free that the C library has for later use.
#[test]
fn the_thread_pointer_is_the_programs() {
    let (memory, mut random) = (Memory::new(), Random(0x9e37_79b9_7f4a_7c15));
    // SAFETY: labels.
    let code = unsafe { code(&raw const run_pointer, &raw const run_pointer_end) };
    let pointer = || {
        let at: u64;
        // SAFETY: a register.
        unsafe { core::arch::asm!("mrs {}, tpidr_el0", out(reg) at) };
        at
    };
    let (before, word) = (pointer(), (pointer() + POINTER as u64) as *mut u64);
    // SAFETY: as above.
    let kept = unsafe { word.read_volatile() };
    for _ in 0..100 {
        let state = random.state();
        let (after, _) = patched(&memory, &code, &[true; NUMBERS], state);
        let mut expected = state;
        expected[3] = state[9];
        assert_eq!(after[..16], expected[..16]);
        assert_eq!(after[19..], expected[19..]);
        assert_eq!(pointer(), before);
        // SAFETY: as above.
        assert_eq!(unsafe { word.read_volatile() }, state[9]);
    }
    // SAFETY: as above.
    unsafe { word.write_volatile(kept) };
}
