//! Faults from outside: a seccomp filter hands a program's system calls to this test, which lets
//! them go on, or makes the N-th of those that the library itself issues fail. The library knows
//! nothing of it, and needs nothing for it.
#![allow(unsafe_code)]

use std::fs;
use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::os::unix::process::CommandExt;
use std::process::Command;
use std::sync::{Arc, Mutex};
use std::thread::{JoinHandle, sleep};

use rustix::process::{Pid, Signal, kill_process};
use system_tests::millis;

/// What happens at the N-th call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// Only counted.
    None,
    /// It fails with the errno that fits the call; another one in another round.
    Fail(usize),
    /// The process is killed before it.
    Kill,
    /// The process is stopped before it for a while.
    Stop,
    /// A signal comes before it, whose handler uses the connection.
    Signal,
    /// Every call of this number fails with this errno, as seccomp or a security module would have
    /// it.
    Forbid(i64, i32),
    /// The same from the N-th call of this number on: the program enters a sandbox there.
    Ban(i64, i32),
}

/// The calls that the upgrade and the transfer make, and the errors that each of them can have, be
/// it from a sandbox.
const CALLS: &[(i64, &[i32])] = &[
    (libc::SYS_memfd_create, &[libc::EMFILE, libc::ENOMEM]),
    (libc::SYS_ftruncate, &[libc::ENOSPC, libc::EINTR]),
    (libc::SYS_mmap, &[libc::ENOMEM, libc::EPERM]),
    (libc::SYS_mremap, &[libc::ENOMEM]),
    (libc::SYS_madvise, &[libc::ENOMEM, libc::EINVAL]),
    (libc::SYS_fcntl, &[libc::EMFILE, libc::EPERM]),
    (libc::SYS_socket, &[libc::EMFILE, libc::EACCES]),
    (libc::SYS_bind, &[libc::EADDRINUSE, libc::EACCES]),
    (libc::SYS_listen, &[libc::EADDRINUSE, libc::EACCES]),
    (libc::SYS_connect, &[libc::EAGAIN, libc::EACCES]),
    (libc::SYS_accept4, &[libc::ENFILE, libc::ECONNABORTED]),
    (libc::SYS_sendmsg, &[libc::ENOBUFS, libc::EPIPE]),
    (libc::SYS_recvmsg, &[libc::ENOMEM, libc::EPERM]),
    (libc::SYS_setsockopt, &[libc::ENOMEM, libc::EPERM]),
    (libc::SYS_getsockname, &[libc::ENOBUFS]),
    (libc::SYS_getpeername, &[libc::ENOBUFS]),
    (libc::SYS_fstatfs, &[libc::ENOSYS]),
    (libc::SYS_prlimit64, &[libc::EPERM]),
    (libc::SYS_getrandom, &[libc::EINTR, libc::ENOSYS]),
    (libc::SYS_readlinkat, &[libc::ENOMEM, libc::EACCES]),
    (libc::SYS_openat, &[libc::EMFILE, libc::EACCES]),
    (libc::SYS_epoll_ctl, &[libc::ENOMEM]),
    (libc::SYS_getsockopt, &[libc::ENOBUFS, libc::EPERM]),
    (libc::SYS_fstat, &[libc::ENOMEM]),
    (libc::SYS_process_vm_readv, &[libc::EPERM]),
    (libc::SYS_process_vm_writev, &[libc::EPERM]),
];

/// What fcntl is asked for; the rest of it does not fail.
const COUNTED_FCNTL: [u64; 4] = [
    libc::F_DUPFD as u64,
    libc::F_DUPFD_CLOEXEC as u64,
    libc::F_ADD_SEALS as u64,
    libc::F_GET_SEALS as u64,
];

pub fn name(call: i64) -> String {
    let names = [
        "memfd_create ftruncate mmap mremap madvise fcntl socket bind listen connect accept4 sendmsg recvmsg",
        "setsockopt getsockname getpeername fstatfs prlimit64 getrandom readlinkat openat epoll_ctl getsockopt fstat",
        "process_vm_readv process_vm_writev",
    ]
    .join(" ");
    let at = CALLS.iter().position(|c| c.0 == call);
    at.and_then(|at| names.split(' ').nth(at)).map_or_else(|| call.to_string(), str::to_string)
}

