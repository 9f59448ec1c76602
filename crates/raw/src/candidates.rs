//! Where in a program's file there may be system calls.
//!
//! The file is read in blocks, not looked at where it is mapped: a page that is touched there costs more
//! than a copy of it, makes each later change of access to the code dearer, and few are ever touched by the
//! program itself.

use alloc::vec;
use alloc::vec::Vec;
use core::ops::Range;

use sites::{BEFORE, BEHIND, Found, Wanted};
use smc::sys;

/// What stays in the processor's cache between the copy and the look.
const BLOCK: usize = 64 << 10;

/// Two bytes that read `syscall`.
pub struct Candidate {
    /// Where, in a segment's code.
    at: usize,
    /// No chain of instructions meets it.
    is_data: bool,
}

/// All in a part of a file. None if it cannot be read.
pub fn read(fd: i32, part: Range<u64>) -> Option<Vec<Candidate>> {
    let len = usize::try_from(part.end - part.start).ok()?;
    let mut buffer = vec![0; BEFORE + BLOCK + BEHIND];
    let mut all = Vec::new();
    for from in (0..len).step_by(BLOCK) {
        // With what votes on a place look at.
        let (start, end) = (from.saturating_sub(BEFORE), (from + BLOCK + BEHIND).min(len));
        let bytes = &mut buffer[..end - start];
        let at = i64::try_from(part.start + start as u64).ok()?;
        // SAFETY: a buffer of that length.
        let n = unsafe { sys::read_into(fd, bytes.as_mut_ptr(), bytes.len(), Some(at)) };
        (n == bytes.len() as isize).then_some(())?;
        let own = from - start..from - start + BLOCK;
        for at in sites::places(bytes).filter(|at| own.contains(at)) {
            let is_data = sites::votes(bytes, at) == 0;
            all.push(Candidate { at: start + at, is_data });
        }
    }
    Some(all)
}

/// What they are, in the code as it was mapped.
pub fn judge(
    code: &'static [u8],
    all: &[Candidate],
    wanted: &'static Wanted,
) -> impl Iterator<Item = (usize, Found)> {
    all.iter().map(move |one| {
        let found = || sites::judge(code, one.at, wanted);
        (one.at, if one.is_data { Found::Data } else { found() })
    })
}
