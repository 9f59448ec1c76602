/*
 * raw_life   threads, vfork, fork and siglongjmp out of handlers, one after the other: says "done" if each child ended well and
 *            a thousand threads left no memory behind
 */
#include <pthread.h>
#include <setjmp.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

static sigjmp_buf out;

static void leave(int signal)
{
    (void)signal;
    siglongjmp(out, 1);
}

/* A watched call that fails, so that the thread has come by. */
static void *thread(void *arg)
{
    close(-1);
    return arg;
}

static void threads(int n)
{
    pthread_t t;
    while (n--)
        if (pthread_create(&t, NULL, thread, NULL) || pthread_join(t, NULL))
            exit(2);
}

static long pages(void)
{
    long n = 0;
    FILE *f = fopen("/proc/self/statm", "r");
    if (!f || fscanf(f, "%ld", &n) != 1)
        exit(3);
    fclose(f);
    return n;
}

static void expect_success(pid_t child)
{
    int status;
    if (child < 0 || waitpid(child, &status, 0) != child || status)
        exit(4);
}

/* Left to itself the program would do all this just as well. */
static void expect_followed(void)
{
    char line[512];
    FILE *f = fopen("/proc/self/maps", "r");
    while (f && fgets(line, sizeof line, f))
        if (strstr(line, "/shortwire-raw")) {
            fclose(f);
            return;
        }
    exit(9);
}

int main(void)
{
    expect_followed();
    threads(50);
    long before = pages();
    threads(1000);
    if (pages() > before + 256)
        exit(5);
    for (int i = 0; i < 20; i++) {
        pid_t child = vfork();
        if (!child) {
            execl("/bin/true", "true", (char *)NULL);
            _exit(1);
        }
        expect_success(child);
    }
    for (int i = 0; i < 5; i++) {
        pid_t child = fork();
        if (!child) {
            threads(3);
            _exit(0);
        }
        expect_success(child);
    }
    int fd[2];
    if (pipe(fd))
        exit(6);
    signal(SIGALRM, leave);
    for (volatile int i = 0; i < 8; i++) {
        char c;
        if (!sigsetjmp(out, 1)) {
            ualarm(2000, 0);
            if (read(fd[0], &c, 1) >= 0)
                exit(7);
        }
    }
    if (system("exit 3") != 3 << 8)
        exit(8);
    printf("done\n");
    return 0;
}
