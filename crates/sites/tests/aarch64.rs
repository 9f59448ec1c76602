//! Calls of arm64, on any machine: what is told of code as compilers and people have written it, and where stubs
//! lead. What both do is run in `aarch64_run.rs`.

use sites::aarch64::{
    AREA_HEAD, Found, Kind, LONGEST_STUB, OF_PROGRAMS, POINTER, Window, area_head, find, judge,
    jump, stub,
};
use sites::{NUMBERS, Plain, Wanted, Why};

const SVC: u32 = 0xd400_0001;
const RET: u32 = 0xd65f_03c0;
const NOP: u32 = 0xd503_201f;
/// `mov x8, #63`: read.
const READ: u32 = 0xd280_07e8;
/// `mov x8, #98`: futex.
const FUTEX: u32 = 0xd280_0c48;
/// `cmn x0, #1, lsl #12`, and `cmn x0, #4095`.
const AS_IN_C: u32 = 0xb140_041f;
const AS_IN_GO: u32 = 0xb13f_fc1f;

fn bytes(words: &[u32]) -> Vec<u8> {
    words.iter().flat_map(|word| word.to_le_bytes()).collect()
}

/// What is told of the only call in there.
fn told(words: &[u32], wanted: &Wanted) -> Found {
    let at = words.iter().position(|word| *word == SVC).expect("a call");
    judge(&bytes(words), at * 4, wanted)
}

fn call(at: usize, start: usize, number: Option<u32>) -> Found {
    Found::Site(Window { at, start, end: at + 4, kind: Kind::Call(number) })
}

/// read of glibc 2.36, where there is one thread: mov x0, x19; mov x8, #63; svc; mov x19, x0; cmn; b.hi;
/// mov x0, x19; ldp x19, x20, [sp, #16]; ldp x29, x30, [sp], #48; ret
const OF_C: [u32; 13] = [
    0xaa13_03e0,
    READ,
    SVC,
    0xaa00_03f3,
    AS_IN_C,
    0x5400_00a8,
    0xaa13_03e0,
    0xa941_53f3,
    0xa8c3_7bfd,
    RET,
    NOP,
    NOP,
    RET,
];

#[test]
fn calls_of_c_and_of_go() {
    let code = OF_C;
    assert_eq!(told(&code, &OF_PROGRAMS), call(8, 4, Some(63)));
    assert_eq!(told(&code, &[false; NUMBERS]), Found::Unwanted(63));
    let mut futex = code;
    futex[1] = FUTEX;
    assert_eq!(told(&futex, &OF_PROGRAMS), Found::Unwanted(98));
    // Syscall6: ldr x5, [sp, #56]; svc; cmn x0, #4095; b.cc; mov x4, #-1; str; str; neg; str; ret; and so on.
    let go = [
        0xf940_1fe5,
        SVC,
        AS_IN_GO,
        0x5400_00e3,
        0x9280_0004,
        0xf900_23e4,
        0xf900_27ff,
        0xcb00_03e0,
        0xf900_2be0,
        RET,
        0xf900_23e0,
        0xf900_27e1,
        RET,
    ];
    assert_eq!(told(&go, &OF_PROGRAMS), call(4, 0, None));
    // What precedes it may not be moved: adr x5, .; nop; or it is a call itself.
    for before in [0x1000_0005, NOP] {
        let mut other = go;
        other[0] = before;
        assert_eq!(told(&other, &OF_PROGRAMS), call(4, 4, None));
    }
    // Somebody comes to the call alone.
    let mut entered = go.to_vec();
    entered[12] = 0x17ff_fff5; // b to the call
    assert_eq!(told(&entered, &OF_PROGRAMS), call(4, 4, None));
}

