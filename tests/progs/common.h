/* Shared by the test programs: plain libc, nothing of Shortwire. */
#ifndef COMMON_H
#define COMMON_H
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <signal.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <sys/types.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define UNUSED __attribute__((unused))

UNUSED static void die(const char *fmt, ...)
{
    int e = errno;
    va_list ap;
    va_start(ap, fmt);
    fprintf(stderr, "[%d] FAIL: ", (int)getpid());
    vfprintf(stderr, fmt, ap);
    fprintf(stderr, " (errno %d %s)\n", e, strerror(e));
    va_end(ap);
    fflush(NULL);
    _exit(2);
}

#define MUST(call) ({ __typeof__(call) r_ = (call); if (r_ < 0) die("%s:%d: %s", __FILE__, __LINE__, #call); r_; })

/* A stream is a function of (seed, offset): any receiver can check any prefix without a second copy of it. */
UNUSED static uint64_t mix(uint64_t x)
{
    x += 0x9e3779b97f4a7c15ull;
    x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9ull;
    x = (x ^ (x >> 27)) * 0x94d049bb133111ebull;
    return x ^ (x >> 31);
}

UNUSED static uint64_t next_random(uint64_t *state)
{
    *state = mix(*state);
    return *state;
}

UNUSED static void fill(void *buf, uint64_t seed, uint64_t off, size_t len)
{
    unsigned char *p = buf;
    while (len > 0) {
        uint64_t word = mix(seed + (off >> 3));
        size_t skip = off & 7, n = 8 - skip;
        if (n > len)
            n = len;
        memcpy(p, (unsigned char *)&word + skip, n);
        p += n;
        off += n;
        len -= n;
    }
}

UNUSED static void check(const void *buf, uint64_t seed, uint64_t off, size_t len, const char *who)
{
    const unsigned char *p = buf;
    while (len > 0) {
        uint64_t word = mix(seed + (off >> 3));
        size_t skip = off & 7, n = 8 - skip;
        if (n > len)
            n = len;
        if (memcmp(p, (unsigned char *)&word + skip, n) != 0) {
            fprintf(stderr, "[%d] %s: wrong data in the 8 bytes at stream offset %llu: want", (int)getpid(), who,
                    (unsigned long long)off);
            for (size_t i = 0; i < n; i++)
                fprintf(stderr, " %02x", ((unsigned char *)&word)[skip + i]);
            fprintf(stderr, ", got");
            for (size_t i = 0; i < n; i++)
                fprintf(stderr, " %02x", p[i]);
            fprintf(stderr, "\n");
            fflush(NULL);
            _exit(3);
        }
        p += n;
        off += n;
        len -= n;
    }
}

/* SWT_FAMILY=6 uses ::1, =mapped an IPv4 client on a dual-stack listener; anything else is 127.0.0.1. */
UNUSED static socklen_t address(struct sockaddr_storage *ss, int port, int listening)
{
    const char *family = getenv("SWT_FAMILY");
    memset(ss, 0, sizeof *ss);
    if (family && (strcmp(family, "6") == 0 || (strcmp(family, "mapped") == 0 && listening))) {
        struct sockaddr_in6 *a = (void *)ss;
        a->sin6_family = AF_INET6;
        a->sin6_port = htons(port);
        a->sin6_addr = family[0] == '6' ? in6addr_loopback : in6addr_any;
        return sizeof *a;
    }
    struct sockaddr_in *a = (void *)ss;
    a->sin_family = AF_INET;
    a->sin_port = htons(port);
    a->sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    return sizeof *a;
}

UNUSED static int listen_on(int port)
{
    struct sockaddr_storage ss;
    socklen_t len = address(&ss, port, 1);
    int one = 1, fd = MUST(socket(ss.ss_family, SOCK_STREAM, 0));
    MUST(setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &one, sizeof one));
    MUST(bind(fd, (struct sockaddr *)&ss, len));
    MUST(listen(fd, 4096));
    return fd;
}

UNUSED static int port_of(int fd)
{
    struct sockaddr_storage ss;
    socklen_t len = sizeof ss;
    MUST(getsockname(fd, (struct sockaddr *)&ss, &len));
    return ntohs(ss.ss_family == AF_INET6 ? ((struct sockaddr_in6 *)&ss)->sin6_port : ((struct sockaddr_in *)&ss)->sin_port);
}

UNUSED static int dial(int port)
{
    struct sockaddr_storage ss;
    socklen_t len = address(&ss, port, 0);
    int fd = MUST(socket(ss.ss_family, SOCK_STREAM, 0));
    MUST(connect(fd, (struct sockaddr *)&ss, len));
    return fd;
}

UNUSED static int answer(int listener)
{
    int fd;
    do
        fd = accept(listener, NULL, NULL);
    while (fd < 0 && errno == EINTR);
    return MUST(fd);
}

UNUSED static void send_all(int fd, const void *buf, size_t len)
{
    const char *p = buf;
    while (len > 0) {
        ssize_t n = send(fd, p, len, MSG_NOSIGNAL);
        if (n < 0 && errno == EINTR)
            continue;
        MUST(n);
        p += n;
        len -= n;
    }
}

/* The bytes received before the end: less than len only at end of stream. */
UNUSED static size_t recv_upto(int fd, void *buf, size_t len)
{
    size_t got = 0;
    while (got < len) {
        ssize_t n = recv(fd, (char *)buf + got, len - got, 0);
        if (n < 0 && errno == EINTR)
            continue;
        MUST(n);
        if (n == 0)
            break;
        got += n;
    }
    return got;
}

UNUSED static void recv_all(int fd, void *buf, size_t len)
{
    size_t got = recv_upto(fd, buf, len);
    if (got != len) {
        errno = 0;
        die("end of stream after %zu of %zu bytes", got, len);
    }
}

/* A line for the harness. */
UNUSED static void report(const char *fmt, ...)
{
    va_list ap;
    va_start(ap, fmt);
    vprintf(fmt, ap);
    va_end(ap);
    putchar('\n');
    fflush(stdout);
}

UNUSED static void nap(int ms)
{
    struct timespec t = { ms / 1000, (ms % 1000) * 1000000L };
    while (nanosleep(&t, &t) < 0 && errno == EINTR)
        ;
}

UNUSED static void nonblocking(int fd)
{
    MUST(fcntl(fd, F_SETFL, MUST(fcntl(fd, F_GETFL)) | O_NONBLOCK));
}

UNUSED static long now_ms(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec * 1000 + t.tv_nsec / 1000000;
}

struct moment { long real, tick; };

UNUSED static struct moment moment(void)
{
    struct timespec tick;
    clock_gettime(CLOCK_MONOTONIC_COARSE, &tick);
    return (struct moment){ now_ms(), tick.tv_sec * 1000 + tick.tv_nsec / 1000000 };
}

/* How long a socket's time limit took, at least. The kernel counts it in ticks, and a machine whose processor was held for a while
   counts those that it missed at once: a limit of 30 ms then ends behind 24 ms, and 7 have been seen. The coarse clock goes by ticks. */
UNUSED static long ms_since(struct moment began)
{
    struct moment ended = moment();
    long real = ended.real - began.real, tick = ended.tick - began.tick;
    return real > tick ? real : tick;
}

/* The last rescue when the harness itself is gone. */
UNUSED static void limit_life(int seconds)
{
    signal(SIGALRM, SIG_DFL);
    const char *patience = getenv("SHORTWIRE_TEST_PATIENCE");
    alarm(seconds * (patience ? (unsigned)atoi(patience) : 1));
}
#endif
