//! The few names that the compiler and the crates below expect of libc, without libc: by system calls
//! and instructions, without FS, without the upper halves of vector registers.
//!
//! SAFETY, of all that is exported here: the obligations are those of the C functions.

use core::arch::global_asm;
use core::ffi::{c_int, c_long, c_ulong};

use libc::{iovec, sigset_t, timespec};
use smc::sys;

// The compiler makes calls of these out of loops; a loop in Rust would become a call of itself.
global_asm!(
    ".pushsection .text.shortwire_memory, \"ax\", @progbits",
    ".macro shortwire_name name",
    ".balign 32",
    ".globl \\name",
    ".hidden \\name",
    ".type \\name, @function",
    "\\name:",
    ".endm",
    "shortwire_name memmove",
    "mov rax, rdi",
    "sub rax, rsi",
    "cmp rax, rdx",
    "jae memcpy",
    // The target begins inside the source: from the end.
    "mov rax, rdi",
    "mov rcx, rdx",
    "lea rdi, [rdi + rdx - 1]",
    "lea rsi, [rsi + rdx - 1]",
    "std",
    "rep movsb",
    "cld",
    "ret",
    "shortwire_name memcpy",
    "mov rax, rdi",
    "cmp rdx, 16",
    "jb 2f",
    "cmp rdx, 32",
    "ja 3f",
    "movups xmm0, [rsi]",
    "movups xmm1, [rsi + rdx - 16]",
    "movups [rdi], xmm0",
    "movups [rdi + rdx - 16], xmm1",
    "ret",
    "2:",
    "cmp edx, 8",
    "jb 4f",
    "mov rcx, [rsi]",
    "mov r8, [rsi + rdx - 8]",
    "mov [rdi], rcx",
    "mov [rdi + rdx - 8], r8",
    "ret",
    "4:",
    "cmp edx, 4",
    "jb 5f",
    "mov ecx, [rsi]",
    "mov r8d, [rsi + rdx - 4]",
    "mov [rdi], ecx",
    "mov [rdi + rdx - 4], r8d",
    "ret",
    "5:",
    "test edx, edx",
    "jz 6f",
    // One to three bytes: first, middle and last, which may be the same.
    "movzx ecx, byte ptr [rsi]",
    "movzx r8d, byte ptr [rsi + rdx - 1]",
    "mov r9d, edx",
    "shr r9d, 1",
    "movzx r10d, byte ptr [rsi + r9]",
    "mov [rdi], cl",
    "mov [rdi + r9], r10b",
    "mov [rdi + rdx - 1], r8b",
    "6:",
    "ret",
    // Whole pieces of 64 bytes, all loads before the first store; the last ones overlap.
    "3:",
    "cmp rdx, 64",
    "ja 7f",
    "movups xmm0, [rsi]",
    "movups xmm1, [rsi + 16]",
    "movups xmm2, [rsi + rdx - 32]",
    "movups xmm3, [rsi + rdx - 16]",
    "movups [rdi], xmm0",
    "movups [rdi + 16], xmm1",
    "movups [rdi + rdx - 32], xmm2",
    "movups [rdi + rdx - 16], xmm3",
    "ret",
    "7:",
    "movups xmm4, [rsi + rdx - 64]",
    "movups xmm5, [rsi + rdx - 48]",
    "movups xmm6, [rsi + rdx - 32]",
    "movups xmm7, [rsi + rdx - 16]",
    "lea r8, [rdi + rdx - 64]",
    "9:",
    "movups xmm0, [rsi]",
    "movups xmm1, [rsi + 16]",
    "movups xmm2, [rsi + 32]",
    "movups xmm3, [rsi + 48]",
    "movups [rdi], xmm0",
    "movups [rdi + 16], xmm1",
    "movups [rdi + 32], xmm2",
    "movups [rdi + 48], xmm3",
    "add rsi, 64",
    "add rdi, 64",
    "cmp rdi, r8",
    "jb 9b",
    "movups [r8], xmm4",
    "movups [r8 + 16], xmm5",
    "movups [r8 + 32], xmm6",
    "movups [r8 + 48], xmm7",
    "ret",
    "shortwire_name memset",
    "mov r8, rdi",
    "mov eax, esi",
    "mov rcx, rdx",
    "rep stosb",
    "mov rax, r8",
    "ret",
    "shortwire_name bcmp",
    "shortwire_name memcmp",
    "xor ecx, ecx",
    "2:",
    "cmp rcx, rdx",
    "jae 3f",
    "movzx eax, byte ptr [rdi + rcx]",
    "movzx r8d, byte ptr [rsi + rcx]",
    "inc rcx",
    "sub eax, r8d",
    "jz 2b",
    "ret",
    "3:",
    "xor eax, eax",
    "ret",
    "shortwire_name strlen",
    "xor eax, eax",
    "2:",
    "cmp byte ptr [rdi + rax], 0",
    "je 3f",
    "inc rax",
    "jmp 2b",
    "3:",
    "ret",
    ".popsection",
);