#[test]
fn a_number_is_known_from_a_constant_before_the_call_alone() {
    let number = |words: &[u32]| {
        let code = [words, &[SVC, AS_IN_C, RET]].concat();
        match told(&code, &[true; NUMBERS]) {
            Found::Site(Window { kind: Kind::Call(number), .. }) => number,
            Found::Unwanted(number) => Some(number),
            other => panic!("{other:?}"),
        }
    };
    // What assemblers make of `mov`, or of `orr` with a constant.
    for (word, value) in [
        (0xd280_07e8, 63),
        (0x5280_3728, 441),
        (0xb240_03e8, 1),
        (0x3200_03e8, 1),
        (0xb27f_03e8, 2),
        (0xb240_07e8, 3),
        (0xb27f_07e8, 6),
        (0xb27e_07e8, 12),
        (0xb27d_07e8, 24),
        (0x321d_07e8, 24),
        (0xb27e_0fe8, 60),
        (0xb27f_13e8, 62),
        (0xb240_17e8, 63),
        (0x3200_17e8, 63),
        (0xb27a_03e8, 64),
        (0x321a_03e8, 64),
        (0xb27b_07e8, 96),
        (0xb27c_0be8, 112),
        (0xb27a_07e8, 192),
        (0xb27b_0be8, 224),
        (0xb279_07e8, 384),
        (0xb200_c3e8, 0x0101_0101),
    ] {
        assert_eq!(number(&[word]), Some(value), "{word:#x}");
        // mov x0, x1; ldr x2, [x3, #8]
        assert_eq!(number(&[word, 0xaa01_03e0, 0xf940_0462]), Some(value), "{word:#x}");
    }
    for other in [
        0xf280_07e8, // movk x8, #63
        0xd280_07e9, // mov x9, #63
        0xd2a0_0028, // mov x8, #0x10000
        0x2a00_03e8, // mov w8, w0
    ] {
        assert_eq!(number(&[NOP, other]), None, "{other:#x}");
        assert_eq!(number(&[NOP, READ, other]), if other == 0xd280_07e9 { Some(63) } else { None });
    }
    // A branch between the two, to the call, or a call of a function: it may come back with another number.
    assert_eq!(number(&[READ, 0xb400_0040]), None);
    assert_eq!(number(&[READ, 0x9400_0010]), None);
    let entered = [0x1400_0003, NOP, READ, SVC, AS_IN_C, RET];
    let Found::Site(window) = told(&entered, &[true; NUMBERS]) else { panic!("a site") };
    assert_eq!(window.kind, Kind::Call(None));
}

/// Registers 16 and 17 hold something that is used behind a call.
#[test]
fn a_call_without_free_registers_is_not_touched() {
    let with = |behind: &[u32]| told(&[&[READ, SVC][..], behind].concat(), &OF_PROGRAMS);
    let is_site = |behind: &[u32]| matches!(with(behind), Found::Site(_));
    let room = Found::Undecided(Why::Room);
    assert!(is_site(&[AS_IN_C, RET]));
    assert_eq!(with(&[0x8b10_0000, RET]), room); // add x0, x0, x16
    assert_eq!(with(&[0xf900_0010, RET]), room); // str x16, [x0]
    assert_eq!(with(&[0xf940_0220, RET]), room); // ldr x0, [x17]
    assert_eq!(with(&[0xa900_47f0, RET]), room); // stp x16, x17, [sp]
    assert_eq!(with(&[0xd61f_0200]), room); // br x16
    assert_eq!(with(&[0xd61f_0060]), room, "a table may lead anywhere in the function"); // br x3
    assert_eq!(with(&[0xb400_0050, RET, NOP, RET]), room); // cbz x16
    // Overwritten: mov x16, #1; ldr x17, [x0]; mov x16, x1; adrp x17; ldp x16, x17, [sp]; mrs x16, nzcv
    assert!(is_site(&[0xd280_0030, 0xf940_0011, 0x8b11_0200, RET]));
    assert!(is_site(&[0xaa01_03f0, 0x9000_0011, 0x8b11_0200, RET]));
    assert!(is_site(&[0xa940_47f0, 0x8b11_0200, RET]));
    assert_eq!(with(&[0xf280_0030, RET]), room, "movk keeps the rest");
    // Constants have these numbers, too: add x0, x1, #16; ldr x0, [x1, #128]
    assert!(is_site(&[0x9100_4020, 0xf940_4020, RET]));
    // On one of two ways it is used: b.eq to there.
    assert_eq!(with(&[0x5400_0040, RET, 0x8b10_0000, RET]), room);
    // Behind a function, in a loop, at the end of the code.
    assert!(is_site(&[0x9400_0010, 0x8b10_0000, RET]));
    assert!(is_site(&[0x5400_0040, RET, 0x17ff_fffe]));
    assert!(is_site(&[0x1400_0000]), "it waits for ever");
    assert_eq!(with(&[NOP]), room, "nobody knows what comes");
    // Behind the end of a thread, or of all of them, comes nothing: mov x8, #93; #94.
    for (number, word) in [(93, 0xd280_0ba8), (94, 0xd280_0bc8)] {
        let code = [NOP, word, SVC, 0x8b10_0000, RET];
        assert_eq!(told(&code, &OF_PROGRAMS), call(8, 4, Some(number)));
    }
}

