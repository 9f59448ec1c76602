//! Which general registers an instruction of arm64 uses, where the processor goes on behind it, and whether a
//! register still matters at a place.
//!
//! Only what is needed is understood, and doubts are told as uses.

use super::word;

/// Where the processor goes on.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Flow {
    /// At the next word.
    Next,
    /// There, or so many bytes from here.
    If(i32),
    /// So many bytes from here.
    Jump(i32),
    /// So many bytes from here, to come back; 0: nobody knows where.
    Call(i32),
    /// To who has called.
    Return,
    /// Anywhere.
    Away,
    /// Nowhere: it is no instruction, or one that ends the program.
    Trap,
}

/// A distance in words, in so many bits from bit `low` on, in bytes.
fn distance(word: u32, low: u32, bits: u32) -> i32 {
    ((word << (32 - low - bits)).cast_signed() >> (32 - bits)) * 4
}

/// Where the processor goes on behind an instruction.
pub fn flow(word: u32) -> Flow {
    match word >> 24 {
        0x14..=0x17 => Flow::Jump(distance(word, 0, 26)),
        0x94..=0x97 => Flow::Call(distance(word, 0, 26)),
        0x54 | 0x34 | 0x35 | 0xb4 | 0xb5 => Flow::If(distance(word, 5, 19)),
        0x36 | 0x37 | 0xb6 | 0xb7 => Flow::If(distance(word, 5, 14)),
        0xd6 | 0xd7 => match word >> 21 & 15 {
            1 | 9 => Flow::Call(0),
            2 => Flow::Return,
            _ => Flow::Away,
        },
        // brk, hlt.
        0xd4 if matches!(word >> 21 & 7, 1 | 2) => Flow::Trap,
        // udf, and what no processor has.
        _ if word >> 16 == 0 || matches!(word >> 25 & 15, 1 | 3) => Flow::Trap,
        _ => Flow::Next,
    }
}

/// The general registers that an instruction may use, a bit for each. Bit 31 is of no meaning.
pub fn may_use(word: u32) -> u32 {
    let [d, n, a, m] = [0, 5, 10, 16].map(|low| 1 << (word >> low & 31));
    let is_vector = word >> 26 & 1 == 1;
    let t = if is_vector { 0 } else { d };
    match word >> 25 & 15 {
        8 | 9 => match word >> 23 & 7 {
            0 | 1 | 5 => d,
            7 => d | n | m,
            _ => d | n,
        },
        5 | 13 if word >> 24 & 31 == 0x1b => d | n | m | a,
        5 | 13 => d | n | m,
        4 | 6 | 12 | 14 => match (word >> 28 & 3, word >> 24 & 3) {
            (3, 1) => t | n,
            (3, 0) if word >> 21 & 1 == 0 => t | n,
            (3, 0) => t | n | m,
            (2, _) => t | n | if is_vector { 0 } else { a },
            (1, 0) => t,
            // Exclusive ones of a pair use the register behind each, too.
            _ => d | n | a | m | (d | m) << 1,
        },
        7 | 15 => d | n,
        10 | 11 => match word >> 24 {
            0x34..=0x37 | 0xb4..=0xb7 | 0xd5 => d,
            0xd6 | 0xd7 => n | d,
            _ => 0,
        },
        _ => !0,
    }
}

/// Whether an instruction is surely one that puts something else into a register, whatever it held.
fn overwrites(word: u32, register: u32) -> bool {
    let [d, n, a, m] = [0, 5, 10, 16].map(|low| word >> low & 31);
    let is_vector = word >> 26 & 1 == 1;
    let is_d = d == register;
    match word >> 25 & 15 {
        8 | 9 => match word >> 23 & 7 {
            0 | 1 => is_d,
            5 => is_d && word >> 29 & 3 != 3,
            6 => is_d && word >> 29 & 3 != 1 && n != register,
            7 => is_d && n != register && m != register,
            _ => is_d && n != register,
        },
        5 | 13 => {
            let is_plain =
                matches!(word >> 24 & 31, 0x0a | 0x0b) || matches!(word >> 21 & 255, 0xd4 | 0xd6);
            let others = [n, m];
            match word >> 24 & 31 {
                0x1b => is_d && a != register && !others.contains(&register),
                _ => is_plain && is_d && !others.contains(&register),
            }
        }
        4 | 6 | 12 | 14 if !is_vector => {
            // Stores, and hints of what will be loaded.
            let is_load = !matches!((word >> 22 & 3, word >> 30), (0, _) | (2, 3));
            match (word >> 28 & 3, word >> 24 & 3) {
                (3, 1) => is_d && is_load && n != register,
                (2, _) => (is_d || a == register) && word >> 22 & 1 == 1 && n != register,
                _ => false,
            }
        }
        // mrs
        10 | 11 => word >> 20 == 0xd53 && is_d,
        _ => false,
    }
}

/// Whether an instruction is one that does the same elsewhere: arithmetic without an address that counts from its
/// own, and plain loads and stores. No `nop` is one, behind which a function may begin.
pub fn is_movable(word: u32) -> bool {
    match word >> 25 & 15 {
        8 | 9 => word >> 24 & 31 != 0x10,
        5 | 13 => true,
        // Of a pair, and those with an address in one register and a constant.
        4 | 6 | 12 | 14 => {
            matches!((word >> 28 & 3, word >> 24 & 3), (2, _) | (3, 1))
                || word >> 28 & 3 == 3 && word >> 24 & 3 == 0 && word >> 21 & 1 == 0
        }
        _ => false,
    }
}

/// How many instructions are looked at, and how many ways through them.
const STEPS: usize = 2000;
const WAYS: usize = 48;

/// Whether nothing that a register holds at `from` is used any more: on each way it is overwritten first, or
/// the way leads to a call or a return. Registers 16 and 17 hold nothing over those, as a linker may put
/// instructions of its own there that use them; Go uses them in no other way.
pub fn is_dead(code: &[u8], from: usize, register: u32) -> bool {
    let (mut ways, mut n_ways) = ([from; WAYS], 1);
    let (mut next, mut steps) = (0, 0);
    // False if there are too many, or it leads out of everything.
    let add = |ways: &mut [usize; WAYS], n: &mut usize, at: usize, distance: i32| {
        let Some(there) = at.checked_add_signed(distance as isize) else { return false };
        if !ways[..*n].contains(&there) {
            let Some(way) = ways.get_mut(*n) else { return false };
            *way = there;
            *n += 1;
        }
        true
    };
    while next < n_ways {
        let mut at = ways[next];
        next += 1;
        loop {
            steps += 1;
            let Some(here) = word(code, at).filter(|_| steps < STEPS) else { return false };
            if may_use(here) & 1 << register != 0 {
                match overwrites(here, register) {
                    true => break,
                    false => return false,
                }
            }
            match flow(here) {
                Flow::Next => {}
                Flow::If(distance) if add(&mut ways, &mut n_ways, at, distance) => {}
                Flow::Jump(distance) if add(&mut ways, &mut n_ways, at, distance) => break,
                Flow::Call(_) | Flow::Return | Flow::Trap => break,
                Flow::If(_) | Flow::Jump(_) | Flow::Away => return false,
            }
            at += 4;
            // Another way goes on there.
            if ways[..n_ways].contains(&at) {
                break;
            }
        }
    }
    true
}
