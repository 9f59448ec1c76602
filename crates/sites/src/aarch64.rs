//! arm64: `svc #0` is one word, a branch another one that reaches 128 MiB, so a jump takes the place of one
//! instruction: of what precedes the call, or of the call. What is to be had at each is two registers that its function does not need any more
//! (`registers.rs`): the kernel leaves the program all of them.
//!
//! A thread's own pointer, `tpidr_el0`, is the one register that programs leave to the front that follows them, if
//! their own reads and writes of it lead elsewhere: each of these instructions is a place, too. They are told by
//! 27 bits of a word, of which a data word has one chance in a hundred million.

mod calls;
mod registers;
mod stub;

use core::ops::Range;

use crate::{NUMBERS, Plain, Stub, Wanted, What, Why};
use registers::{Flow, flow, is_dead, is_movable, may_use};

pub use calls::{OF_CONNECTIONS, OF_PROGRAMS};
pub use stub::{AREA_HEAD, LONGEST_STUB, POINTER, area_head, jump, stub};

/// What is at a word that reads `svc #0`, or a read or write of the thread pointer.
pub type Found = What<Window>;

/// Code begins at multiples of it.
pub const ALIGN: u64 = 4;
/// One look at a word tells what it is.
pub const VOTES: u32 = 1;
/// So many bytes before a place, and so many from it on, tell whether it may be one.
pub const BEFORE: usize = 0;
/// See `BEFORE`.
pub const BEHIND: usize = 4;
/// The bytes that a jump takes the place of.
pub const LONGEST_WINDOW: usize = 4;

const CALL: u32 = 0xd400_0001;
/// `mrs x0, tpidr_el0`: the register is in the low bits.
const READ: u32 = 0xd53b_d040;
/// `msr tpidr_el0, x0`
const WRITE: u32 = 0xd51b_d040;
/// The register of a call's number.
const NUMBER: u32 = 8;
/// Registers that stubs use: those that a linker's own branches between functions may use.
const FREE: [u32; 2] = [16, 17];
/// `xzr`, or none.
const NONE: u32 = 31;

/// How far around a place is looked for what leads there: as far as functions are long.
const FUNCTION: usize = 32 << 10;
/// How far for what loads it as data: constants lie beside their function.
const CONSTANTS: usize = 4 << 10;
/// How many instructions before a call its number is looked for.
const BEFORE_CALL: usize = 8;

/// The instruction that a jump is put over, and what it is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Window {
    /// Where it is.
    pub at: usize,
    /// Where the window begins: there, or one instruction before it, which is moved.
    pub start: usize,
    /// Where it ends, and the program goes on.
    pub end: usize,
    /// What it is.
    pub kind: Kind,
}

impl Window {
    fn new(at: usize, kind: Kind) -> Window {
        Window { at, start: at, end: at + 4, kind }
    }

    /// The bytes that the jump takes the place of.
    pub fn replaced(&self) -> Range<usize> {
        self.start..self.start + 4
    }

    /// Whether the call's number is known.
    pub fn has_number(&self) -> bool {
        matches!(self.kind, Kind::Call(Some(_)))
    }
}

/// What is in a window.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Kind {
    /// A system call, and its number if that is always the same.
    Call(Option<u32>),
    /// A read of the thread pointer to this register.
    Read(u32),
    /// A write of it from this register.
    Write(u32),
}

fn word(code: &[u8], at: usize) -> Option<u32> {
    code.get(at..)?.first_chunk().map(|bytes| u32::from_le_bytes(*bytes))
}

fn is_place(word: u32) -> bool {
    // A read and a write differ in one bit.
    word == CALL || word & !(READ ^ WRITE | 31) == WRITE & READ
}

/// Each place in `code` with what is there. `code` must begin where an instruction does.
pub fn find<'a>(code: &'a [u8], wanted: &'a Wanted) -> impl Iterator<Item = (usize, Found)> + 'a {
    places(code).map(move |at| (at, judge(code, at, wanted)))
}

