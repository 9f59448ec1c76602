/*
 * cost LIBRARY    has a program make a connection that is never upgraded, step by step, and says what of that was the library's:
 *                 a line for each call with its instructions, its locked ones, and all system calls of the call. What the
 *                 library has the dynamic linker do is counted as its own
 *
 * One thread is both ends, so nothing depends on time, and a call costs the same number of instructions each time.
 */
#define _GNU_SOURCE
#include "common.h"
#include <sys/epoll.h>
#include <sys/mman.h>
#include <sys/ptrace.h>
#include <sys/user.h>

enum { WARM = 5, END = 255 };

static const char *const names[] = {
    NULL, "socket", "connect", "accept4", "epoll_ctl", "first-write", "epoll_wait", "first-read", "write", "read", "read-empty",
    "close-watched", "close",
};
enum { CALLS = sizeof names / sizeof *names };

static volatile int *now;

#define CALL(number, call) \
    do {                   \
        *now = (number);   \
        call;              \
        *now = 0;          \
    } while (0)

/* As often as it takes for everything to have happened once, and then once under the eyes of the parent. */
static void connection(int listener, const struct sockaddr_storage *at, socklen_t length, int set)
{
    char buf[256] = { 1 };
    struct epoll_event e = { .events = EPOLLIN }, out[4];
    static int a, b;
    CALL(1, a = socket(AF_INET, SOCK_STREAM, 0));
    CALL(2, connect(a, (const void *)at, length));
    CALL(3, b = accept4(listener, NULL, NULL, SOCK_NONBLOCK));
    CALL(4, epoll_ctl(set, EPOLL_CTL_ADD, b, &e));
    CALL(5, (void)!write(a, buf, 100));
    CALL(6, epoll_wait(set, out, 4, 0));
    CALL(7, (void)!read(b, buf, 200));
    CALL(8, (void)!write(b, buf, 200));
    CALL(9, (void)!read(a, buf, 200));
    CALL(10, (void)!read(b, buf, 200));
    CALL(11, close(b));
    CALL(12, close(a));
}

static void program(void)
{
    struct sockaddr_storage at;
    socklen_t length = address(&at, 0, 1);
    int listener = MUST(socket(AF_INET, SOCK_STREAM, 0)), set = MUST(epoll_create1(0));
    MUST(bind(listener, (void *)&at, length));
    MUST(listen(listener, 10));
    MUST(getsockname(listener, (void *)&at, &length));
    for (int i = 0; i <= WARM; i++) {
        if (i == WARM)
            raise(SIGSTOP);
        connection(listener, &at, length, set);
    }
    *now = END;
    raise(SIGSTOP);
}

/* Whether an instruction is locked: by its prefix, or an exchange with memory, which is always. */
static int is_locked(uint64_t code)
{
    unsigned char b[8];
    memcpy(b, &code, sizeof b);
    int at = b[0] == 0x66;
    if (b[at] == 0xf0)
        return 1;
    if ((b[at] & 0xf0) == 0x40)
        at++;
    return (b[at] == 0x86 || b[at] == 0x87) && b[at + 1] < 0xc0;
}

int main(int argc, char **argv)
{
    if (argc == 1) {
        now = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED, 3, 0);
        MUST(now == MAP_FAILED ? -1 : 0);
        program();
        return 0;
    }
    limit_life(60);
    int memory = MUST(memfd_create("cost", 0));
    MUST(ftruncate(memory, 4096));
    now = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED, memory, 0);
    MUST(now == MAP_FAILED ? -1 : 0);
    int status;
    pid_t child = MUST(fork());
    if (child == 0) {
        MUST(ptrace(PTRACE_TRACEME, 0, 0, 0));
        MUST(dup2(memory, 3));
        setenv("LD_PRELOAD", argv[1], 1);
        execl("/proc/self/exe", argv[0], (char *)NULL);
        die("exec");
    }
    for (int sig = 0; MUST(waitpid(child, &status, 0)), !WIFSTOPPED(status) || WSTOPSIG(status) != SIGSTOP;) {
        if (!WIFSTOPPED(status))
            die("the program ended early");
        sig = WSTOPSIG(status) == SIGTRAP ? 0 : WSTOPSIG(status);
        MUST(ptrace(PTRACE_CONT, child, 0, sig));
    }
    /* Where the library is, and the dynamic linker. */
    char path[64], line[512];
    uint64_t from[2] = { 0 }, to[2] = { 0 };
    snprintf(path, sizeof path, "/proc/%d/maps", child);
    FILE *maps = fopen(path, "r");
    while (maps && fgets(line, sizeof line, maps)) {
        unsigned long long low, high;
        int at = strstr(line, "libshortwire.so") ? 0 : strstr(line, "/ld-linux") ? 1 : -1;
        if (at >= 0 && strstr(line, "r-xp") && sscanf(line, "%llx-%llx", &low, &high) == 2)
            from[at] = low, to[at] = high;
    }
    if (!from[0])
        die("%s is not loaded", argv[1]);
    static struct {
        unsigned instructions, locked, calls;
    } cost[CALLS];
    for (;;) {
        MUST(ptrace(PTRACE_SINGLESTEP, child, 0, 0));
        MUST(waitpid(child, &status, 0));
        int call = *now;
        if (call == END)
            break;
        if (!WIFSTOPPED(status))
            die("the program ended in call %d", call);
        struct user_regs_struct regs;
        MUST(ptrace(PTRACE_GETREGS, child, 0, &regs));
        errno = 0;
        uint64_t code = ptrace(PTRACE_PEEKTEXT, child, regs.rip, 0);
        if (call <= 0 || call >= CALLS)
            continue;
        int ours = (regs.rip >= from[0] && regs.rip < to[0]) || (regs.rip >= from[1] && regs.rip < to[1]);
        cost[call].instructions += ours;
        cost[call].locked += ours && is_locked(code);
        cost[call].calls += (code & 0xffff) == 0x050f;
    }
    for (int i = 1; i < CALLS; i++)
        printf("%s %u %u %u\n", names[i], cost[i].instructions, cost[i].locked, cost[i].calls);
    kill(child, SIGKILL);
    return 0;
}
