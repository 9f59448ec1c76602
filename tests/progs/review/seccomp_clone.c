// The same as seccomp_kill with a child that was made past fork, by number and by instruction, as vsftpd makes its own, and a
// connection that nobody used before. Plain: 40 of 40, child exit 0, twice.
#include "t.h"
#include <sys/prctl.h>
#include <linux/seccomp.h>
#include <linux/filter.h>
#include <linux/audit.h>
#include <stddef.h>
/* a filter as OpenSSH's: kill on whatever is not read, write, recv/send, poll, exit, getpid, clock */
static pid_t by_number(void)
{
    return syscall(SYS_clone, SIGCHLD, 0, 0, 0, 0);
}
static pid_t by_instruction(void)
{
    long r;
    register long r10 asm("r10") = 0, r8 asm("r8") = 0;
    asm volatile("syscall" : "=a"(r) : "a"((long)SYS_clone), "D"((long)SIGCHLD), "S"(0L), "d"(0L), "r"(r10), "r"(r8) : "rcx", "r11", "memory");
    return r;
}
static void one(const char*how, pid_t (*make)(void))
{
    int a, b;
    pairup(&a, &b);
    int ok[] = {SYS_read, SYS_write, SYS_recvfrom, SYS_sendto, SYS_poll, SYS_ppoll, SYS_exit, SYS_exit_group, SYS_getpid, SYS_clock_gettime, SYS_clock_nanosleep, SYS_brk, SYS_mmap, SYS_munmap, SYS_getrandom, SYS_close, SYS_shutdown, SYS_futex, SYS_madvise, SYS_gettimeofday, SYS_rt_sigprocmask};
    struct sock_filter f[64];
    int n = 0, N = sizeof ok / sizeof * ok;
    f[n++] = (struct sock_filter)BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr));
    for (int i = 0; i < N; i++)f[n++] = (struct sock_filter)BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, ok[i], N - i, 0);
    f[n++] = (struct sock_filter)BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_KILL_PROCESS);
    f[n++] = (struct sock_filter)BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW);
    struct sock_fprog pr = {n, f};
    pid_t p = make();
    if (!p) {
        close(b);
        prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0);
        if (prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &pr))perror("seccomp");
        char c;
        for (int i = 0; i < 40; i++) {
            if (read(a, &c, 1) != 1)break;
            if (write(a, &c, 1) != 1)break;
        }
        _exit(0);
    }
    close(a);
    char c;
    int k = 0;
    for (int i = 0; i < 40; i++) {
        if (write(b, "x", 1) != 1 || read(b, &c, 1) != 1)break;
        k++;
    }
    int st;
    close(b);
    waitpid(p, &st, 0);
    printf("echo by a child made %s in a seccomp sandbox that kills: %d of 40, child %s %d\n", how, k,
           WIFSIGNALED(st) ? "signal" : "exit", WIFSIGNALED(st) ? WTERMSIG(st) : WEXITSTATUS(st));
}
int main()
{
    setvbuf(stdout, 0, _IOLBF, 0);
    one("by number", by_number);
    one("by instruction", by_instruction);
    return 0;
}
