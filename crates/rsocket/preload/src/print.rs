//! Formatted output to a descriptor. It is `stdio`'s, which writes past every library: of an rsocket
//! into the TCP connection beneath it, where nobody reads. So it fails.

use crate::next::{Place, find};
use crate::{failed, next};
use core::ffi::{CStr, c_char, c_int, c_void};
use shm::Errno;
use shortwire_rsocket::sockets;

extern "C" fn refuse() -> c_int {
    failed(Errno::OPNOTSUPP)
}

extern "C" fn missing() -> c_int {
    failed(Errno::NOSYS)
}

/// What to go on with: the next function of that name, unless it is for an rsocket.
fn target(fd: c_int, place: &Place, name: &CStr) -> *const c_void {
    if sockets::is_rsocket(fd) {
        return refuse as *const c_void;
    }
    let found = find(place, name);
    if found.is_null() { missing as *const c_void } else { found }
}

/// Names with variable arguments, which are jumped on from with stack and arguments untouched.
macro_rules! variadic {
    ($($name:ident = $text:literal;)*) => {
        $(/// # Safety
        /// As the function of libc.
        #[cfg(target_arch = "x86_64")]
        #[unsafe(naked)]
        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn $name() {
            // Keeps the argument registers over the call that says where to, then jumps. rax tells how
            // many vector registers have arguments; their 128 bytes keep the stack aligned.
            core::arch::naked_asm!(
                "push rdi", "push rsi", "push rdx", "push rcx", "push r8", "push r9", "push rax",
                "sub rsp, 128",
                "movups [rsp], xmm0", "movups [rsp + 16], xmm1", "movups [rsp + 32], xmm2", "movups [rsp + 48], xmm3",
                "movups [rsp + 64], xmm4", "movups [rsp + 80], xmm5", "movups [rsp + 96], xmm6", "movups [rsp + 112], xmm7",
                "call {target}",
                "mov r11, rax",
                "movups xmm0, [rsp]", "movups xmm1, [rsp + 16]", "movups xmm2, [rsp + 32]", "movups xmm3, [rsp + 48]",
                "movups xmm4, [rsp + 64]", "movups xmm5, [rsp + 80]", "movups xmm6, [rsp + 96]", "movups xmm7, [rsp + 112]",
                "add rsp, 128",
                "pop rax", "pop r9", "pop r8", "pop rcx", "pop rdx", "pop rsi", "pop rdi",
                "jmp r11",
                target = sym $name::target,
            )
        }
        /// # Safety
        /// As the function of libc.
        #[cfg(target_arch = "aarch64")]
        #[unsafe(naked)]
        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn $name() {
            // As above. x16 may be lost at any call, as linkage tables jump by it, too.
            core::arch::naked_asm!(
                "stp x29, x30, [sp, #-224]!",
                "mov x29, sp",
                "stp x0, x1, [sp, #16]", "stp x2, x3, [sp, #32]", "stp x4, x5, [sp, #48]", "stp x6, x7, [sp, #64]",
                "stp q0, q1, [sp, #96]", "stp q2, q3, [sp, #128]", "stp q4, q5, [sp, #160]", "stp q6, q7, [sp, #192]",
                "bl {target}",
                "mov x16, x0",
                "ldp q0, q1, [sp, #96]", "ldp q2, q3, [sp, #128]", "ldp q4, q5, [sp, #160]", "ldp q6, q7, [sp, #192]",
                "ldp x0, x1, [sp, #16]", "ldp x2, x3, [sp, #32]", "ldp x4, x5, [sp, #48]", "ldp x6, x7, [sp, #64]",
                "ldp x29, x30, [sp], #224",
                "br x16",
                target = sym $name::target,
            )
        }
        mod $name {
            pub extern "C" fn target(fd: super::c_int) -> *const super::c_void {
                static PLACE: super::Place = super::Place::new(core::ptr::null_mut());
                super::target(fd, &PLACE, $text)
            }
        })*
    };
}

variadic! {
    dprintf = c"dprintf";
    __dprintf_chk = c"__dprintf_chk";
}

/// The arguments are a `va_list`, which these machines pass by its address.
///
/// # Safety
/// As the function of libc.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn vdprintf(fd: c_int, format: *const c_char, list: *mut c_void) -> c_int {
    match sockets::is_rsocket(fd) {
        true => refuse(),
        // SAFETY: by the contract.
        false => unsafe { next::vdprintf(fd, format, list) },
    }
}

/// # Safety
/// As the function of libc.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn __vdprintf_chk(
    fd: c_int,
    flag: c_int,
    format: *const c_char,
    list: *mut c_void,
) -> c_int {
    match sockets::is_rsocket(fd) {
        true => refuse(),
        // SAFETY: by the contract.
        false => unsafe { next::__vdprintf_chk(fd, flag, format, list) },
    }
}