#[derive(Default)]
pub struct Seen {
    /// Calls that the library has made.
    pub points: usize,
    /// The one at which the fault was, and its errno.
    pub hit: Option<(i64, i32)>,
}

/// Watches a program from its start to its end.
pub struct Watcher {
    seen: Arc<Mutex<Seen>>,
    thread: JoinHandle<()>,
}

impl Watcher {
    /// Once the program has ended.
    pub fn end(self) -> Seen {
        self.thread.join().expect("the watcher");
        std::mem::take(&mut self.seen.lock().expect("the notes"))
    }
}

const BPF_LD: u16 = 0x20;
const BPF_JEQ: u16 = 0x15;
const BPF_RET: u16 = 0x06;

fn filter() -> Vec<libc::sock_filter> {
    let step = |code, jt, jf, k| libc::sock_filter { code, jt, jf, k };
    // The number of the call is the first word.
    let mut steps = vec![step(BPF_LD, 0, 0, 0)];
    for (i, (call, _)) in CALLS.iter().enumerate() {
        steps.push(step(BPF_JEQ, (CALLS.len() - i) as u8, 0, *call as u32));
    }
    steps.push(step(BPF_RET, 0, 0, libc::SECCOMP_RET_ALLOW));
    steps.push(step(BPF_RET, 0, 0, libc::SECCOMP_RET_USER_NOTIF));
    steps
}

/// Between fork and exec: puts the filter in place and says under which number its listener is.
fn install(steps: &[libc::sock_filter], to: RawFd, from: RawFd) -> io::Result<()> {
    let program = libc::sock_fprog { len: steps.len() as u16, filter: steps.as_ptr().cast_mut() };
    // SAFETY: system calls on live memory.
    unsafe {
        if libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) != 0 {
            return Err(io::Error::last_os_error());
        }
        let flags = libc::SECCOMP_FILTER_FLAG_NEW_LISTENER;
        let fd = libc::syscall(
            libc::SYS_seccomp,
            libc::SECCOMP_SET_MODE_FILTER,
            flags,
            &raw const program,
        ) as i32;
        if fd < 0 {
            return Err(io::Error::last_os_error());
        }
        let said = [fd, libc::getpid()];
        // The listener goes with exec: somebody must have taken it before.
        if libc::write(to, said.as_ptr().cast(), 8) != 8
            || libc::read(from, [0u8; 1].as_mut_ptr().cast(), 1) != 1
        {
            return Err(io::Error::last_os_error());
        }
    }
    Ok(())
}

/// Has `command` run with `fault` at the `at`-th call (from 1) that the library makes.
pub fn inject(command: &mut Command, at: usize, fault: Fault) -> Watcher {
    let (said, say) = rustix::pipe::pipe_with(rustix::pipe::PipeFlags::CLOEXEC).expect("a pipe");
    let (go, let_go) = rustix::pipe::pipe_with(rustix::pipe::PipeFlags::CLOEXEC).expect("a pipe");
    let (to, from, steps) = (say.as_raw_fd(), go.as_raw_fd(), filter());
    // SAFETY: system calls only. Until the program has a handler the signal does nothing.
    unsafe {
        command.pre_exec(move || {
            libc::signal(libc::SIGUSR1, libc::SIG_IGN);
            install(&steps, to, from)
        })
    };
    let seen = Arc::new(Mutex::new(Seen::default()));
    let notes = seen.clone();
    let thread = std::thread::spawn(move || {
        let mut raw = [0; 8];
        if rustix::io::read(&said, &mut raw) != Ok(8) {
            return;
        }
        drop((say, go));
        let word = |at: usize| i32::from_ne_bytes(raw[at..at + 4].try_into().expect("a word"));
        let listener = take(word(4), word(0));
        rustix::io::write(&let_go, &[1]).expect("the program waits");
        watch(&listener, word(4), at, fault, &notes);
    });
    Watcher { seen, thread }
}

fn take(pid: i32, fd: i32) -> OwnedFd {
    // SAFETY: integers only; the descriptors are fresh.
    unsafe {
        let process = OwnedFd::from_raw_fd(libc::syscall(libc::SYS_pidfd_open, pid, 0) as i32);
        let taken = libc::syscall(libc::SYS_pidfd_getfd, process.as_raw_fd(), fd, 0) as i32;
        assert!(taken >= 0, "pidfd_getfd: {}", io::Error::last_os_error());
        OwnedFd::from_raw_fd(taken)
    }
}

