/*
 * A program whose system calls, besides those of its libc, nothing can be put in the place of: a jump leads to each.
 *   untold life               masks, handlers, threads and children by such calls: says "followed" if it is, and "done"
 *   untold PORT ROUNDS        a client of `many server`
 */
#include "common.h"
#include <poll.h>
#include <pthread.h>
#include <spawn.h>
#include <sys/stat.h>
#include <sys/syscall.h>

__asm__(".globl untold\n"
        "untold:\n"
        "    mov %rdi, %rax\n"
        "    mov %rsi, %rdi\n"
        "    mov %rdx, %rsi\n"
        "    mov %rcx, %rdx\n"
        "    mov %r8, %r10\n"
        "    mov %r9, %r8\n"
        "    xor %r9, %r9\n"
        "    pop %r11\n"
        "    push %r11\n"
        "    test %rax, %rax\n"
        "    jz 1f\n"
        "    mov %r9, %r9\n"
        "1:  syscall\n"
        "    jmp 2f\n"
        "    ud2\n"
        "2:  ret\n");
long untold(long number, long a, long b, long c, long d, long e);

/* A vfork child must not leave the function that has made it. */
#define UNTOLD_VFORK()                                                                                                          \
    ({                                                                                                                          \
        long r_;                                                                                                                \
        __asm__ volatile("mov $58, %%eax\n test %%eax, %%eax\n jz 1f\n mov %%r9, %%r9\n 1: syscall\n jmp 2f\n ud2\n 2:"          \
                         : "=a"(r_)                                                                                             \
                         :                                                                                                      \
                         : "rcx", "r11", "memory");                                                                             \
        r_;                                                                                                                     \
    })

extern char **environ;
static int pipe_of[2];
static volatile int handled;

static void expect(int ok, int line)
{
    if (!ok)
        die("line %d", line);
}
#define EXPECT(ok) expect(ok, __LINE__)

static void handler(int signal)
{
    char c = (char)signal;
    if (untold(SYS_write, pipe_of[1], (long)&c, 1, 0, 0) == 1)
        handled++;
}

static void expect_handled(int signal)
{
    char c = 0;
    EXPECT(untold(SYS_read, pipe_of[0], (long)&c, 1, 0, 0) == 1 && c == (char)signal);
}

static void *thread(void *arg)
{
    char c = 'x';
    int both[2];
    if (untold(SYS_pipe, (long)both, 0, 0, 0, 0) || untold(SYS_write, both[1], (long)&c, 1, 0, 0) != 1)
        return NULL;
    untold(SYS_close, both[0], 0, 0, 0, 0);
    untold(SYS_close, both[1], 0, 0, 0, 0);
    return arg;
}

/* The kernel takes another file for the program's: only who answers such calls can give this one. */
static void own_file(const char *path)
{
    struct stat own, opened;
    MUST(stat(path, &own));
    int fd = MUST(untold(SYS_open, (long)"/proc/self/exe", O_RDONLY, 0, 0, 0));
    MUST(fstat(fd, &opened));
    EXPECT(own.st_ino == opened.st_ino);
    close(fd);
}

