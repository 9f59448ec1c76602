/*
 * bells serve PORT HOW            answers requests of 64 bytes on any number of connections, until SIGTERM
 * bells ask PORT HOW N            requests on N connections, one under way on each, until SIGTERM
 * bells drip PORT N               one way: 64 bytes on each of N connections in turn, leaving the processor after each
 * bells pour PORT                 one way: as much as goes, never asleep: a full socket is tried again
 * bells slow PORT                 one way: 30000 sends at once, from then on one in five milliseconds
 * bells sip PORT HOW              reads what drip, pour and slow send, and answers nothing
 * bells late PORT HOW             the same, a second late
 * bells deaf PORT                 accepts one connection, writes to it without end and reads nothing
 * bells gulp PORT                 says something to a deaf server, then reads without end
 * HOW: epoll, edge, poll, select, block (one thread for each connection)
 *
 * All on processor 0, so that every wait sleeps and every sleep is rung.
 */
#include "common.h"
#include <pthread.h>
#include <sched.h>
#include <sys/epoll.h>
#include <sys/select.h>

enum { SIZE = 64, MOST = 600 };

static struct end {
    int fd;
    size_t got;
} ends[MOST];
static int count, listener = -1, set = -1;
static const char *how;
static int answers;

static int is(const char *name) { return strcmp(how, name) == 0; }

/* What has come on one connection; false at its end. An edge-triggered reader must read until there is nothing. */
static int take(struct end *e, int again)
{
    char buf[SIZE];
    do {
        ssize_t n = recv(e->fd, buf, answers ? SIZE - e->got : SIZE, 0);
        if (n < 0 && (errno == EAGAIN || errno == EINTR))
            return 1;
        if (n <= 0)
            return 0;
        e->got += n;
        if (answers && e->got == SIZE) {
            e->got = 0;
            send_all(e->fd, buf, SIZE);
        }
    } while (again);
    return 1;
}

static void *alone(void *end)
{
    while (take(end, 0))
        ;
    return NULL;
}

static void add(int fd)
{
    int one = 1;
    if (count == MOST)
        die("too many connections");
    struct end *e = &ends[count++];
    *e = (struct end){ .fd = fd };
    MUST(setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one));
    if (is("block")) {
        pthread_t t;
        pthread_create(&t, NULL, alone, e);
        return;
    }
    nonblocking(fd);
    if (set >= 0) {
        struct epoll_event ev = { .events = EPOLLIN | (is("edge") ? EPOLLET : 0), .data.u32 = count };
        MUST(epoll_ctl(set, EPOLL_CTL_ADD, fd, &ev));
    }
}

static void ready(int which)
{
    if (which == 0)
        add(MUST(accept(listener, NULL, NULL)));
    else if (!take(&ends[which - 1], is("edge")))
        exit(0);
}

static void serve(void)
{
    for (;;) {
        if (is("block")) {
            if (listener < 0)
                pause();
            add(MUST(accept(listener, NULL, NULL)));
        } else if (set >= 0) {
            struct epoll_event ev[64];
            /* A stop and its end interrupt it, as signal(7) says, and nothing else here. */
            int n = epoll_wait(set, ev, 64, -1);
            if (n < 0 && errno == EINTR)
                continue;
            MUST(n);
            for (int i = 0; i < n; i++)
                ready(ev[i].data.u32);
        } else if (is("poll")) {
            struct pollfd p[MOST + 1] = { { .fd = listener, .events = POLLIN } };
            int n = count;
            for (int i = 0; i < n; i++)
                p[i + 1] = (struct pollfd){ .fd = ends[i].fd, .events = POLLIN };
            MUST(poll(p, n + 1, -1));
            for (int i = 0; i <= n; i++)
                if (p[i].revents)
                    ready(i);
        } else {
            fd_set in;
            int n = count, high = listener;
            FD_ZERO(&in);
            if (listener >= 0)
                FD_SET(listener, &in);
            for (int i = 0; i < n; i++) {
                FD_SET(ends[i].fd, &in);
                high = ends[i].fd > high ? ends[i].fd : high;
            }
            MUST(select(high + 1, &in, NULL, NULL, NULL));
            for (int i = 0; i <= n; i++) {
                int fd = i ? ends[i - 1].fd : listener;
                if (fd >= 0 && FD_ISSET(fd, &in))
                    ready(i);
            }
        }
    }
}

static void open_set(void)
{
    if (is("epoll") || is("edge"))
        set = MUST(epoll_create1(0));
}

static void send_slowly(int port)
{
    int fd = dial(port);
    nonblocking(fd);
    for (int i = 0;; i++) {
        if (send(fd, "", 1, MSG_NOSIGNAL) < 0 && errno != EAGAIN)
            die("send");
        if (i >= 30000)
            usleep(5000);
    }
}

static void send_one_way(int port, int n, int pour)
{
    char buf[SIZE] = "";
    for (int i = 0; i < n; i++) {
        ends[i].fd = dial(port);
        nonblocking(ends[i].fd);
    }
    for (int i = 0;; i = (i + 1) % n) {
        ssize_t sent = send(ends[i].fd, buf, SIZE, MSG_NOSIGNAL);
        if (sent < 0 && errno != EAGAIN)
            die("send");
        if (!pour || sent < 0)
            sched_yield();
    }
}

int main(int argc, char **argv)
{
    cpu_set_t first;
    if (argc < 3)
        die("usage: bells serve|ask|drip|pour|slow|sip|late|deaf|gulp PORT ...");
    limit_life(900);
    MUST(sched_getaffinity(0, sizeof first, &first));
    for (int cpu = CPU_SETSIZE - 1, more = CPU_COUNT(&first) - 1; more > 0; cpu--)
        if (CPU_ISSET(cpu, &first)) {
            CPU_CLR(cpu, &first);
            more--;
        }
    MUST(sched_setaffinity(0, sizeof first, &first));
    const char *what = argv[1];
    int port = atoi(argv[2]), n = argc > 3 ? atoi(argv[argc - 1]) : 1;
    char buf[4096] = "";
    how = argc > 3 ? argv[3] : "block";
    answers = strcmp(what, "sip") != 0 && strcmp(what, "late") != 0;
    if (strcmp(what, "slow") == 0)
        send_slowly(port);
    if (strcmp(what, "drip") == 0 || strcmp(what, "pour") == 0)
        send_one_way(port, strcmp(what, "drip") == 0 ? n : 1, strcmp(what, "pour") == 0);
    if (strcmp(what, "deaf") == 0) {
        int fd = answer(listen_on(port));
        for (;;)
            send_all(fd, buf, sizeof buf);
    }
    if (strcmp(what, "gulp") == 0) {
        int fd = dial(port);
        send_all(fd, buf, 100);
        while (recv(fd, buf, SIZE, 0) > 0)
            ;
        return 0;
    }
    open_set();
    if (strcmp(what, "ask") == 0) {
        for (int i = 0; i < n; i++) {
            int fd = dial(port);
            send_all(fd, buf, SIZE);
            add(fd);
        }
        serve();
    }
    listener = listen_on(port);
    if (strcmp(what, "late") == 0)
        sleep(1);
    if (set >= 0) {
        struct epoll_event ev = { .events = EPOLLIN, .data.u32 = 0 };
        MUST(epoll_ctl(set, EPOLL_CTL_ADD, listener, &ev));
    }
    serve();
}
