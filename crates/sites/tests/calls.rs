//! The numbers of the calls, as libc has them.
#![cfg(target_arch = "x86_64")]

macro_rules! numbers {
    ($($name:ident)*) => { [$(libc::$name),*] };
}

#[test]
fn the_calls_that_concern_connections_have_their_numbers() {
    let mut named = numbers!(
        SYS_read SYS_write SYS_close SYS_poll SYS_rt_sigaction SYS_ioctl SYS_readv SYS_writev
        SYS_select SYS_dup SYS_dup2 SYS_sendfile SYS_socket SYS_connect SYS_accept SYS_sendto
        SYS_recvfrom SYS_sendmsg SYS_recvmsg SYS_shutdown SYS_setsockopt SYS_getsockopt SYS_clone
        SYS_fork SYS_vfork SYS_execve SYS_fcntl SYS_setuid SYS_setreuid SYS_setresuid SYS_capset
        SYS_prctl SYS_epoll_create SYS_exit_group SYS_epoll_wait SYS_epoll_ctl SYS_pselect6
        SYS_ppoll SYS_unshare SYS_splice SYS_epoll_pwait SYS_accept4 SYS_epoll_create1 SYS_dup3
        SYS_recvmmsg SYS_sendmmsg SYS_seccomp SYS_execveat SYS_preadv2 SYS_pwritev2
        SYS_io_uring_setup SYS_io_uring_enter SYS_io_uring_register SYS_clone3 SYS_close_range
        SYS_epoll_pwait2 SYS_landlock_restrict_self SYS_io_submit
    );
    named.sort_unstable();
    let listed: Vec<i64> =
        (0..).zip(sites::OF_CONNECTIONS).filter(|(_, is)| *is).map(|(n, _)| n).collect();
    assert_eq!(listed, named);
}
