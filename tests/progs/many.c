/*
 * many server PORT                echo on any number of connections, until SIGTERM
 * many idle PORT N ROUNDS [SIZE]  N connections, ROUNDS exchanges of SIZE bytes (16, at most 2048) on each, then silence
 *                                 until a line comes on stdin
 * many short PORT N               N times: connect, one request, close
 * many talk PORT ROUNDS           one connection, rounds of known bytes, then silence until a line comes on stdin
 * many turns PORT N ACTIVE TIMES  N connections in an epoll set, TIMES exchanges, ACTIVE of them at a time on one connection
 *                                 after the other, then silence until a line comes on stdin
 * From the environment: SHORTWIRE_TEST_LIFE, seconds after which it ends itself (900)
 */
#include "common.h"
#include <sys/epoll.h>

static int server(int port)
{
    int listener = listen_on(port), set = MUST(epoll_create1(EPOLL_CLOEXEC));
    struct epoll_event e = { .events = EPOLLIN, .data.fd = listener }, ready[256];
    static char buf[65536];
    nonblocking(listener);
    MUST(epoll_ctl(set, EPOLL_CTL_ADD, listener, &e));
    printf("listening\n");
    fflush(stdout);
    for (;;) {
        int n = epoll_wait(set, ready, 256, -1);
        if (n < 0 && errno == EINTR)
            continue;
        MUST(n);
        for (int i = 0; i < n; i++) {
            int fd = ready[i].data.fd;
            if (fd == listener) {
                while ((fd = accept4(listener, NULL, NULL, SOCK_NONBLOCK | SOCK_CLOEXEC)) >= 0) {
                    e.data.fd = fd;
                    MUST(epoll_ctl(set, EPOLL_CTL_ADD, fd, &e));
                }
                if (errno != EAGAIN && errno != ECONNABORTED)
                    die("accept");
                continue;
            }
            ssize_t got = recv(fd, buf, sizeof buf, 0);
            if (got < 0 && errno == EAGAIN)
                continue;
            if (got <= 0) {
                close(fd);
                continue;
            }
            for (ssize_t at = 0; at < got;) {
                ssize_t put = send(fd, buf + at, got - at, MSG_NOSIGNAL);
                if (put < 0 && errno == EAGAIN) {
                    struct pollfd p = { .fd = fd, .events = POLLOUT };
                    poll(&p, 1, -1);
                } else if (put < 0) {
                    close(fd);
                    break;
                } else
                    at += put;
            }
        }
    }
}

static void exchange(int fd, uint64_t seed, size_t len)
{
    char out[2048], in[2048];
    fill(out, mix(seed), 0, len);
    send_all(fd, out, len);
    recv_all(fd, in, len);
    if (memcmp(in, out, len) != 0)
        die("wrong echo for seed %llu", (unsigned long long)seed);
}

/* Waits in poll, as programs do that have connections. */
static void wait_for_line(const char *state, int fd)
{
    char line[16];
    struct pollfd p[2] = { { .fd = 0, .events = POLLIN }, { .fd = fd } };
    printf("%s\n", state);
    fflush(stdout);
    poll(p, 2, -1);
    (void)!read(0, line, sizeof line);
}

static int plain_nodelay(int fd)
{
    int one = 1;
    MUST(setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one));
    return fd;
}

static int idle(int port, int n, int rounds, int size)
{
    int *fds = calloc(n, sizeof *fds);
    for (int i = 0; i < n; i++) {
        fds[i] = plain_nodelay(dial(port));
        for (int r = 0; r < rounds; r++)
            exchange(fds[i], i * 1000 + r, size);
    }
    wait_for_line("ready", fds[0]);
    for (int i = 0; i < n; i++)
        exchange(fds[i], i * 7777, 1000);
    wait_for_line("again", fds[0]);
    for (int i = 0; i < n; i++)
        close(fds[i]);
    printf("done\n");
    return 0;
}

static int shorts(int port, int n)
{
    long start = now_ms();
    for (int i = 0; i < n; i++) {
        int fd = dial(port);
        exchange(fd, i, 1 + mix(i) % 1500);
        close(fd);
    }
    printf("done %d connections in %ld ms\n", n, now_ms() - start);
    return 0;
}

static int talk(int port, int rounds)
{
    int fd = plain_nodelay(dial(port));
    for (int i = 0; i < rounds; i++)
        exchange(fd, i + 1000, 1 + mix(i) % 1500);
    wait_for_line("talked", fd);
    MUST(shutdown(fd, SHUT_WR));
    char extra;
    if (recv(fd, &extra, 1, 0) != 0)
        die("no clean end");
    close(fd);
    printf("done\n");
    return 0;
}

static unsigned turns_bytes(char *bytes, int fd, long time)
{
    unsigned len = 1 + mix(time) % 600;
    fill(bytes, mix(fd * 100000 + time), 0, len);
    return len;
}

static int turns(int port, int n, int active, long times)
{
    struct end { int fd; long time; unsigned want, got; } *ends = calloc(n, sizeof *ends), *of;
    int set = MUST(epoll_create1(EPOLL_CLOEXEC)), under_way = 0, next = 0;
    struct epoll_event ready[64];
    char out[2048], in[2048];
    for (int i = 0; i < n; i++) {
        ends[i].fd = plain_nodelay(dial(port));
        struct epoll_event e = { .events = EPOLLIN, .data.ptr = &ends[i] };
        MUST(epoll_ctl(set, EPOLL_CTL_ADD, ends[i].fd, &e));
    }
    /* At first each in turn, so that all of them leave TCP. */
    for (long time = 0, first = n * 20L, all = first + times; time < all || under_way;) {
        for (; time < all && under_way < (time < first ? 1 : active); under_way++) {
            int at = time < first ? time / 20 : next;
            while (ends[at % n].got < ends[at % n].want)
                at++;
            of = &ends[at % n];
            next = at + 1;
            of->time = time++;
            of->got = 0;
            of->want = turns_bytes(out, of->fd, of->time);
            send_all(of->fd, out, of->want);
        }
        int events = MUST(epoll_wait(set, ready, 64, 30000));
        if (events == 0)
            die("%d answers do not come", under_way);
        for (int i = 0; i < events; i++) {
            of = ready[i].data.ptr;
            turns_bytes(out, of->fd, of->time);
            ssize_t got = MUST(recv(of->fd, in, sizeof in, MSG_DONTWAIT));
            if (got == 0 || got > of->want - of->got || memcmp(in, out + of->got, got) != 0)
                die("wrong echo on %d", of->fd);
            of->got += got;
            under_way -= of->got == of->want;
        }
    }
    wait_for_line("talked", ends[0].fd);
    printf("done\n");
    return 0;
}

int main(int argc, char **argv)
{
    if (argc < 3)
        die("usage: many server|idle|short|talk|turns PORT ...");
    int port = atoi(argv[2]), a = argc > 3 ? atoi(argv[3]) : 0, b = argc > 4 ? atoi(argv[4]) : 0;
    const char *life = getenv("SHORTWIRE_TEST_LIFE");
    limit_life(life ? atoi(life) : 900);
    if (strcmp(argv[1], "server") == 0)
        return server(port);
    if (strcmp(argv[1], "idle") == 0)
        return idle(port, a, b, argc > 5 ? atoi(argv[5]) : 16);
    if (strcmp(argv[1], "short") == 0)
        return shorts(port, a);
    if (strcmp(argv[1], "turns") == 0 && argc == 6)
        return turns(port, a, b, atol(argv[5]));
    return talk(port, a);
}