#[test]
fn data_is_told_from_calls() {
    // In a table of what is no code on either side.
    assert_eq!(told(&[1, 2, SVC, 3, 4], &OF_PROGRAMS), Found::Data);
    // Loaded as a constant: ldr w0, behind the function; ldr x1, of which it is the upper half.
    for load in [0x1800_0080, 0x5800_0061] {
        let code = [NOP, load, RET, NOP, NOP, SVC, RET];
        assert_eq!(told(&code, &OF_PROGRAMS), Found::Undecided(Why::Strange), "{load:#x}");
    }
    assert!(find(&bytes(&[SVC + 0x20, 0xd400_0002, NOP, RET]), &OF_PROGRAMS).next().is_none());
    // Not where instructions begin.
    let code = [&[0, 0][..], &bytes(&[READ, SVC, RET])].concat();
    assert!(find(&code, &OF_PROGRAMS).next().is_none());
}

#[test]
fn the_thread_pointer_is_found() {
    // mrs x1, tpidr_el0; msr tpidr_el0, x9; mrs xzr; msr tpidr_el0, xzr; mrs x1, tpidrro_el0; mrs x1, tpidr2_el0
    let code = [0xd53b_d041, 0xd51b_d049, 0xd53b_d05f, 0xd51b_d05f, 0xd53b_d061, 0xd53b_d0a1, RET];
    let found: Vec<_> = find(&bytes(&code), &OF_PROGRAMS).collect();
    let site = |at, kind| (at, Found::Site(Window { at, start: at, end: at + 4, kind }));
    let all = [
        site(0, Kind::Read(1)),
        site(4, Kind::Write(9)),
        (8, Found::Data),
        site(12, Kind::Write(31)),
    ];
    assert_eq!(found, all);
}

#[test]
fn places_are_where_the_words_are() {
    let mut state = 7u32;
    for len in 0..200 {
        let words: Vec<u32> = (0..len)
            .map(|_| {
                state = state.wrapping_mul(0x0019_660d).wrapping_add(0x3c6e_f35f);
                [NOP, SVC, 0xd53b_d041, 0xd51b_d041, 0xd53b_d061][(state >> 24) as usize % 5]
            })
            .collect();
        let is_one = |word: &u32| matches!(word, &SVC | 0xd53b_d041 | 0xd51b_d041);
        let wanted: Vec<usize> =
            words.iter().enumerate().filter(|(_, word)| is_one(word)).map(|(i, _)| i * 4).collect();
        assert_eq!(sites::aarch64::places(&bytes(&words)).collect::<Vec<_>>(), wanted);
    }
}

/// Where a branch, or an address that counts from the instruction's own, leads.
fn target(at: u64, word: u32) -> u64 {
    let signed =
        |value: u32, bits: u32| i64::from((value << (32 - bits)).cast_signed() >> (32 - bits));
    at.wrapping_add_signed(match word >> 24 {
        0x14..=0x17 => signed(word & 0x3ff_ffff, 26) * 4,
        0x34 | 0x35 | 0x58 => signed(word >> 5 & 0x7_ffff, 19) * 4,
        0x10 | 0x30 | 0x50 | 0x70 => signed((word >> 5 & 0x7_ffff) << 2 | word >> 29 & 3, 21),
        _ => panic!("{word:#x} leads nowhere"),
    })
}

