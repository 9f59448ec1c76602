//! How long the instructions before a place are, should one begin at any byte there: each is decoded
//! once, however many places the chains of them are asked about.

use super::{VOTES, decode, window};

/// How far before a place the last chain begins that is asked, and so the first 31 bytes before that. A chain
/// that begins in the middle of an instruction is in step with the code after a few of them.
const LEAST_RUN: usize = 65;
/// How far the first one does.
const FARTHEST: usize = LEAST_RUN + VOTES as usize - 1;

/// So many bytes before a place, and so many from it on, tell whether any chain meets it.
pub const BEFORE: usize = FARTHEST;
/// See `BEFORE`: the longest instruction, which may begin just before the place.
pub const BEHIND: usize = 15;

/// Of each byte before a place.
pub struct Lengths<'a> {
    code: &'a [u8],
    from: usize,
    /// 0: not yet known.
    of: [u8; MOST],
}

const MOST: usize = FARTHEST + window::REACH;

impl<'a> Lengths<'a> {
    /// For the votes on places from `REACH` bytes before `at` up to `at`.
    pub fn before(code: &'a [u8], at: usize) -> Lengths<'a> {
        Lengths { code, from: at.saturating_sub(MOST), of: [0; MOST] }
    }

    /// As [`super::votes`].
    pub fn votes(&mut self, at: usize) -> u32 {
        const UNKNOWN: u8 = 0;
        const COMES: u8 = 1;
        const PASSES: u8 = 2;
        // What becomes of a chain from so far before `at`.
        let mut fate = [UNKNOWN; FARTHEST + 1];
        fate[0] = COMES;
        let mut votes = 0;
        for back in LEAST_RUN..=FARTHEST {
            let start = back.min(at);
            let mut now = start;
            // A chain that another one has gone is not gone again.
            let end = loop {
                if fate[now] != UNKNOWN {
                    break fate[now];
                }
                match now.checked_sub(self.length(at - now)) {
                    Some(next) => now = next,
                    None => break PASSES,
                }
            };
            now = start;
            while fate[now] == UNKNOWN {
                fate[now] = end;
                now = now.saturating_sub(self.length(at - now));
            }
            votes += u32::from(end == COMES);
        }
        votes
    }

    fn length(&mut self, at: usize) -> usize {
        let of = &mut self.of[at - self.from];
        if *of == 0 {
            *of = decode(&self.code[at..]).map_or(1, |inst| inst.len as u8);
        }
        (*of).into()
    }
}
