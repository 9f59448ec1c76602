//! Who am I, and is that one still alive.
#![allow(unsafe_code)]

#[cfg(not(loom))]
mod imp {
    use crate::words::ID as TID;
    use rustix::event::{PollFd, PollFlags, Timespec, poll};
    use rustix::fd::{BorrowedFd, IntoRawFd};
    use rustix::io::Errno;
    use rustix::process::{Pid, PidfdFlags, getpid, pidfd_open, test_kill_process};

    /// The kernel's thread id, asked for once per thread.
    #[inline]
    pub fn thread_id() -> u32 {
        let tid = TID.get();
        if tid != 0 { tid } else { refresh_thread_id() }
    }

    /// To be called in the child after a fork, whose only thread has a new id.
    #[cold]
    pub fn refresh_thread_id() -> u32 {
        let tid = actual();
        TID.set(tid);
        tid
    }

    /// As `refresh_thread_id`, where the system call may be forbidden: it is made when the id is
    /// needed.
    #[cold]
    pub fn forget_thread_id() {
        TID.set(0);
    }

    fn actual() -> u32 {
        rustix::thread::gettid().as_raw_pid().cast_unsigned()
    }

    /// Whether the thread `tid`, of any process in this PID namespace, still runs. Doubts count as
    /// yes.
    pub fn is_alive(tid: u32) -> bool {
        // Miri knows no kill, and no thread of a model ends while others count on it.
        if cfg!(miri) {
            return true;
        }
        let Some(pid) = i32::try_from(tid).ok().and_then(Pid::from_raw) else {
            return false;
        };
        // kill(2) looks up any thread by its id, not just leaders of a process.
        test_kill_process(pid) != Err(Errno::SRCH) && !is_zombie(pid)
    }

    /// Whether the thread `tid` runs in this very process, as the owner of a private lock must.
    pub fn is_alive_here(tid: u32) -> bool {
        // A vfork child runs on its parent's memory and thread-local state, but under another id.
        // To it the parent's threads are no threads of its own process and yet do own its locks.
        if thread_id() != actual() {
            return is_alive(tid);
        }
        let own = getpid().as_raw_pid().cast_unsigned();
        // SAFETY: signal 0 sends nothing.
        unsafe { tgkill(own, tid, 0) != -Errno::SRCH.raw_os_error() as isize }
    }

    /// A killed process stays visible until its parent reaps it, and the parent may be the one that
    /// waits for its lock.
    fn is_zombie(pid: Pid) -> bool {
        // PIDFD_THREAD, Linux 6.9; before that only leaders have a pidfd, and only they stay
        // zombies.
        const THREAD: PidfdFlags = PidfdFlags::from_bits_retain(0o200);
        let opened = match pidfd_open(pid, THREAD) {
            Err(Errno::INVAL) => pidfd_open(pid, PidfdFlags::empty()),
            other => other,
        };
        let Ok(fd) = opened else { return false };
        let raw = fd.into_raw_fd();
        // SAFETY: `raw` was just opened and is closed only below.
        let borrowed = unsafe { BorrowedFd::borrow_raw(raw) };
        let now = Timespec { tv_sec: 0, tv_nsec: 0 };
        let mut fds = [PollFd::from_borrowed_fd(borrowed, PollFlags::IN)];
        let ended = poll(&mut fds, Some(&now)) == Ok(1);
        // SAFETY: `raw` is ours and not used any more.
        unsafe { rustix::io::close(raw) };
        ended
    }

    /// # Safety
    /// As for tgkill(2); with signal 0 there is no effect.
    #[cfg(all(target_arch = "x86_64", not(miri)))]
    unsafe fn tgkill(pid: u32, tid: u32, signal: u32) -> isize {
        let mut result: isize = 234;
        // SAFETY: the call reads three registers and touches no memory of ours.
        unsafe {
            core::arch::asm!("syscall", inlateout("rax") result, in("rdi") pid, in("rsi") tid,
                in("rdx") signal, lateout("rcx") _, lateout("r11") _, options(nostack));
        }
        result
    }

    /// # Safety
    /// As for tgkill(2); with signal 0 there is no effect.
    #[cfg(all(target_arch = "aarch64", not(miri)))]
    unsafe fn tgkill(pid: u32, tid: u32, signal: u32) -> isize {
        let mut result = pid as isize;
        // SAFETY: the call reads three registers and touches no memory of ours.
        unsafe {
            core::arch::asm!("svc 0", in("x8") 131, inlateout("x0") result, in("x1") tid,
                in("x2") signal, options(nostack));
        }
        result
    }

    /// Miri knows no such call, and no thread of a test ends with a lock.
    #[cfg(miri)]
    unsafe fn tgkill(_pid: u32, _tid: u32, _signal: u32) -> isize {
        0
    }
}

#[cfg(loom)]
mod imp {
    use core::cell::Cell;
    use core::sync::atomic::{AtomicU32, Ordering};

    loom::lazy_static! {
        static ref NEXT: AtomicU32 = AtomicU32::new(1);
    }
    loom::thread_local! {
        static TID: Cell<u32> = Cell::new(NEXT.fetch_add(1, Ordering::Relaxed));
    }

    pub fn thread_id() -> u32 {
        TID.with(Cell::get)
    }

    pub fn refresh_thread_id() -> u32 {
        thread_id()
    }

    pub fn forget_thread_id() {}

    pub fn is_alive(_: u32) -> bool {
        true
    }

    pub fn is_alive_here(_: u32) -> bool {
        true
    }
}

pub use imp::{forget_thread_id, is_alive, is_alive_here, refresh_thread_id, thread_id};

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use rustix::process::{WaitOptions, waitpid};

    #[test]
    fn threads_are_alive_until_they_end() {
        let tid = std::thread::spawn(|| {
            let tid = thread_id();
            assert!(is_alive(tid) && is_alive_here(tid));
            tid
        })
        .join()
        .unwrap();
        // join returns when the kernel clears the thread's id, a little before it is unhashed.
        while is_alive(tid) || is_alive_here(tid) {
            std::thread::yield_now();
        }
        assert!(is_alive(thread_id()) && is_alive_here(thread_id()));
        assert!(is_alive(1) && !is_alive_here(1));
        assert!(!is_alive(0) && !is_alive(u32::MAX));
    }

    #[test]
    fn an_unreaped_process_is_dead() {
        let mut child = std::process::Command::new("true").spawn().unwrap();
        while is_alive(child.id()) {
            std::thread::yield_now();
        }
        let pid = rustix::process::Pid::from_child(&child);
        rustix::process::test_kill_process(pid).expect("it is a zombie and not gone");
        assert!(child.wait().unwrap().success());
        assert!(waitpid(Some(pid), WaitOptions::NOHANG).is_err());
    }
}
