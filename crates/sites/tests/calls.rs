//! The numbers of the calls, as libc has them.

macro_rules! numbers {
    ($($name:ident)*) => { [$(libc::$name),*] };
}

fn check(listed: &sites::Wanted, mut named: Vec<i64>) {
    named.sort_unstable();
    let listed: Vec<i64> =
        (0..).zip(listed).filter(|(_, is)| **is).map(|(number, _)| number).collect();
    assert_eq!(listed, named);
}

/// On each machine.
fn of_connections() -> Vec<i64> {
    let all = numbers!(
        SYS_read SYS_write SYS_close SYS_rt_sigaction SYS_ioctl SYS_readv SYS_writev SYS_dup SYS_dup3
        SYS_sendfile SYS_socket SYS_connect SYS_accept SYS_sendto SYS_recvfrom SYS_sendmsg SYS_recvmsg
        SYS_shutdown SYS_setsockopt SYS_getsockopt SYS_clone SYS_execve SYS_fcntl SYS_setuid
        SYS_setreuid SYS_setresuid SYS_capset SYS_prctl SYS_exit_group SYS_epoll_ctl SYS_pselect6
        SYS_ppoll SYS_unshare SYS_splice SYS_epoll_pwait SYS_accept4 SYS_epoll_create1
        SYS_recvmmsg SYS_sendmmsg SYS_seccomp SYS_execveat SYS_preadv2 SYS_pwritev2
        SYS_io_uring_setup SYS_io_uring_enter SYS_io_uring_register SYS_clone3 SYS_close_range
        SYS_epoll_pwait2 SYS_landlock_restrict_self SYS_io_submit
    );
    #[cfg(target_arch = "x86_64")]
    let old = numbers!(
        SYS_poll SYS_select SYS_dup2 SYS_fork SYS_vfork SYS_epoll_create SYS_epoll_wait
    );
    #[cfg(not(target_arch = "x86_64"))]
    let old = [];
    all.into_iter().chain(old).collect()
}

#[test]
fn the_calls_that_concern_connections_have_their_numbers() {
    check(&sites::OF_CONNECTIONS, of_connections());
}

#[test]
fn the_calls_that_concern_programs_have_their_numbers() {
    let more = numbers!(
        SYS_exit SYS_munmap SYS_mmap SYS_mprotect SYS_openat SYS_openat2 SYS_readlinkat
        SYS_newfstatat SYS_statx SYS_faccessat SYS_faccessat2
    );
    #[cfg(target_arch = "x86_64")]
    let old = numbers!(SYS_open SYS_creat SYS_stat SYS_access SYS_readlink SYS_arch_prctl);
    #[cfg(not(target_arch = "x86_64"))]
    let old = [];
    check(&sites::OF_PROGRAMS, of_connections().into_iter().chain(more).chain(old).collect());
}
