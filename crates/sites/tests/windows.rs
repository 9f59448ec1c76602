//! Windows at random, run as they are and patched: registers, flow and result must not differ, each
//! wanted call passes the entry once, and no other does.
#![cfg(target_arch = "x86_64")]
#![allow(unsafe_code)]

use sites::{
    AREA_HEAD, Flow, Found, Kind, LONGEST_STUB, NUMBERS, Plain, VOTES, Wanted, Window, area_head,
    decode, judge, jump, stub, votes,
};

const WINDOWS: usize = 10_000;
/// Code, and behind it the area of stubs; entries are at its end.
const MAPPED: usize = 8192;
const AREA: usize = 4096;
const ENTRY: usize = MAPPED - 64;
const COUNTER: usize = MAPPED - 8;

struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0
    }

    fn below(&mut self, n: usize) -> usize {
        (self.next() % n as u64) as usize
    }

    fn of<T: Copy>(&mut self, list: &[T]) -> T {
        list[self.below(list.len())]
    }
}

/// Instructions that may stand anywhere: of registers alone, without rsp, and balanced.
const ANY: &[&[u8]] = &[
    &[0x90],
    &[0x66, 0x90],
    &[0x89, 0xfb],                   // mov %edi, %ebx
    &[0x48, 0x89, 0xd6],             // mov %rdx, %rsi
    &[0x4d, 0x89, 0xc1],             // mov %r8, %r9
    &[0x31, 0xd2],                   // xor %edx, %edx
    &[0x45, 0x31, 0xd2],             // xor %r10d, %r10d
    &[0x48, 0x8d, 0x5b, 0x10],       // lea 16(%rbx), %rbx
    &[0x48, 0x85, 0xff],             // test %rdi, %rdi
    &[0x49, 0xff, 0xc4],             // inc %r12
    &[0x55, 0x5d],                   // push %rbp; pop %rbp
    &[0x41, 0x54, 0x41, 0x5d],       // push %r12; pop %r13
    &[0xbe, 0x0f, 0x05, 0x00, 0x00], // mov $0x50f, %esi: the two bytes, and no syscall
    &[0x0f, 0xb6, 0xf2],             // movzx %dl, %esi
    &[0x49, 0x81, 0xc6, 1, 2, 3, 0], // add $0x30201, %r14
    &[0x66, 0x0f, 0xef, 0xc0],       // pxor %xmm0, %xmm0
];
/// Those that programs put behind a call.
const BEHIND: &[&[u8]] = &[
    &[0x48, 0x3d, 0x01, 0xf0, 0xff, 0xff], // cmp $-4095, %rax
    &[0x3d, 0x00, 0xf0, 0xff, 0xff],       // cmp $-4096, %eax
    &[0x48, 0x85, 0xc0],                   // test %rax, %rax
    &[0x48, 0x89, 0xc2],                   // mov %rax, %rdx
    &[0x48, 0x98],                         // cdqe
    &[0xf7, 0xd8],                         // neg %eax
    &[0x50, 0x5b],                         // push %rax; pop %rbx
    &[0x89, 0xc7],                         // mov %eax, %edi
];

struct Made {
    code: Vec<u8>,
    /// Where the `syscall` is.
    at: usize,
    /// Where jumps lead.
    targets: Vec<usize>,
    number: u32,
}

/// Registers in the order of their numbers, without rsp.
const REGISTERS: [u8; 15] = [0, 1, 2, 3, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15];

