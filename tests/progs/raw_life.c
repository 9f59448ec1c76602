/*
 * raw_life [jumps]   threads, vfork, fork and siglongjmp out of handlers, one after the other: says "done" if each child ended well and
 *            a thousand threads left no memory behind; jumps: nor some that end when they were jumped out of a call, and handlers have
 *            the program's stack
 */
#include <arpa/inet.h>
#include <netinet/in.h>
#include <pthread.h>
#include <setjmp.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
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

/* A connection on which nothing comes. */
static int silent(void)
{
    struct sockaddr_in at = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t len = sizeof at;
    int listener = socket(AF_INET, SOCK_STREAM, 0), fd = socket(AF_INET, SOCK_STREAM, 0);
    if (bind(listener, (struct sockaddr *)&at, len) || listen(listener, 1) || getsockname(listener, (struct sockaddr *)&at, &len) ||
        connect(fd, (struct sockaddr *)&at, len))
        exit(10);
    /* What is made once for the whole process is not made under the threads' signals. */
    char c;
    if (recv(fd, &c, 1, MSG_DONTWAIT) >= 0)
        exit(14);
    return fd;
}

static volatile int fd_silent, is_in_call, is_out;

static void jump(int signal)
{
    (void)signal;
    if (is_in_call) {
        is_in_call = 0;
        siglongjmp(out, 1);
    }
}

static void *jumper(void *arg)
{
    char c;
    if (!sigsetjmp(out, 1)) {
        is_in_call = 1;
        for (;;)
            if (read(fd_silent, &c, 1) >= 0)
                exit(11);
    }
    is_out = 1;
    return arg;
}

/* Threads that end after a handler has jumped out of a call that is answered. */
static void jumpers(int n)
{
    pthread_t t;
    while (n--) {
        is_in_call = is_out = 0;
        if (pthread_create(&t, NULL, jumper, NULL))
            exit(12);
        /* Time to fall asleep in the call, rather than be in the middle of the library's work. */
        while (!is_out) {
            usleep(20000);
            pthread_kill(t, SIGUSR1);
        }
        pthread_join(t, NULL);
    }
}

static volatile int n_handled;
static char *near_main;

/* More than a call has of its own, and some of it is used by a call in the handler. */
static void wide(int signal)
{
    (void)signal;
    volatile char much[512 << 10];
    for (size_t i = 0; i < sizeof much; i += 512)
        much[i] = 1;
    char *here = (char *)much;
    if (here > near_main || near_main - here > 4 << 20)
        exit(15);
    close(-1);
    n_handled++;
}

/* Handlers that come in the middle of a call that is answered, and others. */
static void handlers(void)
{
    char c, here;
    near_main = &here;
    struct sigaction act = {.sa_handler = wide}, old;
    if (sigaction(SIGALRM, &act, NULL) || sigaction(SIGALRM, NULL, &old) || old.sa_handler != wide)
        exit(16);
    raise(SIGALRM);
    for (int i = 0; i < 20; i++) {
        /* Once more half a second later: the first may come in front of the read. */
        ualarm(5000, 500000);
        if (read(fd_silent, &c, 1) >= 0)
            exit(17);
        ualarm(0, 0);
    }
    if (n_handled < 21)
        exit(18);
    signal(SIGALRM, SIG_DFL);
}

int main(int argc, char **argv)
{
    (void)argv;
    expect_followed();
    threads(50);
    long before = pages();
    threads(1000);
    if (pages() > before + 256)
        exit(5);
    if (argc > 1) {
        fd_silent = silent();
        handlers();
        signal(SIGUSR1, jump);
        jumpers(5);
        before = pages();
        jumpers(40);
        /* Half of what their stacks for calls take. */
        if ((pages() - before) * sysconf(_SC_PAGESIZE) > 24 << 20)
            exit(13);
    }
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
            ualarm(2000, 500000);
            if (read(fd[0], &c, 1) >= 0)
                exit(7);
        }
    }
    ualarm(0, 0);
    if (system("exit 3") != 3 << 8)
        exit(8);
    printf("done\n");
    return 0;
}
