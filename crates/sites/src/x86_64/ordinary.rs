//! Whether what stands around a place is what compilers and people write: data that is read as
//! instructions soon has some that nobody uses. Nearly every byte begins an instruction, so chains
//! that begin in a table agree with each other as those in code do.

use super::{Flow, decode};

/// How far before a place instructions are looked at.
const BEFORE: usize = 32;
/// How far before that a chain begins, to be in step by then.
const LEAD: usize = 64;
/// How many instructions behind it.
const BEHIND: usize = 8;

/// How many of the instructions before the `syscall` at `at` nobody would write there, and how many
/// behind it, up to a jump or a return, behind which is something else. What is before it may be a
/// table, too, in front of a function that begins just here.
pub fn strange(code: &[u8], at: usize) -> [u32; 2] {
    let mut n = 0;
    let mut next = at.saturating_sub(BEFORE + LEAD);
    while next < at {
        let inst = decode(&code[next..]);
        if next + BEFORE >= at {
            n += u32::from(inst.is_none() || is_strange(&code[next..]));
        }
        next += inst.map_or(1, |inst| inst.len);
    }
    let before = core::mem::take(&mut n);
    next = at + 2;
    for _ in 0..BEHIND {
        let Some(inst) = code.get(next..).and_then(decode) else {
            n += 1;
            next += 1;
            continue;
        };
        n += u32::from(is_strange(&code[next..]));
        // A return, or a trap.
        let ends = matches!(code[next..], [0xc3 | 0xf4 | 0xcc, ..] | [0x0f, 0x0b, ..]);
        if ends || matches!(inst.flow, Flow::Jump(_)) {
            break;
        }
        next += inst.len;
    }
    [before, n]
}

/// Whether nobody uses this instruction near a system call: those of the kernel, of decimal and
/// string arithmetic of old, of the x87, of segments; bytes added to memory, which is what zeros are.
fn is_strange(code: &[u8]) -> bool {
    const PREFIXES: [u8; 11] = [0x66, 0x67, 0xf2, 0xf3, 0xf0, 0x2e, 0x36, 0x3e, 0x26, 0x64, 0x65];
    let n = code.iter().take_while(|byte| PREFIXES.contains(byte)).count();
    let (prefixes, rest) = code.split_at(n);
    if prefixes.iter().any(|byte| matches!(byte, 0x67 | 0x26 | 0x36)) {
        return true;
    }
    let rest = match rest {
        [0x40..=0x4f, rest @ ..] => rest,
        rest => rest,
    };
    match *rest {
        // Padding has many of them.
        [0x0f | 0x90, ..] if n > 2 => false,
        _ if n > 2 => true,
        [0x0f, op, ..] => matches!(
            op,
            0x00..=0x04 | 0x06..=0x0a | 0x0c..=0x0f | 0x19..=0x1d | 0x20..=0x27 | 0x30 | 0x32..=0x37
                | 0x39 | 0x3b..=0x3f | 0xa0 | 0xa1 | 0xa6..=0xaa | 0xc2..=0xc5
        ),
        [op, ..] => matches!(
            op,
            0x00 | 0x02 | 0x04..=0x07 | 0x0e | 0x10..=0x17 | 0x1c..=0x1f | 0x27 | 0x2f | 0x37 | 0x3f
                | 0x6c..=0x6f | 0x8c | 0x8e | 0x9a | 0x9b | 0x9e..=0xa3 | 0xc2 | 0xc8 | 0xca | 0xcb
                | 0xcd..=0xcf | 0xd4..=0xe7 | 0xec..=0xef | 0xf1 | 0xf5 | 0xf8..=0xfb | 0xfd
        ),
        [] => true,
    }
}