#[unsafe(no_mangle)]
unsafe extern "C" fn clock_gettime(clock: c_int, to: *mut timespec) -> c_int {
    // SAFETY: forwarded, here and below.
    unsafe {
        sys::by_number(libc::SYS_clock_gettime, clock as usize, to as usize, 0, 0, 0, 0) as c_int
    }
}

/// errno of this thread: a place in its block.
#[unsafe(no_mangle)]
extern "C" fn __errno_location() -> *mut c_int {
    crate::entry::errno()
}

/// A result as C has it.
fn tell(r: isize) -> isize {
    if r < 0 {
        // SAFETY: this thread's.
        unsafe { *crate::entry::errno() = -r as c_int };
        return -1;
    }
    r
}

#[unsafe(no_mangle)]
unsafe extern "C" fn syscall(
    n: c_long,
    a: usize,
    b: usize,
    c: usize,
    d: usize,
    e: usize,
    f: usize,
) -> c_long {
    // SAFETY: forwarded.
    tell(unsafe { sys::by_number(n, a, b, c, d, e, f) }) as c_long
}

#[unsafe(no_mangle)]
unsafe extern "C" fn process_vm_readv(
    pid: c_int,
    here: *const iovec,
    n: c_ulong,
    there: *const iovec,
    m: c_ulong,
    flags: c_ulong,
) -> isize {
    let (here, there) = (here as usize, there as usize);
    let call = libc::SYS_process_vm_readv;
    // SAFETY: forwarded.
    tell(unsafe {
        sys::by_number(call, pid as usize, here, n as usize, there, m as usize, flags as usize)
    })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn process_vm_writev(
    pid: c_int,
    here: *const iovec,
    n: c_ulong,
    there: *const iovec,
    m: c_ulong,
    flags: c_ulong,
) -> isize {
    let (here, there) = (here as usize, there as usize);
    let call = libc::SYS_process_vm_writev;
    // SAFETY: forwarded.
    tell(unsafe {
        sys::by_number(call, pid as usize, here, n as usize, there, m as usize, flags as usize)
    })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn sigfillset(set: *mut sigset_t) -> c_int {
    // SAFETY: forwarded.
    unsafe { core::ptr::write_bytes(set.cast::<u8>(), 0xff, size_of::<sigset_t>()) };
    0
}

#[unsafe(no_mangle)]
unsafe extern "C" fn pthread_sigmask(
    how: c_int,
    new: *const sigset_t,
    old: *mut sigset_t,
) -> c_int {
    let call = libc::SYS_rt_sigprocmask;
    // SAFETY: forwarded.
    -unsafe { sys::by_number(call, how as usize, new as usize, old as usize, 8, 0, 0) } as c_int
}

#[unsafe(no_mangle)]
unsafe extern "C" fn sigaltstack(new: *const libc::stack_t, old: *mut libc::stack_t) -> c_int {
    // SAFETY: forwarded.
    tell(unsafe { sys::by_number(libc::SYS_sigaltstack, new as usize, old as usize, 0, 0, 0, 0) })
        as c_int
}

/// A panic has nowhere to go: the program ends, as it does in the library that is loaded into others.
#[panic_handler]
fn panic(info: &core::panic::PanicInfo<'_>) -> ! {
    use core::fmt::Write;
    struct Stderr;
    impl Write for Stderr {
        fn write_str(&mut self, text: &str) -> core::fmt::Result {
            sys::write(2, text.as_bytes());
            Ok(())
        }
    }
    let _ = writeln!(Stderr, "shortwire: {info}");
    // SAFETY: an instruction that ends the program.
    unsafe { core::arch::asm!("ud2", options(noreturn)) }
}

/// What the compiled core library names for unwinding, which does not happen here.
#[unsafe(no_mangle)]
extern "C" fn rust_eh_personality() {}

/// See `rust_eh_personality`.
#[unsafe(no_mangle)]
extern "C" fn _Unwind_Resume() -> ! {
    panic!("nothing unwinds here")
}

#[unsafe(no_mangle)]
extern "C" fn getauxval(kind: c_ulong) -> c_ulong {
    crate::begin::auxiliary(kind)
}