/// `fn(state)`: loads all registers from it, runs a call among instructions at random, and puts all
/// registers back.
fn make(random: &mut Random) -> Made {
    let mut code = vec![0x53, 0x55, 0x41, 0x54, 0x41, 0x55, 0x41, 0x56, 0x41, 0x57, 0x57];
    // rdi, in which the state is, comes last.
    for register in REGISTERS.into_iter().filter(|r| *r != 7).chain([7]) {
        let high = u8::from(register > 7);
        code.extend([0x48 | high << 2, 0x8b, 0x47 | (register & 7) << 3, register * 8]);
    }
    let mut targets = Vec::new();
    let mut jumps = Vec::new();
    for _ in 0..20 + random.below(5) {
        code.extend(random.of(ANY));
    }
    let number = random.of(&[39, 102, 107, 110, 186, 511, 600]);
    match random.below(4) {
        0 => {
            code.extend([0x48, 0xc7, 0xc0]);
            code.extend(u32::to_le_bytes(number));
        }
        3 => {
            code.extend([0xb8]);
            code.extend(u32::to_le_bytes(number));
        }
        1 => {
            code.extend([0x41, 0xbf]); // mov $number, %r15d
            code.extend(u32::to_le_bytes(number));
            if random.below(2) == 0 {
                code.extend(random.of(ANY));
            }
            code.extend([0x44, 0x89, 0xf8]); // mov %r15d, %eax
        }
        _ => {
            code.extend([0xb8]);
            code.extend(u32::to_le_bytes(number));
            code.extend(random.of(ANY));
        }
    }
    let at = code.len();
    code.extend([0x0f, 0x05]);
    // Where jumps may lead: not between a push and its pop.
    let mut bounds = Vec::new();
    for _ in 0..2 + random.below(3) {
        bounds.push(code.len());
        match random.below(6) {
            // A jump, over whatever comes next. Flags do not outlive a call.
            0 => {
                code.extend([0x48, 0x85, 0xc0]);
                jumps.push((code.len() + 2, 1));
                code.extend([random.of(&[0x70u8, 0x72, 0x74, 0x75, 0x76, 0x78, 0x7f, 0xeb]), 0]);
            }
            1 => {
                code.extend([0x48, 0x85, 0xc0]);
                jumps.push((code.len() + 6, 4));
                code.extend([0x0f, 0x80 | random.below(16) as u8, 0, 0, 0, 0]);
            }
            2 => code.extend(random.of(ANY)),
            _ => code.extend(random.of(BEHIND)),
        }
    }
    // Jumps back that are not taken, to anywhere in what may become the window.
    bounds.push(code.len());
    if random.below(4) == 0 {
        code.extend([0xeb, 2]);
        targets.push(at.saturating_add(random.below(8)).saturating_sub(3));
        let back = *targets.last().expect("just now") as i64 - (code.len() as i64 + 2);
        code.extend([0x75, back as u8]);
    }
    for (behind, size) in jumps {
        let ahead: Vec<usize> = bounds.iter().copied().filter(|to| *to >= behind).collect();
        let to = random.of(&ahead);
        code[behind - size] = (to - behind) as u8;
        targets.push(to);
    }
    // What is written over between the jump and its target must not matter: the end is ours.
    code.extend([0x90; 16]);
    code.extend([0x48, 0x8b, 0x0c, 0x24]); // mov (%rsp), %rcx
    for register in REGISTERS.into_iter().filter(|r| *r != 1) {
        let high = u8::from(register > 7);
        code.extend([0x48 | high << 2, 0x89, 0x41 | (register & 7) << 3, register * 8]);
    }
    code.extend([0x5f, 0x41, 0x5f, 0x41, 0x5e, 0x41, 0x5d, 0x41, 0x5c, 0x5d, 0x5b, 0xc3]);
    Made { code, at, targets, number }
}

struct Memory(*mut u8);

impl Memory {
    fn new() -> Memory {
        let (all, flags) = (
            libc::PROT_READ | libc::PROT_WRITE | libc::PROT_EXEC,
            libc::MAP_PRIVATE | libc::MAP_ANONYMOUS,
        );
        // SAFETY: a new mapping.
        let at = unsafe { libc::mmap(core::ptr::null_mut(), MAPPED, all, flags, -1, 0) };
        assert_ne!(at, libc::MAP_FAILED, "memory to run code in");
        Memory(at.cast())
    }

