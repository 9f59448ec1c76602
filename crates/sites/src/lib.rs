//! The system calls in the machine code of a program: where they are, and how each can be made to jump somewhere
//! else first.
//!
//! A program that makes system calls without libc has few instructions for it. `find` tells them from what only
//! looks like one, leaves alone those that only ever make calls that nobody wants, finds for each other one what a
//! jump can take the place of, and says of which it cannot tell. `stub` writes what the jump leads to. Nothing
//! here changes code: that is for whoever has mapped it.
//!
//! A program is to be left as it is if one of its wanted sites is undecided: a read that is seen
//! beside a write that is not is worse than neither.
//!
//! Both machines are there on each of them; the names without a path are those of the one that this is built for.
#![no_std]

pub mod aarch64;
pub mod x86_64;

#[cfg(target_arch = "aarch64")]
pub use aarch64::*;
#[cfg(not(target_arch = "aarch64"))]
pub use x86_64::*;

/// The system calls that are wanted have numbers below this one.
pub const NUMBERS: usize = 512;

/// Numbers of system calls: true for those that are to be seen.
pub type Wanted = [bool; NUMBERS];

/// What is at a place, with windows of one machine or the other.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum What<W> {
    /// A part of another instruction, or data.
    Data,
    /// An instruction whose number is always this one, which is not wanted.
    Unwanted(u32),
    /// An instruction that can be made to jump.
    Site(W),
    /// Nobody can tell, or nothing can be done about it.
    Undecided(Why),
}

/// Why a site cannot be decided on.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Why {
    /// So many of `VOTES` chains of instructions met it.
    Votes(u32),
    /// Nothing around it can be moved, or no register is to be had.
    Room,
    /// What stands around it hardly anybody writes around a call.
    Strange,
}

/// Where a call is made that is left to the program.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Plain {
    /// By the program's own instruction, if that is not moved.
    InPlace,
    /// Always by one in the stub.
    InStub,
}

/// What `stub` has written.
#[derive(Clone, Copy, Debug)]
pub struct Stub {
    /// How long it is.
    pub len: usize,
    /// Where a call is made that is left to the program.
    pub plain: u64,
}

/// A call of the program, as an entry to which stubs lead puts it down.
#[repr(C)]
pub struct Call {
    /// The number; on x86-64 the result, too.
    number: usize,
    /// The arguments; on arm64 the first is the result, too.
    pub given: [usize; 6],
    /// Where it goes on: at the instruction, or behind that.
    pub next: usize,
}

impl Call {
    /// The kernel looks at no more of it.
    pub fn number(&self) -> i64 {
        i64::from(self.number as u32)
    }

    /// What the kernel would be told.
    pub fn arguments(&self) -> [usize; 6] {
        self.given
    }

    /// The same call, of other arguments.
    pub fn with(&self, given: [usize; 6]) -> Call {
        Call { given, ..*self }
    }

    /// The result is known.
    pub fn done(&mut self, result: isize) {
        let result = result.cast_unsigned();
        if cfg!(target_arch = "aarch64") {
            self.given[0] = result;
            self.next += 4;
        } else {
            self.number = result;
            self.next += 2;
        }
    }
}