/// Each place: words that read as one of the three instructions.
pub fn places(code: &[u8]) -> impl Iterator<Item = usize> + '_ {
    const BLOCK: usize = 64;
    let end = code.len() / 4 * 4;
    // Of a known length and without a way out, so that many words are compared at once: a program has
    // megabytes.
    let has_any = |block: &Range<usize>| {
        let Some(bytes) = code[block.start..].first_chunk::<BLOCK>() else { return true };
        let (words, _) = bytes.as_chunks::<4>();
        words.iter().fold(0, |any, word| any | u8::from(is_place(u32::from_le_bytes(*word)))) != 0
    };
    (0..end)
        .step_by(BLOCK)
        .map(move |at| at..(at + BLOCK).min(end))
        .filter(has_any)
        .flat_map(|block| block.step_by(4))
        .filter(|&at| word(code, at).is_some_and(is_place))
}

/// Whether the word at `at` may be an instruction: [`VOTES`], or 0.
pub fn votes(code: &[u8], at: usize) -> u32 {
    u32::from(at.is_multiple_of(4) && word(code, at).is_some_and(is_place))
}

/// What is at a place.
pub fn judge(code: &[u8], at: usize, wanted: &Wanted) -> Found {
    let Some(here) = word(code, at).filter(|_| votes(code, at) == VOTES) else {
        return Found::Data;
    };
    // Some instruction leads to each, and one of them follows, or another function.
    let is_none = |at: Option<usize>| {
        at.and_then(|at| word(code, at)).is_none_or(|word| matches!(flow(word), Flow::Trap))
    };
    if is_none(at.checked_sub(4)) && is_none(at.checked_add(4)) && code.len() > 8 {
        return Found::Data;
    }
    if is_loaded(code, at) {
        return Found::Undecided(Why::Strange);
    }
    if here != CALL {
        let register = here & 31;
        return match here & !31 {
            READ if register == NONE => Found::Data,
            READ => Found::Site(Window::new(at, Kind::Read(register))),
            _ => Found::Site(Window::new(at, Kind::Write(register))),
        };
    }
    let number = number(code, at);
    if let Some(number) = number
        && !wanted.get(number as usize).is_some_and(|wanted| *wanted)
    {
        return Found::Unwanted(number);
    }
    // exit and exit_group: nothing comes behind them that could need a register.
    let is_last = matches!(number, Some(93 | 94));
    if !is_last && !FREE.iter().all(|register| is_dead(code, at + 4, *register)) {
        return Found::Undecided(Why::Room);
    }
    let start = if stays(code, at) { at - 4 } else { at };
    Found::Site(Window { start, ..Window::new(at, Kind::Call(number)) })
}

/// Whether a call can be left where it is, with the jump in the place of what precedes it: a signal that arrives in
/// it finds there what Go, an unwinder or musl's pthread_cancel expects, and a report of a crash names the function.
/// No function begins at such a call, as what precedes it goes on there.
fn stays(code: &[u8], at: usize) -> bool {
    let before = at.checked_sub(4).and_then(|at| word(code, at));
    before.is_some_and(|word| is_movable(word) && !is_place(word)) && !is_entered(code, at..at + 4)
}

/// The number that the call at `at` always has, if a constant is put into its register before it, and
/// nobody comes from elsewhere behind that.
fn number(code: &[u8], at: usize) -> Option<u32> {
    let mut from = at;
    for _ in 0..BEFORE_CALL {
        from = from.checked_sub(4)?;
        let here = word(code, from)?;
        if let Some(number) = constant(here) {
            return (!is_entered(code, from + 4..at + 4)).then_some(number);
        }
        if flow(here) != Flow::Next || may_use(here) & 1 << NUMBER != 0 {
            return None;
        }
    }
    None
}