    fn put(&self, at: usize, bytes: &[u8]) {
        assert!(at + bytes.len() <= MAPPED);
        // SAFETY: within the mapping, where nothing runs now.
        unsafe { core::ptr::copy_nonoverlapping(bytes.as_ptr(), self.0.add(at), bytes.len()) };
    }

    fn run(&self, state: &mut [u64; 16]) {
        // SAFETY: a function of this kind was put there.
        let f: extern "C" fn(*mut u64) = unsafe { core::mem::transmute(self.0) };
        f(state.as_mut_ptr());
    }

    fn counted(&self) -> u64 {
        // SAFETY: eight aligned bytes of the mapping.
        unsafe { self.0.add(COUNTER).cast::<u64>().read_volatile() }
    }

    fn base(&self) -> u64 {
        self.0 as u64
    }
}

fn registers(random: &mut Random) -> [u64; 16] {
    core::array::from_fn(|_| random.next())
}

/// What differs between a call and none, and what this test needs itself.
fn seen(state: [u64; 16]) -> Vec<u64> {
    // rcx and r11 are the instruction's.
    (0..16).filter(|r| ![1, 4, 11].contains(r)).map(|r| state[r]).collect()
}

#[test]
fn patched_and_unpatched_do_the_same() {
    let (memory, mut random) = (Memory::new(), Random(0x1234_5678_9abc_def1));
    // The entry counts, and has the call made.
    let counter = (memory.base() + COUNTER as u64).to_le_bytes();
    memory.put(ENTRY, &[&[0x49, 0xbb][..], &counter, &[0x49, 0xff, 0x03, 0xff, 0xe1]].concat());
    let mut kinds = [0; 5];
    for round in 0..WINDOWS {
        let made = make(&mut random);
        let mut wanted: Wanted = [false; NUMBERS];
        wanted.iter_mut().for_each(|w| *w = random.below(2) == 0);
        let is_wanted = wanted.get(made.number as usize).is_some_and(|w| *w);
        assert_eq!(votes(&made.code, made.at), VOTES, "round {round}");
        let before = registers(&mut random);
        let mut plain = before;
        memory.put(0, &made.code);
        memory.run(&mut plain);
        let window = match judge(&made.code, made.at, &wanted) {
            Found::Site(window) => window,
            Found::Unwanted(number) => {
                assert!(number == made.number && !is_wanted, "round {round}");
                kinds[3] += 1;
                continue;
            }
            Found::Undecided(_) => {
                kinds[2] += 1;
                continue;
            }
            Found::Data => panic!("round {round}: it is one"),
        };
        kinds[match window.kind {
            Kind::Number(_) => 0,
            Kind::Around => 1,
            Kind::Before => 4,
        }] += 1;
        check_window(&made, &window);
        let mut code = made.code.clone();
        let mut out = [0; LONGEST_STUB];
        let (area, at) = (memory.base() + AREA as u64, AREA + AREA_HEAD);
        let address = memory.base() + at as u64;
        let how = random.of(&[Plain::InPlace, Plain::InStub]);
        let written = stub(&code, memory.base(), &window, area, address, how, &mut out).unwrap();
        // A call that stays where it is is the program's own.
        let is_in_place = how == Plain::InPlace && window.kind != Kind::Around;
        assert_eq!(written.plain == memory.base() + window.at as u64, is_in_place, "round {round}");
        jump(memory.base(), &window, address, &mut code[window.replaced()]).unwrap();
        memory.put(AREA, &area_head(memory.base() + ENTRY as u64, &wanted));
        memory.put(at, &out[..written.len]);
        memory.put(0, &code);
        let (mut patched, counted) = (before, memory.counted());
        memory.run(&mut patched);
        assert_eq!(seen(plain), seen(patched), "round {round}: {window:?} {:02x?}", made.code);
        assert_eq!(memory.counted() - counted, u64::from(is_wanted), "round {round}");
    }
    println!(
        "{} by number, {} around, {} undecided, {} unwanted, {} before",
        kinds[0], kinds[1], kinds[2], kinds[3], kinds[4]
    );
    assert!(kinds[0] > WINDOWS / 20 && kinds[1] > WINDOWS / 4 && kinds[4] > WINDOWS / 100);
    assert!(kinds[2] > 10 && kinds[3] > 100);
}

