//! Lengths of x86-64 instructions, and where each goes on.
//!
//! No operands are understood, and some encodings that no processor has pass for instructions. What
//! does exist has its right length, which a test holds against a whole decoder.

/// One instruction.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Inst {
    /// In bytes, prefixes and all.
    pub len: usize,
    /// Where the processor goes on.
    pub flow: Flow,
    /// It has an operand whose address counts from the instruction's own.
    pub is_rip_relative: bool,
    /// It may use more than 128 bits of a vector register.
    pub is_wide: bool,
}

/// Where the processor goes on behind an instruction.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Flow {
    /// At the next one.
    Next,
    /// So far behind the next one, if the condition of this number (the low bits of the opcode)
    /// holds.
    If(u8, i32),
    /// So far behind the next one.
    Jump(i32),
    /// Anywhere else, to come back or not: calls, returns, traps, loops, jumps by a register.
    Away,
}

/// What follows an opcode besides a ModRM byte.
#[derive(Clone, Copy)]
enum Tail {
    None,
    Byte,
    Word,
    /// Four bytes, or two with an operand size prefix.
    Full,
    /// Four bytes in any case.
    Four,
    /// As `Full`, or eight bytes with REX.W.
    Wide,
    /// An address: eight bytes, or four with an address size prefix.
    Address,
    /// A word and a byte.
    Three,
}

/// An opcode: whether it has a ModRM byte, and what follows; None if it is none.
type Form = Option<(bool, Tail)>;

const fn plain(tail: Tail) -> Form {
    Some((false, tail))
}
const fn modrm(tail: Tail) -> Form {
    Some((true, tail))
}

fn one_byte(op: u8) -> Form {
    match op {
        0x00..=0x3f => match op & 7 {
            0..=3 => modrm(Tail::None),
            4 => plain(Tail::Byte),
            5 => plain(Tail::Full),
            _ => None,
        },
        0x50..=0x5f | 0x6c..=0x6f | 0x90..=0x99 | 0x9b..=0x9f | 0xa4..=0xa7 | 0xaa..=0xaf => {
            plain(Tail::None)
        }
        0x63 | 0x84..=0x8f | 0xd0..=0xd3 | 0xd8..=0xdf | 0xfe | 0xff => modrm(Tail::None),
        0x68 | 0xa9 => plain(Tail::Full),
        0x69 | 0x81 | 0xc7 => modrm(Tail::Full),
        0x6b | 0x80 | 0x83 | 0xc0 | 0xc1 | 0xc6 => modrm(Tail::Byte),
        0x6a | 0x70..=0x7f | 0xa8 | 0xb0..=0xb7 | 0xcd | 0xe0..=0xe7 | 0xeb => plain(Tail::Byte),
        0xa0..=0xa3 => plain(Tail::Address),
        0xb8..=0xbf => plain(Tail::Wide),
        0xc2 | 0xca => plain(Tail::Word),
        0xc3
        | 0xc9
        | 0xcb
        | 0xcc
        | 0xcf
        | 0xd7
        | 0xec..=0xef
        | 0xf1
        | 0xf4
        | 0xf5
        | 0xf8..=0xfd => plain(Tail::None),
        0xc8 => plain(Tail::Three),
        0xe8 | 0xe9 => plain(Tail::Four),
        // Their tail depends on ModRM.
        0xf6 | 0xf7 => modrm(Tail::None),
        _ => None,
    }
}

fn two_byte(op: u8) -> Form {
    match op {
        0x05..=0x09 | 0x0b | 0x0e | 0x30..=0x35 | 0x37 | 0x77 => plain(Tail::None),
        0xa0..=0xa2 | 0xa8..=0xaa | 0xc8..=0xcf => plain(Tail::None),
        0x04 | 0x0a | 0x0c | 0x24..=0x27 | 0x36 | 0x39 | 0x3b..=0x3f | 0x7a | 0x7b => None,
        0x0f | 0x70..=0x73 | 0xa4 | 0xac | 0xba | 0xc2 | 0xc4..=0xc6 => modrm(Tail::Byte),
        0x80..=0x8f => plain(Tail::Four),
        0xa6 | 0xa7 => modrm(Tail::None),
        _ => modrm(Tail::None),
    }
}

/// The opcodes behind a VEX or EVEX prefix, by their map.
fn vector(map: u8, op: u8, is_evex: bool) -> Form {
    match (map, op) {
        (1, 0x77) if !is_evex => plain(Tail::None),
        (1, 0x70..=0x73 | 0xc2 | 0xc4..=0xc6) | (3, _) => modrm(Tail::Byte),
        (1 | 2, _) => modrm(Tail::None),
        (5 | 6, _) if is_evex => modrm(Tail::None),
        // Moves to and from model-specific registers, by their number.
        (7, _) if !is_evex => modrm(Tail::Four),
        _ => None,
    }
}