static void masks(void)
{
    sigset_t all, before, now;
    struct sigaction action = { .sa_handler = handler, .sa_flags = SA_RESTART }, old;
    sigfillset(&all);
    action.sa_mask = all;
    EXPECT(!sigaction(SIGUSR1, &action, NULL) && !sigaction(SIGUSR1, NULL, &old));
    EXPECT(sigismember(&old.sa_mask, SIGSYS) == 1 && sigismember(&old.sa_mask, SIGUSR2) == 1);
    EXPECT(!sigprocmask(SIG_SETMASK, &all, &before) && sigismember(&before, SIGSYS) == 0);
    EXPECT(!sigprocmask(SIG_SETMASK, NULL, &now) && sigismember(&now, SIGSYS) == 1);
    own_file("/proc/self/exe");
    EXPECT(!sigprocmask(SIG_SETMASK, &before, &now) && sigismember(&now, SIGSYS) == 1);
    EXPECT(untold(SYS_rt_sigprocmask, SIG_BLOCK, (long)&all, 0, 8, 0) == 0);
    raise(SIGUSR1);
    EXPECT(handled == 0 && untold(SYS_rt_sigprocmask, SIG_SETMASK, (long)&before, 0, 8, 0) == 0);
    EXPECT(handled == 1);
    expect_handled(SIGUSR1);
    /* A wait with all blocked but one, whose handler blocks all. */
    sigdelset(&all, SIGUSR1);
    MUST(sigprocmask(SIG_BLOCK, &all, NULL));
    sigset_t one;
    sigemptyset(&one);
    sigaddset(&one, SIGUSR1);
    MUST(sigprocmask(SIG_BLOCK, &one, NULL));
    raise(SIGUSR1);
    EXPECT(ppoll(NULL, 0, NULL, &all) == -1 && errno == EINTR && handled == 2);
    raise(SIGUSR1);
    EXPECT(sigsuspend(&all) == -1 && handled == 3);
    MUST(sigprocmask(SIG_SETMASK, &before, NULL));
    expect_handled(SIGUSR1);
    expect_handled(SIGUSR1);
    /* Its own handler of the signal. */
    sigemptyset(&action.sa_mask);
    EXPECT(!sigaction(SIGSYS, &action, &old) && old.sa_handler == SIG_DFL);
    raise(SIGSYS);
    expect_handled(SIGSYS);
    EXPECT(!sigaction(SIGSYS, &old, &action) && action.sa_handler == handler);
    /* On a stack of its own. */
    static char stack[65536];
    stack_t other = { .ss_sp = stack, .ss_size = sizeof stack };
    MUST(sigaltstack(&other, NULL));
    action.sa_flags = SA_ONSTACK;
    EXPECT(!sigaction(SIGUSR2, &action, NULL));
    raise(SIGUSR2);
    expect_handled(SIGUSR2);
    own_file("/proc/self/exe");
}

static void children(void)
{
    int status;
    char *words[] = { "true", NULL };
    for (int i = 0; i < 8; i++) {
        pid_t child = untold(SYS_fork, 0, 0, 0, 0, 0);
        if (!child) {
            own_file("/proc/self/exe");
            untold(SYS_exit_group, 7, 0, 0, 0, 0);
        }
        EXPECT(waitpid(child, &status, 0) == child && status == 7 << 8);
        child = UNTOLD_VFORK();
        if (!child) {
            untold(SYS_execve, (long)"/no/such", (long)words, (long)environ, 0, 0);
            untold(SYS_execve, (long)"/bin/true", (long)words, (long)environ, 0, 0);
            untold(SYS_exit_group, 3, 0, 0, 0, 0);
        }
        EXPECT(child > 0 && waitpid(child, &status, 0) == child && status == 0);
        EXPECT(!posix_spawn(&child, "/bin/true", NULL, NULL, words, environ));
        EXPECT(waitpid(child, &status, 0) == child && status == 0);
        EXPECT(posix_spawn(&child, "/no/such", NULL, NULL, words, environ) == ENOENT);
    }
    EXPECT(system("exit 3") == 3 << 8);
}

static int life(const char *path)
{
    MUST(pipe(pipe_of));
    own_file(path);
    char line[512];
    FILE *maps = fopen("/proc/self/maps", "r");
    while (maps && fgets(line, sizeof line, maps))
        if (strstr(line, "/shortwire-raw")) {
            printf("followed\n");
            break;
        }
    if (maps)
        fclose(maps);
    fflush(stdout);
    for (int i = 0; i < 300; i++) {
        pthread_t t;
        void *said;
        EXPECT(!pthread_create(&t, NULL, thread, pipe_of) && !pthread_join(t, &said) && said == pipe_of);
    }
    children();
    masks();
    children();
    /* What it would be without a handler. */
    pid_t child = fork();
    int status;
    if (!child) {
        raise(SIGSYS);
        _exit(0);
    }
    EXPECT(waitpid(child, &status, 0) == child && WIFSIGNALED(status) && WTERMSIG(status) == SIGSYS);
    printf("done\n");
    return 0;
}

int main(int argc, char **argv)
{
    unsigned char out[64], in[64];
    if (argc == 2)
        return life(argv[0]);
    int fd = dial(atoi(argv[1])), rounds = atoi(argv[2]);
    for (int i = 0; i < rounds; i++) {
        size_t got = 0;
        fill(out, 7, i * sizeof out, sizeof out);
        EXPECT(untold(SYS_write, fd, (long)out, sizeof out, 0, 0) == sizeof out);
        while (got < sizeof in) {
            long n = untold(SYS_read, fd, (long)(in + got), sizeof in - got, 0, 0);
            EXPECT(n > 0);
            got += n;
        }
        EXPECT(!memcmp(in, out, sizeof in));
        if (i % 100 == 0)
            usleep(1000);
    }
    printf("done\n");
    return 0;
}