/// No jump that the window does not begin with leads into it, and it is made of whole instructions.
fn check_window(made: &Made, window: &Window) {
    let patched = match window.kind {
        // Who jumps to the call itself, which stays where it is, has another number.
        Kind::Number(_) | Kind::Before => window.start..window.at + 1,
        Kind::Around => window.start..window.end,
    };
    assert!((5..=sites::LONGEST_WINDOW).contains(&window.replaced().len()));
    for target in &made.targets {
        assert!(!(patched.start + 1..patched.end).contains(target), "{window:?}: {target}");
    }
    let mut at = window.start;
    while at < window.end {
        let inst = decode(&made.code[at..]).unwrap();
        assert!(
            at == window.at
                || inst.flow == Flow::Next
                || at + inst.len == window.end
                || matches!(inst.flow, Flow::Jump(_) | Flow::Away)
        );
        at += inst.len;
    }
    assert_eq!(at, window.end);
}

/// A long jump from far away, forwards or back, into each byte of what could be a window.
#[test]
fn a_long_jump_into_a_window_is_seen() {
    const FAR: usize = 6_000;
    let wanted = [true; NUMBERS];
    // mov $3, %eax; syscall; cmp $-4095, %rax; ret
    let site = [0xb8, 3, 0, 0, 0, 0x0f, 0x05, 0x48, 0x3d, 0x01, 0xf0, 0xff, 0xff, 0xc3];
    for (opcode, from) in
        [(&[0xe9][..], 100), (&[0xe8], 2 * FAR), (&[0x0f, 0x85], 100), (&[0x0f, 0x84], 2 * FAR)]
    {
        for to in 0..site.len() {
            let mut code = vec![0x90; 3 * FAR];
            code[FAR..FAR + site.len()].copy_from_slice(&site);
            let end = from + opcode.len() + 4;
            code[from..from + opcode.len()].copy_from_slice(opcode);
            code[end - 4..end].copy_from_slice(&((FAR + to) as i32 - end as i32).to_le_bytes());
            let found = judge(&code, FAR + 5, &wanted);
            let Found::Site(window) = found else {
                // The mov is a constant of nobody's, and nothing else holds a window.
                panic!("{to}: {found:?}");
            };
            let safe = match window.kind {
                Kind::Number(_) | Kind::Before => window.start + 1..window.at + 1,
                Kind::Around => window.start + 1..window.end,
            };
            assert!(!safe.contains(&(FAR + to)), "{to}: {window:?}");
        }
    }
}

/// A number that is put into eax some instructions before the call, and stays there.
#[test]
fn a_number_from_further_back_is_known() {
    let mut wanted: Wanted = [true; NUMBERS];
    wanted[14] = false;
    let judged = |wanted: &Wanted, middle: &[u8], behind: &[u8]| {
        let mut code = vec![0x90; 128];
        code.extend([0xb8, 14, 0, 0, 0]);
        code.extend(middle);
        let at = code.len();
        code.extend([0x0f, 0x05]);
        code.extend(behind);
        code.resize(code.len() + 64, 0x90);
        judge(&code, at, wanted)
    };
    let is_known =
        |middle: &[u8], behind: &[u8]| judged(&wanted, middle, behind) == Found::Unwanted(14);
    let lea: &[u8] = &[0x48, 0x8d, 0x35, 0x34, 0x54, 0x3a, 0xff];
    let ret: &[u8] = &[0xc3];
    assert!(is_known(&[&[0x31, 0xff], lea].concat(), ret));
    assert!(is_known(&[0x41, 0xba, 8, 0, 0, 0, 0x49, 0x89, 0xc0, 0x48, 0x8b, 0x7d, 0x10], ret));
    for other in [
        &[0x89, 0xf8][..],    // mov %edi, %eax
        &[0x8b, 0x45, 0x10],  // mov 16(%rbp), %eax
        &[0x48, 0x98],        // cdqe
        &[0x31, 0xc0],        // xor %eax, %eax
        &[0x48, 0x8d, 0x07],  // lea (%rdi), %rax
        &[0xe8, 0, 0, 0, 0],  // call
        &[0xb8, 15, 0, 0, 0], // mov $15, %eax
        &[0x75, 0x00],        // jne: what it means is not looked at
    ] {
        assert!(!is_known(&[other, &[0x31, 0xff]].concat(), ret), "{other:02x?}");
    }
    // Somebody comes to the call with another number: jmp to it from behind.
    assert!(!is_known(&[0x31, 0xff], &[0xc3, 0xeb, 0xfb]));
    // The same, but a wanted one: it is a site like any other.
    assert!(matches!(
        judged(&[true; NUMBERS], &[0x31, 0xff], &[0x48, 0x85, 0xc0, 0xc3]),
        Found::Site(_)
    ));
}

