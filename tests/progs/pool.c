/*
 * pool server PORT WORKERS            workers that answer requests, one connection at a time each, until they are killed
 * pool client PORT CONNS REQUESTS WAY connections one behind the other, after some with many requests
 *
 * A request is its length and seed, and that many bytes of the stream of this seed; the response is the same stream from there on.
 * WAY is what a connection's client does beside that: plain, late (does not wait for connect), half (shuts its end down and reads to
 * the end of the stream), gone (closes behind the last request, without its response), fork (a child makes the requests while the
 * parent has the connection too), dup (the first descriptor is closed), threads (one sends, one receives), mixed (one of these by turns).
 * It says "done" and stays until a line comes.
 */
#include "common.h"
#include <pthread.h>
#include <sys/prctl.h>

enum { FIRST = 40, MOST = 40000 };

struct request {
    uint64_t seed;
    uint32_t len, answer;
};

/* What of a request there is: a client that closes with a response unread resets the connection. */
static size_t read_request(int fd, struct request *r)
{
    size_t got = 0;
    while (got < sizeof *r) {
        ssize_t n = recv(fd, (char *)r + got, sizeof *r - got, 0);
        if (n < 0 && errno == ECONNRESET)
            return 0;
        if (MUST(n) == 0)
            break;
        got += n;
    }
    return got;
}

static void serve(int listener)
{
    static unsigned char buf[MOST];
    for (;;) {
        int fd = answer(listener);
        struct request r;
        size_t got;
        while ((got = read_request(fd, &r)) == sizeof r) {
            recv_all(fd, buf, r.len);
            check(buf, r.seed, 0, r.len, "server");
            fill(buf, r.seed, r.len, r.answer);
            ssize_t n = 0, sent = 0;
            while (sent < r.answer && (n = send(fd, buf + sent, r.answer - sent, MSG_NOSIGNAL)) > 0)
                sent += n;
            /* A client that is gone already. */
            if (n < 0)
                break;
        }
        if (got != 0 && got != sizeof r)
            die("%zu bytes of a request", got);
        close(fd);
    }
}

static uint64_t state = 11;

static struct request next(void)
{
    struct request r = { .seed = next_random(&state) };
    r.len = next_random(&state) % (next_random(&state) % 8 ? 300 : MOST);
    r.answer = 1 + next_random(&state) % (next_random(&state) % 8 ? 300 : MOST - 1);
    return r;
}

static void ask(int fd, struct request r)
{
    static unsigned char buf[sizeof r + MOST];
    memcpy(buf, &r, sizeof r);
    fill(buf + sizeof r, r.seed, 0, r.len);
    send_all(fd, buf, sizeof r + r.len);
}

static void hear(int fd, struct request r)
{
    static unsigned char buf[MOST];
    recv_all(fd, buf, r.answer);
    check(buf, r.seed, r.len, r.answer, "client");
}

struct half {
    int fd, n;
    struct request *all;
};

static void *sender(void *arg)
{
    struct half *h = arg;
    for (int i = 0; i < h->n; i++)
        ask(h->fd, h->all[i]);
    return NULL;
}

static int dial_late(int port)
{
    struct sockaddr_storage ss;
    socklen_t len = address(&ss, port, 0);
    int fd = MUST(socket(ss.ss_family, SOCK_STREAM | SOCK_NONBLOCK, 0));
    if (connect(fd, (struct sockaddr *)&ss, len) < 0 && errno != EINPROGRESS)
        die("connect");
    struct pollfd p = { .fd = fd, .events = POLLOUT };
    MUST(poll(&p, 1, -1));
    MUST(fcntl(fd, F_SETFL, fcntl(fd, F_GETFL) & ~O_NONBLOCK));
    return fd;
}

static void exchange(int fd, int requests)
{
    for (int i = 0; i < requests; i++) {
        struct request r = next();
        ask(fd, r);
        hear(fd, r);
    }
}

static void talk(int port, int requests, const char *way)
{
    int fd = strcmp(way, "late") == 0 ? dial_late(port) : dial(port);
    if (strcmp(way, "half") == 0) {
        exchange(fd, requests - 1);
        struct request r = next();
        ask(fd, r);
        MUST(shutdown(fd, SHUT_WR));
        hear(fd, r);
        char byte;
        if (MUST(recv(fd, &byte, 1, 0)) != 0)
            die("bytes behind the last response");
    } else if (strcmp(way, "gone") == 0) {
        exchange(fd, requests - 1);
        ask(fd, next());
    } else if (strcmp(way, "fork") == 0) {
        exchange(fd, requests / 2);
        pid_t child = MUST(fork());
        if (child == 0) {
            exchange(fd, requests - requests / 2);
            _exit(0);
        }
        int status;
        MUST(waitpid(child, &status, 0));
        if (status != 0)
            die("the child: %#x", status);
        for (int i = 0; i < requests - requests / 2; i++)
            next();
    } else if (strcmp(way, "dup") == 0) {
        int copy = MUST(dup(fd));
        exchange(fd, 1);
        close(fd);
        fd = copy;
        exchange(fd, requests - 1);
    } else if (strcmp(way, "threads") == 0) {
        struct request all[requests];
        for (int i = 0; i < requests; i++)
            all[i] = next();
        struct half h = { fd, requests, all };
        pthread_t t;
        if (pthread_create(&t, NULL, sender, &h) != 0)
            die("a thread");
        for (int i = 0; i < requests; i++)
            hear(fd, all[i]);
        pthread_join(t, NULL);
    } else {
        exchange(fd, requests);
    }
    close(fd);
}

int main(int argc, char **argv)
{
    limit_life(600);
    int port = argc > 2 ? atoi(argv[2]) : 0;
    if (argc == 4 && strcmp(argv[1], "server") == 0) {
        int listener = listen_on(port);
        for (int i = 1; i < atoi(argv[3]); i++)
            if (MUST(fork()) == 0) {
                MUST(prctl(PR_SET_PDEATHSIG, SIGKILL));
                break;
            }
        serve(listener);
    }
    if (argc != 6)
        die("usage: pool server PORT WORKERS, pool client PORT CONNS REQUESTS WAY");
    static const char *const ways[] = { "plain", "late", "half", "gone", "fork", "dup", "threads" };
    int conns = atoi(argv[3]), requests = atoi(argv[4]);
    for (int i = 0; i < 16; i++)
        talk(port, FIRST, "plain");
    for (int i = 0; i < conns; i++)
        talk(port, requests, strcmp(argv[5], "mixed") == 0 ? ways[i % 7] : argv[5]);
    printf("done\n");
    fflush(stdout);
    getchar();
    return 0;
}
