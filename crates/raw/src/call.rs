//! A system call of the program.

use smc::sys;

/// Registers of the program at a call, in the order in which the entry puts them down.
#[repr(C)]
pub struct Call {
    /// The number; the result.
    pub rax: usize,
    pub rdi: usize,
    pub rsi: usize,
    pub rdx: usize,
    pub r10: usize,
    pub r8: usize,
    pub r9: usize,
    /// Where it goes on: at a `syscall`, or behind that.
    pub rcx: usize,
}

impl Call {
    /// The kernel looks at no more of it.
    pub fn number(&self) -> i64 {
        i64::from(self.rax as u32)
    }

    /// The result is known.
    pub fn done(&mut self, result: isize) {
        self.rax = result.cast_unsigned();
        self.rcx += 2;
    }

    /// The call as the kernel makes it.
    pub fn plain(&self) -> isize {
        let n = self.number();
        // SAFETY: the program's own call.
        unsafe { sys::by_number(n, self.rdi, self.rsi, self.rdx, self.r10, self.r8, self.r9) }
    }
}
