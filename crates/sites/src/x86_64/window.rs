//! Where around a `syscall` a jump of five bytes may stand.

use core::ops::Range;

use super::lengths::Lengths;
use super::{Flow, decode, votes};

/// How long a jump is.
pub const JUMP: usize = 5;
/// How many instructions before or behind a site are looked at.
const NEIGHBOURS: usize = 6;
/// How far before a site its neighbours are told apart.
pub const REACH: usize = 32;
/// How far around a window is looked for jumps into it: a short one reaches 128 bytes; a long one is
/// looked for as far as functions are long.
const FUNCTION: usize = 8 << 10;

/// The bytes that a jump is put over, and what they are.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Window {
    /// Where the `syscall` is.
    pub at: usize,
    /// Where the window begins.
    pub start: usize,
    /// Where it ends, and the program goes on.
    pub end: usize,
    /// What lies in it.
    pub kind: Kind,
}

impl Window {
    /// The bytes that the jump takes the place of: no more than [`LONGEST`].
    pub fn replaced(&self) -> Range<usize> {
        match self.kind {
            Kind::Number(_) | Kind::Before => self.start..self.at,
            Kind::Around => self.start..self.end,
        }
    }

    /// Whether the call's number is known.
    pub fn has_number(&self) -> bool {
        matches!(self.kind, Kind::Number(_))
    }
}

/// The most bytes that a jump takes the place of: four, and one more instruction.
pub const LONGEST: usize = 19;

/// What the bytes of a window are.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Kind {
    /// A move of the number to eax, directly before the `syscall`, which stays where it is.
    Number(u32),
    /// Other instructions there, which are moved.
    Before,
    /// The `syscall`, and instructions around it that are moved.
    Around,
}

/// The number that the `syscall` at `at` always has, if a move of a constant to eax or rax directly
/// before it says so, and where that begins.
pub fn number(code: &[u8], at: usize, near: &mut Lengths<'_>) -> Option<(u32, usize)> {
    const MOVES: [&[u8]; 3] = [&[0xb8], &[0xc7, 0xc0], &[0x48, 0xc7, 0xc0]];
    MOVES.iter().rev().find_map(|opcode| {
        let start = at.checked_sub(opcode.len() + 4)?;
        let number = code[start..at].strip_prefix(*opcode)?;
        // A prefix would belong to it, and make something else of it.
        let is_one = near.votes(start) == super::VOTES && !is_entered(code, start..at + 1);
        is_one.then_some((u32::from_le_bytes(number.try_into().ok()?), start))
    })
}

/// The number that the `syscall` at `at` always has, if a move of a constant to eax is followed by
/// nothing but instructions that leave eax alone.
pub fn number_before(code: &[u8], at: usize, near: &mut Lengths<'_>) -> Option<u32> {
    let mut next = at.saturating_sub(REACH);
    while next < at && near.votes(next) != super::VOTES {
        next += 1;
    }
    let mut found = None;
    while next < at {
        let inst = decode(&code[next..])?;
        let bytes = &code[next..next + inst.len];
        if let [0xb8, a, b, c, d] = *bytes {
            found = Some((u32::from_le_bytes([a, b, c, d]), next));
        } else if inst.flow != Flow::Next || !keeps_eax(bytes) {
            found = None;
        }
        next += inst.len;
    }
    let (number, start) = found.filter(|_| next == at)?;
    (!is_entered(code, start..at + 1)).then_some(number)
}

/// Whether an instruction is one of the few of which it is known that they leave eax alone: moves,
/// addresses and zeros for other registers.
fn keeps_eax(bytes: &[u8]) -> bool {
    let (rex, rest) = match *bytes {
        [rex @ 0x40..=0x4f, ..] => (rex, &bytes[1..]),
        _ => (0, bytes),
    };
    // Registers that a ModRM byte names, the second only if it is no address.
    let register = |modrm: u8| modrm >> 3 & 7 | (rex & 4) << 1;
    let other = |modrm: u8| (modrm >> 6 == 3).then_some(modrm & 7 | (rex & 1) << 3);
    match *rest {
        [0x8d | 0x8b, modrm, ..] => register(modrm) != 0,
        [0x33, modrm, ..] if other(modrm).is_some() => register(modrm) != 0,
        [0x89 | 0x31 | 0xc7, modrm, ..] => other(modrm).is_some_and(|register| register != 0),
        [op @ 0xb8..=0xbf, ..] => op & 7 | (rex & 1) << 3 != 0,
        _ => false,
    }
}

