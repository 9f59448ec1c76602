//! What this machine lets programs do, tried without the library: where it does not, a test is skipped;
//! where it does and the library makes no use of it, the test fails.
#![allow(unsafe_code)]

use std::io::{Error, ErrorKind, Write};
use std::net::TcpListener;
use std::process::{Command, Stdio};

use crate::skip::{Outcome, skip};

/// The devices that copy, ism and verbs in software: one process must be allowed to write to another's
/// memory, which is neither its child nor its parent (kernel.yama.ptrace_scope, seccomp filters).
pub fn need_copying() -> Outcome {
    let place = 0u8;
    // SAFETY: what is made here calls nothing but the kernel until it ends.
    let target = unsafe { libc::fork() };
    if target == 0 {
        loop {
            // SAFETY: it sleeps until it is killed.
            unsafe { libc::pause() };
        }
    }
    assert!(target > 0, "fork: {}", Error::last_os_error());
    // SAFETY: as above.
    let writer = unsafe { libc::fork() };
    if writer == 0 {
        let part = libc::iovec { iov_base: (&raw const place).cast_mut().cast(), iov_len: 1 };
        // SAFETY: the byte is at the same place in both processes, each of which has a copy.
        let written = unsafe { libc::process_vm_writev(target, &part, 1, &part, 1, 0) };
        let why = if written == 1 { 0 } else { Error::last_os_error().raw_os_error().unwrap_or(1) };
        // SAFETY: this process has nothing that ought to be ended.
        unsafe { libc::_exit(why) };
    }
    let mut status = 0;
    // SAFETY: the processes are ours, and `status` outlives the calls.
    unsafe {
        libc::waitpid(writer, &mut status, 0);
        libc::kill(target, libc::SIGKILL);
        libc::waitpid(target, std::ptr::null_mut(), 0);
    }
    match libc::WEXITSTATUS(status) {
        0 if libc::WIFEXITED(status) => Ok(()),
        why => skip(format!("process_vm_writev: {}", Error::from_raw_os_error(why))),
    }
}

/// As `need_copying`, for processes that have given up CAP_SYS_PTRACE.
pub fn need_copying_without_rights() -> Outcome {
    need_copying()?;
    let scope = std::fs::read_to_string("/proc/sys/kernel/yama/ptrace_scope").unwrap_or_default();
    match scope.trim() {
        "" | "0" => Ok(()),
        scope => skip(format!("kernel.yama.ptrace_scope is {scope}")),
    }
}

/// As `need_copying`, if that is what one of these devices takes.
pub fn need_devices(devices: &str) -> Outcome {
    let copies = devices.split(',').any(|device| matches!(device, "ism" | "verbs"));
    if copies { need_copying() } else { Ok(()) }
}

/// io_uring (kernel.io_uring_disabled, seccomp filters).
pub fn need_rings() -> Outcome {
    let mut parameters = [0u8; 120];
    // SAFETY: the kernel fills the 120 bytes of a struct io_uring_params.
    let ring = unsafe { libc::syscall(libc::SYS_io_uring_setup, 1, parameters.as_mut_ptr()) };
    if ring < 0 {
        return skip(format!("io_uring_setup: {}", Error::last_os_error()));
    }
    // SAFETY: the descriptor is new and nobody else's.
    unsafe { libc::close(ring as i32) };
    Ok(())
}

/// A loopback address of IPv6.
pub fn need_ipv6() -> Outcome {
    match TcpListener::bind("[::1]:0") {
        Ok(_) => Ok(()),
        Err(why) => skip(format!("no IPv6: {why}")),
    }
}

/// Whether a bind to an IPv6 address failed as it does where there is none.
pub(crate) fn is_without_ipv6(why: &Error) -> bool {
    why.kind() == ErrorKind::AddrNotAvailable || why.raw_os_error() == Some(libc::EAFNOSUPPORT)
}

/// A C compiler that can link with these options: a static libc, or a sanitizer's library, may not be
/// installed.
pub fn need_compiler(options: &[&str]) -> Outcome {
    let mut compiler = Command::new(crate::need("cc")?);
    compiler.args(options).args(["-x", "c", "-o", "/dev/null", "-"]);
    compiler.stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::null());
    let mut compiler = compiler.spawn().expect("a compiler");
    let source =
        compiler.stdin.take().map(|mut input| input.write_all(b"int main(void) { return 0; }\n"));
    source.expect("its input").expect("a compiler that reads");
    match compiler.wait() {
        Ok(status) if status.success() => Ok(()),
        _ => skip(format!("cc cannot link with {}", options.join(" "))),
    }
}
