// A seccomp filter that kills for all but the system calls of this program: sockets that are made, waited for, inherited and closed
// behind it make no others. Plain: all of it, exit 0.
#include "t.h"
#include <sys/prctl.h>
#include <linux/seccomp.h>
#include <linux/filter.h>
static int a, b;
static void forbid(void)
{
    int ok[] = {SYS_read, SYS_write, SYS_sendto, SYS_recvfrom, SYS_socket, SYS_connect, SYS_accept, SYS_bind, SYS_listen, SYS_getsockname, SYS_close, SYS_poll, SYS_epoll_create1, SYS_epoll_ctl, SYS_epoll_wait, SYS_shutdown, SYS_exit_group, SYS_clock_nanosleep, SYS_brk, SYS_mmap, SYS_clone, SYS_wait4, SYS_set_robust_list, SYS_rt_sigprocmask, SYS_newfstatat, SYS_fstat};
    struct sock_filter f[64];
    int n = 0, count = sizeof ok / sizeof *ok;
    f[n++] = (struct sock_filter)BPF_STMT(BPF_LD | BPF_W | BPF_ABS, 0);
    for (int i = 0; i < count; i++)
        f[n++] = (struct sock_filter)BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, ok[i], count - i, 0);
    f[n++] = (struct sock_filter)BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_KILL_PROCESS);
    f[n++] = (struct sock_filter)BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW);
    struct sock_fprog p = {n, f};
    prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0);
    if (prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &p))
        perror("seccomp");
}
static int talk(int x, int y)
{
    char c;
    for (int i = 0; i < 40; i++)
        if (send(x, "x", 1, 0) != 1 || recv(y, &c, 1, 0) != 1)
            return 0;
    return 1;
}
static void inside(int before)
{
    int x, y, set;
    char c;
    struct epoll_event e = {EPOLLIN};
    if (before) {
        pairup(&a, &b);
        talk(a, b), talk(b, a);
    }
    forbid();
    if (!before)
        pairup(&a, &b);
    printf("%d", talk(a, b) && talk(b, a));
    pairup(&x, &y);
    printf(" new %d", talk(x, y) && talk(y, x));
    set = epoll_create1(0);
    e.data.fd = y;
    printf(" add %d", epoll_ctl(set, EPOLL_CTL_ADD, y, &e));
    send(x, "z", 1, 0);
    printf(" epoll %d", epoll_wait(set, &e, 1, 1000));
    struct pollfd p = {y, POLLIN};
    printf(" poll %d", poll(&p, 1, 1000));
    printf(" read %zd", read(y, &c, 1));
    fflush(stdout);
    if (fork() == 0) {
        printf(" child %d\n", talk(x, y));
        fflush(stdout);
        _exit(0);
    }
    wait(0);
    close(x);
    printf("end %zd\n", read(y, &c, 1));
    fflush(stdout);
    _exit(0);
}
int main(void)
{
    static char buffer[4096];
    setvbuf(stdout, buffer, _IOFBF, sizeof buffer);
    for (int before = 0; before < 2; before++) {
        int s = 0;
        pid_t p = fork();
        if (p == 0)
            inside(before);
        waitpid(p, &s, 0);
        printf("exit %d signal %d\n", WEXITSTATUS(s), WTERMSIG(s));
        fflush(stdout);
    }
}