/// Where the library's own instructions are; None before it is loaded.
fn library(pid: i32) -> Option<std::ops::Range<u64>> {
    let maps = fs::read_to_string(format!("/proc/{pid}/maps")).ok()?;
    let line = maps.lines().find(|l| l.contains("libshortwire.so") && l.contains("r-xp"))?;
    let (from, to) = line.split_once(' ')?.0.split_once('-')?;
    Some(u64::from_str_radix(from, 16).ok()?..u64::from_str_radix(to, 16).ok()?)
}

fn watch(listener: &OwnedFd, pid: i32, at: usize, fault: Fault, notes: &Mutex<Seen>) {
    const RECV: libc::Ioctl = 0xc050_2100_u32 as libc::Ioctl;
    const SEND: libc::Ioctl = 0xc018_2101_u32 as libc::Ioctl;
    let mut code = None;
    loop {
        let mut p = libc::pollfd { fd: listener.as_raw_fd(), events: libc::POLLIN, revents: 0 };
        // SAFETY: one live pollfd.
        let n = unsafe { libc::poll(&raw mut p, 1, -1) };
        if n < 0 {
            continue;
        }
        if p.revents & libc::POLLIN == 0 {
            return;
        }
        // SAFETY: all-zero is valid, and what the kernel asks for.
        let mut asked: libc::seccomp_notif = unsafe { std::mem::zeroed() };
        // SAFETY: a live notification.
        if unsafe { libc::ioctl(listener.as_raw_fd(), RECV, &raw mut asked) } != 0 {
            continue;
        }
        if code.is_none() {
            code = library(pid);
        }
        let call = i64::from(asked.data.nr);
        let ours =
            code.as_ref().is_some_and(|range| range.contains(&asked.data.instruction_pointer))
                && (call != libc::SYS_fcntl || COUNTED_FCNTL.contains(&asked.data.args[1]));
        let mut answer = libc::seccomp_notif_resp { id: asked.id, val: 0, error: 0, flags: 1 };
        if ours && let Some(errno) = strike(pid, call, at, fault, notes) {
            answer.error = -errno;
            answer.flags = 0;
        }
        // SAFETY: a live answer. A process that was killed does not wait for it.
        unsafe { libc::ioctl(listener.as_raw_fd(), SEND, &raw mut answer) };
        if fault == Fault::Stop
            && let Some(process) = Pid::from_raw(pid)
        {
            let _ = kill_process(process, Signal::CONT);
        }
    }
}

/// Counts a call; what it fails with, if it does.
fn strike(pid: i32, call: i64, at: usize, fault: Fault, notes: &Mutex<Seen>) -> Option<i32> {
    let errors = CALLS.iter().find(|c| c.0 == call).map_or(&[][..], |c| c.1);
    let mut seen = notes.lock().expect("the notes");
    if let Fault::Ban(number, errno) = fault {
        seen.points += usize::from(call == number);
        let banned = call == number && seen.points >= at;
        return banned.then(|| {
            seen.hit = Some((call, errno));
            errno
        });
    }
    seen.points += 1;
    if let Fault::Forbid(number, errno) = fault {
        return (call == number).then(|| {
            seen.hit = Some((call, errno));
            errno
        });
    }
    if seen.points != at {
        return None;
    }
    let errno = match fault {
        Fault::Fail(round) => errors[round % errors.len()],
        _ => 0,
    };
    seen.hit = Some((call, errno));
    drop(seen);
    let process = Pid::from_raw(pid)?;
    match fault {
        Fault::Kill => drop(kill_process(process, Signal::KILL)),
        Fault::Stop => {
            let _ = kill_process(process, Signal::STOP);
            // Long enough for the peer to do all that it can do alone.
            sleep(millis(5));
        }
        // The call begins anew behind the handler.
        Fault::Signal => drop(kill_process(process, Signal::USR1)),
        Fault::Fail(_) => return Some(errno),
        Fault::None | Fault::Forbid(..) | Fault::Ban(..) => {}
    }
    None
}