/// The window of the site at `at`, whose number is known, or not.
pub fn choose(
    code: &[u8],
    at: usize,
    number: Option<(u32, usize)>,
    near: &mut Lengths<'_>,
) -> Option<Window> {
    if let Some((number, start)) = number {
        return Some(Window { at, start, end: at + 2, kind: Kind::Number(number) });
    }
    before(code, at, near)
        .or_else(|| forward(code, at))
        .or_else(|| backward(code, at, near, at + 2, Kind::Around))
}

/// What precedes the `syscall` of a function of Go's: the call stays in that, so that a signal that arrives in
/// it finds there what Go expects, and a report of a crash names the function.
fn before(code: &[u8], at: usize, near: &mut Lengths<'_>) -> Option<Window> {
    // cmp $-4095, %rax: elsewhere what follows the call is moved, where hardly anybody comes from afar.
    const BEHIND: [u8; 6] = [0x48, 0x3d, 0x01, 0xf0, 0xff, 0xff];
    // Another call's window may hold what lies between the two.
    let is_one_near = code[at.saturating_sub(LEAD)..at].windows(2).any(|two| two == [0x0f, 0x05]);
    if is_one_near || !code[at + 2..].starts_with(&BEHIND) {
        return None;
    }
    backward(code, at, near, at, Kind::Before)
}

/// The `syscall` and what follows it.
fn forward(code: &[u8], at: usize) -> Option<Window> {
    let mut end = at + 2;
    let mut goes_on = true;
    for _ in 0..NEIGHBOURS {
        if end - at >= JUMP {
            let window = Window { at, start: at, end, kind: Kind::Around };
            return (!is_entered(code, at..end)).then_some(window);
        }
        if !goes_on {
            // Nobody comes here: what fills the space up to the next function.
            match code.get(end)? {
                0xcc | 0x90 => end += 1,
                _ => return None,
            }
            continue;
        }
        let inst = decode(&code[end..])?;
        if inst.is_rip_relative {
            return None;
        }
        goes_on = match inst.flow {
            Flow::Next => true,
            // The way on from it leads to the window's end, so it must be the last.
            Flow::If(..) if end + inst.len - at >= JUMP => true,
            Flow::Jump(_) => false,
            Flow::Away if code[end] == 0xc3 => false,
            _ => return None,
        };
        end += inst.len;
    }
    None
}

/// The last instructions before the `syscall` with which the jump has room up to `end`.
fn backward(
    code: &[u8],
    at: usize,
    near: &mut Lengths<'_>,
    end: usize,
    kind: Kind,
) -> Option<Window> {
    // The instructions before it, by the chain that each chain ends up in.
    let mut starts = [0; 2 * LEAD];
    let mut count = 0;
    let mut next = at.saturating_sub(LEAD);
    while next > 0 && next < at && near.votes(next) != super::VOTES {
        next += 1;
    }
    while next < at && count < starts.len() {
        starts[count] = next;
        count += 1;
        next += decode(&code[next..])?.len;
    }
    if next != at {
        return None;
    }
    for &start in starts[..count].iter().rev() {
        let inst = decode(&code[start..])?;
        // A function may begin behind padding, and be entered from where nobody looks.
        if inst.flow != Flow::Next
            || inst.is_rip_relative
            || is_between(&code[start..start + inst.len])
        {
            return None;
        }
        if end - start >= JUMP {
            // An instruction before that calls something comes back to the window's start: so does
            // a jump, and both find ours there. Whoever jumps to a call that stays where it is passes
            // ours by.
            let window = Window { at, start, end: at + 2, kind };
            return (!is_entered(code, start..end.max(at + 1))).then_some(window);
        }
    }
    None
}