/// The value that an instruction puts into the register of a number: by `movz`, or by an `orr` of what
/// that has another form for.
fn constant(word: u32) -> Option<u32> {
    if word & 31 != NUMBER {
        return None;
    }
    match word & 0x7fe0_0000 {
        0x5280_0000 => return Some(word >> 5 & 0xffff),
        _ if word & 0x7f80_03e0 == 0x3200_03e0 => {}
        _ => return None,
    }
    // Ones that are repeated over the register, and turned: of the pattern's size all bits above its highest
    // zero are ones in the field of its length.
    let (n, turn, ones) = (word >> 22 & 1, word >> 16 & 63, word >> 10 & 63);
    let size = 1 << (n << 6 | !ones & 63).checked_ilog2()?;
    let mask = size - 1;
    let ones = (ones & mask) + 1;
    let (turn, all) = (turn & mask, u64::MAX >> (64 - size));
    let pattern = u64::MAX >> (64 - ones);
    let turned = (pattern >> turn | pattern << ((size - turn) % 64)) & all;
    let pattern = if turn == 0 { pattern } else { turned };
    let value = (0..64 / size).fold(0, |value, i| value | pattern << (i * size));
    // The upper half is of no interest: the kernel looks at no more of it.
    Some(value as u32)
}

/// Whether an instruction nearby is one, by its word and by how many words further on `at` is. All of a block are
/// asked, without a way out, so that many are compared at once.
fn is_any_near(code: &[u8], at: usize, reach: usize, is_one: impl Fn(u32, u32) -> bool) -> bool {
    const BLOCK: usize = 16;
    let from = at.saturating_sub(reach);
    let (words, _) = code[from..(at + reach).min(code.len())].as_chunks::<4>();
    let (blocks, rest) = words.as_chunks::<BLOCK>();
    let ahead = ((at - from) / 4) as u32;
    let has_one = |words: &[[u8; 4]], ahead: u32| {
        let all = words.iter().zip(0..).map(|(word, i)| (u32::from_le_bytes(*word), i));
        all.fold(false, |any, (word, i)| any | is_one(word, ahead.wrapping_sub(i)))
    };
    let behind = |i: usize| ahead.wrapping_sub((i * BLOCK) as u32);
    blocks.iter().enumerate().any(|(i, block)| has_one(block, behind(i)))
        || has_one(rest, behind(blocks.len()))
}

/// Whether a branch nearby leads into `range`.
fn is_entered(code: &[u8], range: Range<usize>) -> bool {
    let n = (range.len() / 4) as u32;
    is_any_near(code, range.start, FUNCTION, |word, ahead| {
        let leads = |distance: u32, bits: u32| {
            distance.wrapping_sub(ahead) << (32 - bits) >> (32 - bits) < n
        };
        let near = word & 0x7e00_0000 == 0x3400_0000 || word >> 24 == 0x54;
        (word & 0x7c00_0000 == 0x1400_0000) & leads(word, 26)
            | near & leads(word >> 5, 19)
            | (word & 0x7e00_0000 == 0x3600_0000) & leads(word >> 5, 14)
    })
}

/// Whether an instruction nearby loads the word from where it is: it is data then.
fn is_loaded(code: &[u8], at: usize) -> bool {
    is_any_near(code, at, CONSTANTS, |word, ahead| {
        // How far into what is loaded, and how long that is: one, two or four words.
        let (to, size) =
            (ahead.wrapping_sub(word >> 5) & 0x7_ffff, word >> 30 & (1 | word >> 25 & 2));
        let is_in = (to < 1) | (to < 2) & (size > 0) | (to < 4) & (size > 1);
        (word & 0x3b00_0000 == 0x1800_0000) & is_in
    })
}

/// Whether anything is kept at a place that a call does not keep: nothing, as vector registers are kept
/// whole, but for what the kernel itself lets go.
pub fn is_among_wide(_code: &[u8], _at: usize) -> bool {
    false
}
