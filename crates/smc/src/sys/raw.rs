//! The instruction itself.
#![allow(unsafe_code)]

/// Issues system call `n`.
///
/// # Safety
/// The arguments must be valid for that call, as for `syscall(2)`.
#[cfg(target_arch = "x86_64")]
#[inline(always)]
pub unsafe fn syscall(n: i64, a: usize, b: usize, c: usize, d: usize, e: usize, f: usize) -> isize {
    let ret: isize;
    // SAFETY: the caller vouches for the arguments; rcx and r11 are what the instruction clobbers.
    unsafe {
        core::arch::asm!(
            "syscall",
            inlateout("rax") n as isize => ret,
            in("rdi") a, in("rsi") b, in("rdx") c, in("r10") d, in("r8") e, in("r9") f,
            lateout("rcx") _, lateout("r11") _,
            options(nostack)
        );
    }
    ret
}

/// Issues system call `n`.
///
/// # Safety
/// The arguments must be valid for that call, as for `syscall(2)`.
#[cfg(target_arch = "aarch64")]
#[inline(always)]
pub unsafe fn syscall(n: i64, a: usize, b: usize, c: usize, d: usize, e: usize, f: usize) -> isize {
    let ret: isize;
    // SAFETY: the caller vouches for the arguments.
    unsafe {
        core::arch::asm!(
            "svc 0",
            in("x8") n,
            inlateout("x0") a as isize => ret,
            in("x1") b, in("x2") c, in("x3") d, in("x4") e, in("x5") f,
            options(nostack)
        );
    }
    ret
}

/// The same, with its arguments as they lie in memory.
///
/// # Safety
/// As for `syscall`.
pub unsafe fn by_list(n: i64, [a, b, c, d, e, f]: [usize; 6]) -> isize {
    // SAFETY: forwarded.
    unsafe { syscall(n, a, b, c, d, e, f) }
}