/// Whether an instruction is one that stands between functions, or where one begins: `nop` of any length, `int3`
/// or `endbr64`.
fn is_between(inst: &[u8]) -> bool {
    let prefixes = inst.iter().take_while(|byte| matches!(byte, 0x66 | 0x2e | 0x40..=0x4f)).count();
    matches!(inst[prefixes..], [0x90 | 0xcc] | [0x0f, 0x1f, ..] | [0xf3, 0x0f, 0x1e, ..])
}

/// How many bytes before a site are looked at.
const LEAD: usize = 24;

/// Whether anything nearby that may be a jump or a call leads into the window, to another place than
/// its start.
fn is_entered(code: &[u8], window: Range<usize>) -> bool {
    let leads_inside = |start: usize, end: usize, distance: i32| {
        let to = end as i64 + i64::from(distance);
        // Most of such bytes are in the middle of something else.
        to > window.start as i64 && to < window.end as i64 && votes(code, start) > 0
    };
    let near = window.start.saturating_sub(130)..(window.end + 130).min(code.len());
    let short = near.skip(1).any(|i| {
        matches!(code[i - 1], 0x70..=0x7f | 0xe0..=0xe3 | 0xeb)
            && leads_inside(i - 1, i + 1, code[i].cast_signed().into())
    });
    if short {
        return true;
    }
    let far = window.start.saturating_sub(FUNCTION)..(window.end + FUNCTION).min(code.len());
    let distance =
        |at: usize| i32::from_le_bytes([code[at], code[at + 1], code[at + 2], code[at + 3]]);
    long_ones(code, far, &window).any(|at| match code[..at] {
        [.., 0x0f, 0x80..=0x8f] => leads_inside(at - 2, at + 4, distance(at)),
        [.., 0xe8 | 0xe9] => leads_inside(at - 1, at + 4, distance(at)),
        _ => false,
    })
}

/// The places in `range` whose four bytes, as the distance of a jump, may lead into the window, to
/// another place than its start.
fn long_ones<'a>(
    code: &'a [u8],
    range: Range<usize>,
    window: &Range<usize>,
) -> impl Iterator<Item = usize> + use<'a> {
    const BLOCK: usize = 64;
    let end = range.end.saturating_sub(3);
    let inside = (window.end - window.start) as u16 - 1;
    // The distance from the byte 0 of the code that would lead to the byte behind the window's start:
    // one less for each byte further on.
    let first = (window.start as u16).wrapping_add(1).wrapping_sub(4);
    let may = move |low: [u8; 2], at: usize| {
        let wanted = first.wrapping_sub(at as u16);
        u16::from_le_bytes(low).wrapping_sub(wanted) < inside
    };
    // The lower halves, of a known number and without a way out, so that many are compared at once: first those
    // at even distances, then those between, as only neighbours are loaded together.
    let has_one = move |bytes: &[u8; BLOCK], start: usize| {
        let (pairs, _) = bytes.as_chunks::<2>();
        let is_one = |(i, low): (usize, &[u8; 2])| u16::from(may(*low, start + 2 * i));
        pairs.iter().enumerate().map(is_one).fold(0, |any, one| any | one) != 0
    };
    let has_any = move |block: &Range<usize>| {
        let Some(bytes) = code[block.start..].first_chunk::<{ BLOCK + 1 }>() else { return true };
        let [even, odd] = [bytes.first_chunk::<BLOCK>(), bytes.last_chunk::<BLOCK>()];
        even.is_some_and(|bytes| has_one(bytes, block.start))
            || odd.is_some_and(|bytes| has_one(bytes, block.start + 1))
    };
    (range.start..end)
        .step_by(BLOCK)
        .map(move |at| at..(at + BLOCK).min(end))
        .filter(has_any)
        .flatten()
        .filter(move |&at| may([code[at], code[at + 1]], at))
}
