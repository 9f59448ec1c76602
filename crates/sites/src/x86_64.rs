//! x86-64: the `syscall` instructions of machine code, among many places where the same two bytes are a part of
//! something else, and where around each a jump of five bytes fits.

mod calls;
mod entry;
mod inst;
mod lengths;
mod ordinary;
mod stub;
mod window;

use core::ops::Range;

use crate::{NUMBERS, Plain, Stub, Wanted, What, Why};
use lengths::Lengths;

pub use calls::{OF_CONNECTIONS, OF_PROGRAMS};
pub use inst::{Flow, Inst, decode};
pub use lengths::{BEFORE, BEHIND};
pub use stub::{AREA_HEAD, LONGEST_STUB, area_head, jump, stub};
pub use window::{Kind, LONGEST as LONGEST_WINDOW, Window};

/// What is at two bytes that read `syscall`.
pub type Found = What<Window>;

/// Code may begin anywhere.
pub const ALIGN: u64 = 1;

/// How many chains of instructions are asked.
pub const VOTES: u32 = 32;
/// So many strange instructions are not around any call.
const SURELY_DATA: u32 = 3;

/// Each place in `code` where the two bytes stand, with what is there. `code` must begin where an
/// instruction does.
pub fn find<'a>(code: &'a [u8], wanted: &'a Wanted) -> impl Iterator<Item = (usize, Found)> + 'a {
    places(code).map(move |at| (at, judge(code, at, wanted)))
}

/// Each place of the two bytes.
pub fn places(code: &[u8]) -> impl Iterator<Item = usize> + '_ {
    const BLOCK: usize = 64;
    let end = code.len().saturating_sub(1);
    // Of a known length and without a way out, so that many bytes are compared at once: a program has
    // megabytes.
    let has_any = |block: &Range<usize>| {
        let Some(bytes) = code[block.start..].first_chunk::<{ BLOCK + 1 }>() else { return true };
        let is_one = |i: usize| u8::from((bytes[i] == 0x0f) & (bytes[i + 1] == 0x05));
        (0..BLOCK).fold(0, |any, i| any | is_one(i)) != 0
    };
    (0..end)
        .step_by(BLOCK)
        .map(move |at| at..(at + BLOCK).min(end))
        .filter(has_any)
        .flatten()
        .filter(|&at| code[at..at + 2] == [0x0f, 0x05])
}

/// What is at a place of the two bytes.
pub fn judge(code: &[u8], at: usize, wanted: &Wanted) -> Found {
    let mut near = Lengths::before(code, at);
    match near.votes(at) {
        0 => return Found::Data,
        VOTES => {}
        some => return Found::Undecided(Why::Votes(some)),
    }
    let number = window::number(code, at, &mut near);
    if let Some((number, _)) = number
        && !wanted.get(number as usize).is_some_and(|wanted| *wanted)
    {
        return Found::Unwanted(number);
    }
    if number.is_none() {
        // A register that has a constant since a while is no place for a jump, but tells the number.
        if let Some(number) = window::number_before(code, at, &mut near)
            && !wanted.get(number as usize).is_some_and(|wanted| *wanted)
        {
            return Found::Unwanted(number);
        }
        match ordinary::strange(code, at) {
            [0, 0] => {}
            // On one side alone that may be a table beside a function: taken for data, a call in there
            // would pass unseen.
            [before, behind] if before.min(behind) > 0 && before + behind >= SURELY_DATA => {
                return Found::Data;
            }
            _ => return Found::Undecided(Why::Strange),
        }
    }
    window::choose(code, at, number, &mut near).map_or(Found::Undecided(Why::Room), Found::Site)
}

/// Whether the function around `at` uses more than 128 bits of a vector register. If it does not, it
/// keeps nothing in their upper halves, and neither can those that have called it: by the rules of C
/// and of Go each function may use them. A function ends for this in a jump, return or trap with
/// padding behind it.
pub fn is_among_wide(code: &[u8], at: usize) -> bool {
    const NEAR: usize = 4096;
    let mut from = at.saturating_sub(NEAR);
    while from > 0 && from < at && votes(code, from) != VOTES {
        from += 1;
    }
    let (mut is_wide, mut has_ended) = (false, false);
    while from < (at + NEAR).min(code.len()) {
        let Some(inst) = decode(&code[from..]) else {
            from += 1;
            continue;
        };
        let is_padding = matches!(&code[from..from + inst.len], [0xcc] | [0x90])
            || code[from..from + inst.len].windows(2).any(|two| two == [0x0f, 0x1f]);
        if has_ended && is_padding {
            if from > at {
                break;
            }
            is_wide = false;
        }
        is_wide |= inst.is_wide;
        has_ended = matches!(inst.flow, Flow::Away | Flow::Jump(_)) || has_ended && is_padding;
        from += inst.len;
    }
    is_wide
}

/// How many of [`VOTES`] chains of instructions, begun at each of as many places before `at`, have
/// one that begins at `at`. Those that would begin before the code begin where it does. What is no
/// instruction is passed byte by byte.
pub fn votes(code: &[u8], at: usize) -> u32 {
    Lengths::before(code, at).votes(at)
}
