//! The system calls of Linux on arm64 that can concern a connection, as those of x86-64, of which it lacks the oldest.
//! Whoever follows a program's connections must see them all.

use crate::{NUMBERS, Wanted};

const fn among(mut wanted: Wanted, calls: &[(usize, &str)]) -> Wanted {
    let mut i = 0;
    while i < calls.len() {
        wanted[calls[i].0] = true;
        i += 1;
    }
    wanted
}

/// Those calls.
pub static OF_CONNECTIONS: Wanted = among([false; NUMBERS], &CALLS);

/// Those that are to be seen in a program that has no library in it: also those by which a thread ends,
/// the program's file is looked for, or more code is mapped.
pub static OF_PROGRAMS: Wanted = among(among([false; NUMBERS], &CALLS), &MORE);

const MORE: [(usize, &str); 11] = [
    (48, "faccessat"),
    (56, "openat"),
    (78, "readlinkat"),
    (79, "newfstatat"),
    (93, "exit"),
    (215, "munmap"),
    (222, "mmap"),
    (226, "mprotect"),
    (291, "statx"),
    (437, "openat2"),
    (439, "faccessat2"),
];

const CALLS: [(usize, &str); 51] = [
    (2, "io_submit"),
    (20, "epoll_create1"),
    (21, "epoll_ctl"),
    (22, "epoll_pwait"),
    (23, "dup"),
    (24, "dup3"),
    (25, "fcntl"),
    (29, "ioctl"),
    (57, "close"),
    (63, "read"),
    (64, "write"),
    (65, "readv"),
    (66, "writev"),
    (71, "sendfile"),
    (72, "pselect6"),
    (73, "ppoll"),
    (76, "splice"),
    (91, "capset"),
    (94, "exit_group"),
    (97, "unshare"),
    (134, "rt_sigaction"),
    (145, "setreuid"),
    (146, "setuid"),
    (147, "setresuid"),
    (167, "prctl"),
    (198, "socket"),
    (202, "accept"),
    (203, "connect"),
    (206, "sendto"),
    (207, "recvfrom"),
    (208, "setsockopt"),
    (209, "getsockopt"),
    (210, "shutdown"),
    (211, "sendmsg"),
    (212, "recvmsg"),
    (220, "clone"),
    (221, "execve"),
    (242, "accept4"),
    (243, "recvmmsg"),
    (269, "sendmmsg"),
    (277, "seccomp"),
    (281, "execveat"),
    (286, "preadv2"),
    (287, "pwritev2"),
    (425, "io_uring_setup"),
    (426, "io_uring_enter"),
    (427, "io_uring_register"),
    (435, "clone3"),
    (436, "close_range"),
    (441, "epoll_pwait2"),
    (446, "landlock_restrict_self"),
];