#[test]
fn stubs_lead_to_the_entry_and_back() {
    let (base, area) = (0x40_0000u64, 0x500_0000u64);
    let head = area_head(0x1234_5678_9abc_def0, &OF_PROGRAMS);
    let enter = area + AREA_HEAD as u64 - 16;
    let word = |bytes: &[u8], i: usize| u32::from_le_bytes(bytes[i * 4..][..4].try_into().unwrap());
    // ldr x17, the entry; br x17
    let at = (enter - area) as usize / 4;
    assert_eq!(target(enter, word(&head, at)), area);
    assert_eq!((word(&head, at) & 31, word(&head, at + 1)), (17, 0xd61f_0220));
    assert_eq!((head[16 + 63], head[16 + 98]), (1, 0));
    let address = area + AREA_HEAD as u64;
    let made = |words: &[u32]| {
        let code = bytes(words);
        let (_, found) = find(&code, &OF_PROGRAMS).next().expect("a place");
        let Found::Site(window) = found else { panic!("{found:?}") };
        let mut out = [0; LONGEST_STUB];
        let stub = stub(&code, base, &window, area, address, Plain::InStub, &mut out).unwrap();
        let mut jumps = [0; 4];
        jump(base, &window, address, &mut jumps).unwrap();
        assert_eq!(target(base + window.start as u64, word(&jumps, 0)), address);
        let words: Vec<u32> = (0..stub.len / 4).map(|i| word(&out, i)).collect();
        (words, stub.plain, window)
    };
    let place = |i: usize| address + 4 * i as u64;
    // By a known number: adr x16, the call; b; svc; b back.
    let (words, plain, window) = made(&[READ, NOP, SVC, AS_IN_C, RET]);
    assert_eq!((words.len(), words[2], plain), (4, SVC, place(2)));
    assert_eq!((target(place(0), words[0]), words[0] & 31), (place(2), 16));
    assert_eq!(target(place(1), words[1]), enter);
    assert_eq!(target(place(3), words[3]), base + window.end as u64);
    // By any number: the table first.
    let (words, plain, window) = made(&[NOP, SVC, AS_IN_C, RET]);
    assert_eq!((words.len(), words[7], plain), (9, SVC, place(7)));
    assert_eq!((target(place(1), words[1]), target(place(4), words[4])), (plain, plain));
    assert_eq!(target(place(2), words[2]), area + 16);
    assert_eq!((target(place(5), words[5]), target(place(6), words[6])), (plain, enter));
    assert_eq!(target(place(8), words[8]), base + window.end as u64);
    // One that stays: what precedes it, the table, adr x16, b; b to it, b back.
    let (words, plain, window) = made(&[0xf940_1fe5, SVC, AS_IN_GO, RET]);
    assert_eq!((words.len(), words[0], plain), (10, 0xf940_1fe5, place(8)));
    assert_eq!((target(place(2), words[2]), target(place(5), words[5])), (plain, plain));
    assert_eq!((target(place(6), words[6]), words[6] & 31), (plain, 16));
    assert_eq!((target(place(7), words[7]), target(place(8), words[8])), (enter, base + 4));
    assert_eq!(target(place(9), words[9]), base + window.end as u64);
    assert_eq!(window.replaced(), 0..4);
    // The same by a known number.
    let (words, plain, window) = made(&OF_C);
    assert_eq!((words.len(), words[0], plain), (5, READ, place(3)));
    assert_eq!((target(place(2), words[2]), target(place(3), words[3])), (enter, base + 8));
    assert_eq!(target(place(4), words[4]), base + window.end as u64);
    // The thread pointer: mrs x1; ldr x1, [x1, #POINTER]; b.
    let (words, _, _) = made(&[0xd53b_d041, RET]);
    assert_eq!(words[..2], [0xd53b_d041, 0xf940_0021 | (POINTER as u32 / 8) << 10]);
    let (words, _, _) = made(&[0xd51b_d050, RET]);
    assert_eq!((words.len(), words[1]), (5, 0xd53b_d051), "x16 is the one that is stored");
    assert_eq!(words[2], 0xf900_0230 | (POINTER as u32 / 8) << 10);
}

#[test]
fn what_is_too_far_is_not_reached() {
    let window = Window { at: 0, start: 0, end: 4, kind: Kind::Call(Some(63)) };
    let mut out = [0; 4];
    assert!(jump(0x1000_0000, &window, 0x1000_0000 + (127 << 20), &mut out).is_some());
    assert!(jump(0x1000_0000, &window, 0x1000_0000 + (128 << 20), &mut out).is_none());
    assert!(jump(0x1000_0000, &window, 0x1000_0000 - (128 << 20), &mut out).is_some());
}
