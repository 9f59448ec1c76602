// A child made by syscall(SYS_clone) or syscall(SYS_clone3), as programs with namespaces of their own make theirs, takes over a
// connection that its parent has used, and closes. Plain: 200 of 200 lines, then the end, child exit 0, for each.
#include "t.h"
#include <linux/sched.h>
static pid_t by_clone(void)
{
    return syscall(SYS_clone, SIGCHLD, 0, 0, 0, 0);
}
static pid_t by_clone3(void)
{
    struct clone_args args = {.exit_signal = SIGCHLD};
    return syscall(SYS_clone3, &args, sizeof args);
}
static pid_t by_fork(void)
{
    return syscall(SYS_fork);
}
static int echo(int from, int to, int rounds)
{
    char c;
    for (int i = 0; i < rounds; i++) {
        if (send(from, "x", 1, 0) != 1 || recv(to, &c, 1, 0) != 1 || send(to, "y", 1, 0) != 1 || recv(from, &c, 1, 0) != 1)
            return i;
    }
    return rounds;
}
static void one(const char*how, pid_t (*make)(void), int warm)
{
    int a, b, st;
    pairup(&a, &b);
    echo(a, b, warm);
    pid_t p = make();
    if (!p) {
        char c;
        close(b);
        while (recv(a, &c, 1, 0) == 1) {
            if (send(a, &c, 1, 0) != 1)
                _exit(1);
        }
        close(a);
        // Sockets of its own.
        pairup(&a, &b);
        _exit(echo(a, b, 100) == 100 ? 0 : 2);
    }
    close(a);
    int k = 0;
    char c;
    struct timeval limit = {5, 0};
    setsockopt(b, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof limit);
    while (k < 200 && send(b, "z", 1, 0) == 1 && recv(b, &c, 1, 0) == 1 && c == 'z')
        k++;
    shutdown(b, SHUT_WR);
    int end = recv(b, &c, 1, 0);
    waitpid(p, &st, 0);
    close(b);
    // The parent's own connections are as before.
    pairup(&a, &b);
    printf("%s after %d: %d of 200, then %d, child %s %d, parent %d\n", how, warm, k, end, WIFSIGNALED(st) ? "signal" : "exit",
           WIFSIGNALED(st) ? WTERMSIG(st) : WEXITSTATUS(st), echo(a, b, 100));
    close(a);
    close(b);
}
int main()
{
    setvbuf(stdout, 0, _IOLBF, 0);
    for (int warm = 0; warm <= 40; warm += 20) {
        one("clone", by_clone, warm);
        one("clone3", by_clone3, warm);
        one("fork", by_fork, warm);
    }
    return 0;
}