/// A table in front of a function that makes calls by any number does not make data of it: such a
/// call would pass unseen.
#[test]
fn a_call_behind_a_table_is_no_data() {
    // syscall(number, ...) of a library of C: moves of its arguments, the call, a return.
    const WRAPPER: [u8; 26] = [
        0x48, 0x89, 0xf8, 0x48, 0x89, 0xf7, 0x48, 0x89, 0xd6, 0x48, 0x89, 0xca, 0x4d, 0x89, 0xc2,
        0x4d, 0x89, 0xc8, 0x4c, 0x8b, 0x4c, 0x24, 0x08, 0x0f, 0x05, 0xc3,
    ];
    for table in [[0, 0], [0x2f, 0x37], [0xe6, 0x1c]] {
        for len in [2, 16, 64, 256] {
            let mut code: Vec<u8> = table.into_iter().cycle().take(len).collect();
            let at = len + 23;
            code.extend(WRAPPER);
            code.resize(code.len() + 64, 0xcc);
            let found = judge(&code, at, &[true; NUMBERS]);
            assert!(!matches!(found, Found::Data | Found::Unwanted(_)), "{table:x?} {len}");
        }
    }
}

/// A function that begins with its call, behind the padding of another one: whoever enters it by a pointer
/// is to find its first instruction.
#[test]
fn a_function_behind_padding_is_entered_at_its_beginning() {
    let endings: [&[u8]; 3] = [
        &[0x48, 0x3d, 0x01, 0xf0, 0xff, 0xff, 0x77, 0x01, 0xc3, 0xc3],
        &[0x48, 0x3d, 0x00, 0xf0, 0xff, 0xff, 0x77, 0x01, 0xc3, 0xc3],
        &[0xc3],
    ];
    let paddings: [&[u8]; 5] = [
        &[0x90],
        &[0x66, 0x90],
        &[0x0f, 0x1f, 0x44, 0x00, 0x00],
        &[0x66, 0x2e, 0x0f, 0x1f, 0x84, 0, 0, 0, 0, 0],
        &[0xf3, 0x0f, 0x1e, 0xfa],
    ];
    for beginning in [&[0x31, 0xc0][..], &[0x48, 0x89, 0xf8], &[0x49, 0x89, 0xca]] {
        for padding in paddings {
            for behind in endings {
                let mut code = [0x48, 0x89, 0xd6].repeat(40);
                code.extend(padding);
                let entry = code.len();
                code.extend(beginning);
                let at = code.len();
                code.extend([0x0f, 0x05]);
                code.extend(behind);
                code.resize(code.len() + 64, 0xcc);
                if let Found::Site(window) = judge(&code, at, &[true; NUMBERS]) {
                    let replaced = window.replaced();
                    assert!(entry <= replaced.start || entry >= replaced.end, "{window:?} {entry}");
                }
            }
        }
    }
}