/// The first instruction of `code`; None if it is none, or is cut off.
pub fn decode(code: &[u8]) -> Option<Inst> {
    const LONGEST: usize = 15;
    let code = &code[..code.len().min(LONGEST)];
    let (mut at, mut is_short, mut has_short_addresses, mut repeats) = (0, false, false, 0);
    let mut rex = 0;
    let op = loop {
        let byte = *code.get(at)?;
        at += 1;
        match byte {
            0x40..=0x4f => {
                rex = byte;
                continue;
            }
            0x66 => is_short = true,
            0x67 => has_short_addresses = true,
            0xf2 | 0xf3 => repeats = byte,
            0xf0 | 0x26 | 0x2e | 0x36 | 0x3e | 0x64 | 0x65 => {}
            op => break op,
        }
        // Only the one directly before the opcode counts.
        rex = 0;
    };
    let is_wide = rex & 8 != 0;
    let next = |at: &mut usize| {
        *at += 1;
        code.get(*at - 1).copied()
    };
    let mut is_wide_vector = false;
    // The map, 0 to 3 those of old, and the opcode in it.
    let (map, op, form) = match op {
        0x0f => match next(&mut at)? {
            0x38 => (2, next(&mut at)?, modrm(Tail::None)),
            0x3a => (3, next(&mut at)?, modrm(Tail::Byte)),
            // Two instructions of SSE4a with two bytes behind.
            0x78 if repeats == 0xf2 || is_short => (1, 0x78, modrm(Tail::Word)),
            op => (1, op, two_byte(op)),
        },
        0xc5 => {
            is_wide_vector = next(&mut at)? & 4 != 0;
            let op = next(&mut at)?;
            (8, op, vector(1, op, false))
        }
        0xc4 => {
            let map = next(&mut at)? & 0x1f;
            is_wide_vector = next(&mut at)? & 4 != 0;
            let op = next(&mut at)?;
            (8, op, vector(map, op, false))
        }
        0x62 => {
            let map = next(&mut at)? & 7;
            at += 1;
            is_wide_vector = next(&mut at)? & 0x60 != 0;
            let op = next(&mut at)?;
            (8, op, vector(map, op, true))
        }
        0x8f if code.get(at)? & 0x1f >= 8 => {
            let map = next(&mut at)? & 0x1f;
            at += 1;
            let op = next(&mut at)?;
            let form = match map {
                8 => modrm(Tail::Byte),
                9 => modrm(Tail::None),
                10 => modrm(Tail::Four),
                _ => None,
            };
            (8, op, form)
        }
        op => (0, op, one_byte(op)),
    };
    let (has_modrm, mut tail) = form?;
    let mut is_rip_relative = false;
    let (mut which, mut is_register) = (0, false);
    if has_modrm {
        let byte = next(&mut at)?;
        which = byte >> 3 & 7;
        // Moves of control and debug registers have no address, whatever the mode says.
        let mode = if map == 1 && matches!(op, 0x20..=0x23) { 3 } else { byte >> 6 };
        let base = byte & 7;
        is_register = mode == 3;
        if !is_register {
            let mut has_base = true;
            if base == 4 {
                has_base = next(&mut at)? & 7 != 5 || mode != 0;
            } else if base == 5 && mode == 0 {
                is_rip_relative = true;
                has_base = false;
            }
            at += match mode {
                1 => 1,
                2 => 4,
                _ if !has_base => 4,
                _ => 0,
            };
        }
        match (map, op) {
            (0, 0xf6) if which < 2 => tail = Tail::Byte,
            (0, 0xf7) if which < 2 => tail = Tail::Full,
            (0, 0xff) if which == 7 => return None,
            (0, 0xfe) if which > 1 => return None,
            _ => {}
        }
    }
    let operand = at;
    at += match tail {
        Tail::None => 0,
        Tail::Byte => 1,
        Tail::Word => 2,
        Tail::Three => 3,
        Tail::Four => 4,
        Tail::Wide if is_wide => 8,
        // REX.W goes before an operand size prefix.
        Tail::Full | Tail::Wide if is_short && !is_wide => 2,
        Tail::Full | Tail::Wide => 4,
        Tail::Address if has_short_addresses => 4,
        Tail::Address => 8,
    };
    let operand = code.get(operand..at)?;
    let distance = || match *operand {
        [byte] => i32::from(byte.cast_signed()),
        [a, b, c, d] => i32::from_le_bytes([a, b, c, d]),
        _ => 0,
    };
    let flow = match (map, op) {
        // With an operand size prefix they mean different things to different makers.
        (0, 0x70..=0x7f) | (1, 0x80..=0x8f) if !is_short => Flow::If(op & 15, distance()),
        (0, 0xe9 | 0xeb) if !is_short => Flow::Jump(distance()),
        (0, 0x70..=0x7f) | (1, 0x80..=0x8f) => Flow::Away,
        (0, 0xe8..=0xeb | 0xe0..=0xe3 | 0xc2 | 0xc3 | 0xca | 0xcb | 0xcc | 0xcd | 0xcf) => {
            Flow::Away
        }
        (0, 0xf1) | (1, 0x05 | 0x07 | 0x0b | 0xaa | 0x34 | 0x35 | 0xb9 | 0xff) => Flow::Away,
        (0, 0xff) if matches!(which, 2..=5) => Flow::Away,
        // Among them are a few that leave for another world.
        (1, 0x01) if is_register => Flow::Away,
        // XBEGIN goes elsewhere when it fails.
        (0, 0xc7) if which == 7 => Flow::Away,
        _ => Flow::Next,
    };
    Some(Inst { len: at, flow, is_rip_relative, is_wide: is_wide_vector })
}
