// Shared by the programs of this folder: a connection to oneself, warmed up; "on ring" (stderr) says whether it was upgraded. Build: cc -O1 -w -o P P.c -lpthread
#define _GNU_SOURCE
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <setjmp.h>
#include <pthread.h>
#include <poll.h>
#include <time.h>
#include <sys/socket.h>
#include <sys/epoll.h>
#include <sys/select.h>
#include <sys/time.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/uio.h>
#include <sys/syscall.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <arpa/inet.h>

static inline double now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec + t.tv_nsec / 1e9;
}
static inline double cpu(void)
{
    struct timespec t;
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t);
    return t.tv_sec + t.tv_nsec / 1e9;
}
static inline void ms(int n)
{
    usleep(n * 1000);
}
// Seconds after which it hangs what comes at once or never: a thread may get no processor for some of them.
enum { HANGS = 30 };
// The last rescue when the harness itself is gone, which waits the longer the busier the machine is.
static inline void rescue(void)
{
    const char *patience = getenv("SHORTWIRE_TEST_PATIENCE");
    alarm(600 * (patience ? atoi(patience) : 1));
}
// Until the thread is in its call and has slept there three times in a row: on a busy machine that may be late.
static inline void until_it_waits(volatile pid_t *caller)
{
    for (int seen = 0; seen < 3;) {
        char name[64], line[256] = "";
        ms(20);
        if (!*caller)
            continue;
        snprintf(name, sizeof name, "/proc/self/task/%d/stat", *caller);
        FILE *stat = fopen(name, "r");
        if (!stat || !fgets(line, sizeof line, stat))
            break;
        fclose(stat);
        char *end = strrchr(line, ')');
        seen = end && end[2] == 'S' ? seen + 1 : 0;
    }
}
static inline unsigned long long tcpsent(int fd)
{
    unsigned long long ti[32] = {0};
    socklen_t l = sizeof ti;
    getsockopt(fd, IPPROTO_TCP, TCP_INFO, ti, &l);
    return ti[25];
}
static inline void pairup(int*a, int*b)
{
    int l = socket(AF_INET, SOCK_STREAM, 0);
    struct sockaddr_in s = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t n = sizeof s;
    bind(l, (void*)&s, n);
    listen(l, 1);
    getsockname(l, (void*)&s, &n);
    *a = socket(AF_INET, SOCK_STREAM, 0);
    if (connect(*a, (void*)&s, n)) {
        perror("connect");
        exit(1);
    }
    *b = accept(l, 0, 0);
    close(l);
}
static inline void warmup(int a, int b)
{
    char c[64] = {0};
    for (int i = 0; i < 40; i++) {
        if (send(a, c, 1, 0) != 1)perror("warm");
        if (recv(b, c, 1, 0) != 1)perror("warm");
        if (send(b, c, 1, 0) != 1)perror("warm");
        if (recv(a, c, 1, 0) != 1)perror("warm");
    }
}
static inline int onring(int a, int b)
{
    char c[600];
    unsigned long long x = tcpsent(a);
    send(a, c, 600, 0);
    recv(b, c, 600, MSG_WAITALL);
    return tcpsent(a) - x < 600;
}
static inline void ready2(int*a, int*b)
{
    pairup(a, b);
    warmup(*a, *b);
    fprintf(stderr, "# on ring: %d %d\n", onring(*a, *b), onring(*b, *a));
}
#undef SYS_tcp
