//! The system calls of Linux on x86-64 that can concern a connection: those that move its bytes, wait
//! for it, make, copy, give away or close its descriptor, begin or end a process that has one, or
//! give up what is needed to go on. Whoever follows a program's connections must see them all.

use crate::{NUMBERS, Wanted};

/// Those calls.
pub static OF_CONNECTIONS: Wanted = {
    let mut wanted = [false; NUMBERS];
    let mut i = 0;
    while i < CALLS.len() {
        wanted[CALLS[i].0] = true;
        i += 1;
    }
    wanted
};

/// Those that are to be seen in a program that has no library in it: also those by which a thread ends,
/// the program's file is looked for, more code is mapped, or GS would be taken.
pub static OF_PROGRAMS: Wanted = {
    let mut wanted = OF_CONNECTIONS;
    let mut i = 0;
    while i < MORE.len() {
        wanted[MORE[i].0] = true;
        i += 1;
    }
    wanted
};

const MORE: [(usize, &str); 17] = [
    (2, "open"),
    (4, "stat"),
    (9, "mmap"),
    (10, "mprotect"),
    (11, "munmap"),
    (21, "access"),
    (60, "exit"),
    (85, "creat"),
    (89, "readlink"),
    (158, "arch_prctl"),
    (257, "openat"),
    (262, "newfstatat"),
    (267, "readlinkat"),
    (269, "faccessat"),
    (332, "statx"),
    (437, "openat2"),
    (439, "faccessat2"),
];

const CALLS: [(usize, &str); 58] = [
    (0, "read"),
    (1, "write"),
    (3, "close"),
    (7, "poll"),
    (13, "rt_sigaction"),
    (16, "ioctl"),
    (19, "readv"),
    (20, "writev"),
    (23, "select"),
    (32, "dup"),
    (33, "dup2"),
    (40, "sendfile"),
    (41, "socket"),
    (42, "connect"),
    (43, "accept"),
    (44, "sendto"),
    (45, "recvfrom"),
    (46, "sendmsg"),
    (47, "recvmsg"),
    (48, "shutdown"),
    (54, "setsockopt"),
    (55, "getsockopt"),
    (56, "clone"),
    (57, "fork"),
    (58, "vfork"),
    (59, "execve"),
    (72, "fcntl"),
    (105, "setuid"),
    (113, "setreuid"),
    (117, "setresuid"),
    (126, "capset"),
    (157, "prctl"),
    (209, "io_submit"),
    (213, "epoll_create"),
    (231, "exit_group"),
    (232, "epoll_wait"),
    (233, "epoll_ctl"),
    (270, "pselect6"),
    (271, "ppoll"),
    (272, "unshare"),
    (275, "splice"),
    (281, "epoll_pwait"),
    (288, "accept4"),
    (291, "epoll_create1"),
    (292, "dup3"),
    (299, "recvmmsg"),
    (307, "sendmmsg"),
    (317, "seccomp"),
    (322, "execveat"),
    (327, "preadv2"),
    (328, "pwritev2"),
    (425, "io_uring_setup"),
    (426, "io_uring_enter"),
    (427, "io_uring_register"),
    (435, "clone3"),
    (436, "close_range"),
    (441, "epoll_pwait2"),
    (446, "landlock_restrict_self"),
];
