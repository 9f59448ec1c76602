//! A process that outlives this one for a moment, to take bus mastering away from a device.
//!
//! Without an IOMMU a device goes on writing received packets to physical memory after its driver
//! was killed. The guard shares the huge pages with us, so that the kernel gives them to nobody
//! else before the guard has put the command register back.
#![allow(unsafe_code)]

use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};

use rustix::io::Errno;
use rustix::pipe::{PipeFlags, pipe_with};

use super::COMMAND;

/// The running guard. Dropped, it ends without touching the device.
pub(super) struct Guard {
    line: OwnedFd,
    process: libc::pid_t,
}

impl Guard {
    /// Starts it: it will write `command` to the configuration space when this process is gone.
    pub fn start(config: BorrowedFd, command: u16) -> Result<Self, Errno> {
        let (reader, line) = pipe_with(PipeFlags::CLOEXEC)?;
        // SAFETY: the child calls nothing but what a signal handler may, as `watch` says.
        match unsafe { libc::fork() } {
            -1 => {
                Err(Errno::from_io_error(&std::io::Error::last_os_error()).unwrap_or(Errno::AGAIN))
            }
            0 => watch(reader.as_fd(), config, command),
            process => Ok(Self { line, process }),
        }
    }
}

impl Drop for Guard {
    fn drop(&mut self) {
        // If it is gone there is nobody to tell.
        let _ = rustix::io::write(&self.line, b"d");
        // SAFETY: waits for our own child; no status is asked for.
        unsafe { libc::waitpid(self.process, std::ptr::null_mut(), 0) };
    }
}

/// The guard's life. After a fork of a process with threads only plain system calls are allowed.
fn watch(reader: BorrowedFd, config: BorrowedFd, command: u16) -> ! {
    let (reader, config) = (reader.as_raw_fd(), config.as_raw_fd());
    // Ctrl-C is for the parent; the guard lives by the pipe alone.
    // SAFETY: a set of all signals, filled in by libc; no memory is shared with it.
    unsafe {
        let mut all = std::mem::zeroed();
        libc::sigfillset(&raw mut all);
        libc::sigprocmask(libc::SIG_BLOCK, &raw const all, std::ptr::null_mut());
    }
    // Sockets and interfaces of the parent must not stay open in here, nor the writing end of the
    // pipe.
    let (low, high) = (reader.min(config) as u32, reader.max(config) as u32);
    for (first, last) in
        [(0, low.wrapping_sub(1)), (low + 1, high.wrapping_sub(1)), (high + 1, u32::MAX)]
    {
        if first <= last && last != first.wrapping_sub(1) {
            // SAFETY: descriptors of this process only.
            unsafe { libc::syscall(libc::SYS_close_range, first, last, 0) };
        }
    }
    let mut byte = 0_u8;
    // SAFETY: one byte, which is ours.
    let told = unsafe { libc::read(reader, (&raw mut byte).cast(), 1) };
    if told != 1 {
        let bytes = command.to_le_bytes();
        // SAFETY: two bytes, which are ours.
        unsafe { libc::pwrite(config, bytes.as_ptr().cast(), bytes.len(), COMMAND as i64) };
    }
    // SAFETY: ends the process without running anything of the parent's.
    unsafe { libc::_exit(0) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::FileExt;

    fn command_after(end: impl FnOnce(Guard)) -> [u8; 2] {
        let config = tempfile::tempfile().unwrap();
        config.write_all_at(&[0xff; 8], 0).unwrap();
        end(Guard::start(config.as_fd(), 0x0102).unwrap());
        let mut command = [0; 2];
        config.read_exact_at(&mut command, COMMAND).unwrap();
        command
    }

    #[test]
    fn it_acts_only_when_its_owner_vanishes() {
        assert_eq!(command_after(drop), [0xff, 0xff]);
        let vanish = |guard: Guard| {
            let process = guard.process;
            let guard = std::mem::ManuallyDrop::new(guard);
            // SAFETY: the pipe's end is closed as the kernel does for a killed process, and the
            // guard is not used again.
            drop(unsafe { std::ptr::read(&raw const guard.line) });
            // SAFETY: waits for our own child.
            unsafe { libc::waitpid(process, std::ptr::null_mut(), 0) };
        };
        assert_eq!(command_after(vanish), [0x02, 0x01]);
    }
}
