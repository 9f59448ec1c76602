/*
 * transfer server|client PORT DRIVER OP C2S S2C SEED [CONNECTIONS] [survive]
 *
 * Moves C2S bytes to the server and S2C bytes to the client on each connection, one connection after the other,
 * and checks every byte. "survive" means the peer may die at any moment: everything until then must still be right.
 */
#include "transfer_ops.h"
#include <pthread.h>
#include <sys/epoll.h>
#include <sys/select.h>

static int survive, is_server;

static size_t chunk(uint64_t *random, uint64_t left)
{
    static const size_t scale[4] = { 64, 2048, 16384, CHUNK };
    uint64_t r = next_random(random);
    size_t n = 1 + (r >> 8) % scale[r % 4];
    return n < left ? n : left;
}

static int peer_gone(void) { return errno == ECONNRESET || errno == EPIPE; }

static void gone(const struct conn *c, const char *how)
{
    if (!survive) {
        errno = 0;
        die("%s at tx %llu of %llu, rx %llu of %llu", how, (unsigned long long)c->tx, (unsigned long long)c->tx_total,
            (unsigned long long)c->rx, (unsigned long long)c->rx_total);
    }
    printf("peer gone: %s\n", how);
    fflush(NULL);
    _exit(0);
}

/* 1: go on, 0: would block. */
static int receive(struct conn *c, move_fn rx, size_t max)
{
    ssize_t n = rx(c, max);
    if (n > 0)
        return 1;
    if (n == 0)
        gone(c, "end of stream");
    if (errno == EAGAIN)
        return 0;
    if (errno == EINTR)
        return 1;
    if (peer_gone())
        gone(c, strerror(errno));
    die("receive at offset %llu", (unsigned long long)c->rx);
    return 0;
}

static int transmit(struct conn *c, move_fn tx, size_t max)
{
    ssize_t n = tx(c, max);
    if (n >= 0)
        return 1;
    if (errno == EAGAIN)
        return 0;
    if (errno == EINTR)
        return 1;
    if (peer_gone())
        gone(c, strerror(errno));
    die("send at offset %llu", (unsigned long long)c->tx);
    return 0;
}

static void finish_sending(struct conn *c) { MUST(shutdown(c->fd, SHUT_WR)); }

static void expect_end(struct conn *c)
{
    char extra[16];
    ssize_t n;
    do {
        n = recv(c->fd, extra, sizeof extra, 0);
        if (n < 0 && errno == EAGAIN) {
            struct pollfd p = { .fd = c->fd, .events = POLLIN };
            poll(&p, 1, -1);
        }
    } while (n < 0 && (errno == EINTR || errno == EAGAIN));
    if (n != 0)
        die("%zd bytes more than were sent", n);
}

/* Blocking calls in one thread cannot deadlock when both sides agree on whose turn it is and how much comes. */
static void lockstep(struct conn *c, const struct op *op, uint64_t seed)
{
    int one = 1; /* Nagle's algorithm and delayed acknowledgements would make it a test of the kernel's timers */
    MUST(setsockopt(c->fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one));
    uint64_t plan = mix(seed), c2s = is_server ? c->rx_total : c->tx_total, s2c = is_server ? c->tx_total : c->rx_total;
    while (c2s || s2c) {
        for (int to_server = 1; to_server >= 0; to_server--) {
            uint64_t *left = to_server ? &c2s : &s2c;
            size_t n = chunk(&plan, *left);
            *left -= n;
            if (to_server != is_server) {
                for (uint64_t end = c->tx + n; c->tx < end;)
                    transmit(c, op->tx, end - c->tx);
                uncork(c);
            } else {
                for (uint64_t end = c->rx + n; c->rx < end;)
                    receive(c, op->rx, end - c->rx);
            }
        }
    }
}

struct writer { struct conn *c; const struct op *op; };

static void *write_all(void *arg)
{
    struct writer *w = arg;
    while (w->c->tx < w->c->tx_total)
        transmit(w->c, w->op->tx, chunk(&w->c->tx_random, w->c->tx_total - w->c->tx));
    uncork(w->c);
    finish_sending(w->c);
    return NULL;
}

static void two_threads(struct conn *c, const struct op *op)
{
    pthread_t t;
    struct writer w = { c, op };
    if (pthread_create(&t, NULL, write_all, &w))
        die("pthread_create");
    while (c->rx < c->rx_total)
        receive(c, op->rx, chunk(&c->rx_random, c->rx_total - c->rx));
    pthread_join(t, NULL);
}

static int wait_poll(struct conn *c, int events)
{
    struct pollfd p = { .fd = c->fd, .events = events };
    while (poll(&p, 1, -1) < 0)
        if (errno != EINTR)
            die("poll");
    return p.revents;
}

static int wait_select(struct conn *c, int events)
{
    fd_set in, out;
    FD_ZERO(&in);
    FD_ZERO(&out);
    if (events & POLLIN)
        FD_SET(c->fd, &in);
    if (events & POLLOUT)
        FD_SET(c->fd, &out);
    MUST(select(c->fd + 1, &in, &out, NULL, NULL));
    return (FD_ISSET(c->fd, &in) ? POLLIN : 0) | (FD_ISSET(c->fd, &out) ? POLLOUT : 0);
}

static int level_set = -1;

static int wait_epoll(struct conn *c, int events)
{
    struct epoll_event e = { .events = ((events & POLLIN) ? EPOLLIN : 0) | ((events & POLLOUT) ? EPOLLOUT : 0) };
    if (level_set < 0) {
        level_set = MUST(epoll_create1(EPOLL_CLOEXEC));
        MUST(epoll_ctl(level_set, EPOLL_CTL_ADD, c->fd, &e));
    }
    MUST(epoll_ctl(level_set, EPOLL_CTL_MOD, c->fd, &e));
    if (MUST(epoll_wait(level_set, &e, 1, -1)) != 1)
        die("epoll_wait without a timeout returned nothing");
    return ((e.events & EPOLLIN) ? POLLIN : 0) | ((e.events & EPOLLOUT) ? POLLOUT : 0) | (e.events & (EPOLLHUP | EPOLLERR));
}

static void level(struct conn *c, const struct op *op, int (*wait)(struct conn *, int))
{
    int shut = 0;
    nonblocking(c->fd);
    while (!shut || c->rx < c->rx_total) {
        if (!shut && c->tx == c->tx_total) {
            uncork(c);
            finish_sending(c);
            shut = 1;
            continue;
        }
        int now = wait(c, (c->rx < c->rx_total ? POLLIN : 0) | (shut ? 0 : POLLOUT));
        if (now & (POLLIN | POLLHUP | POLLERR) && c->rx < c->rx_total)
            receive(c, op->rx, chunk(&c->rx_random, c->rx_total - c->rx));
        if (now & POLLOUT && c->tx < c->tx_total)
            transmit(c, op->tx, chunk(&c->tx_random, c->tx_total - c->tx));
    }
    if (level_set >= 0)
        close(level_set);
    level_set = -1;
}

static void edge(struct conn *c, const struct op *op)
{
    int set = MUST(epoll_create1(EPOLL_CLOEXEC)), readable = 0, writable = 0, shut = 0;
    struct epoll_event e = { .events = EPOLLIN | EPOLLOUT | EPOLLRDHUP | EPOLLET };
    nonblocking(c->fd);
    MUST(epoll_ctl(set, EPOLL_CTL_ADD, c->fd, &e));
    for (;;) {
        if (!shut && c->tx == c->tx_total) {
            uncork(c);
            finish_sending(c);
            shut = 1;
        }
        if (shut && c->rx == c->rx_total)
            break;
        readable = readable && c->rx < c->rx_total;
        writable = writable && c->tx < c->tx_total;
        if (!readable && !writable) {
            int n = epoll_wait(set, &e, 1, -1);
            if (n < 0 && errno == EINTR)
                continue;
            if (MUST(n) != 1)
                die("epoll_wait without a timeout returned nothing");
            readable |= (e.events & (EPOLLIN | EPOLLHUP | EPOLLERR | EPOLLRDHUP)) != 0;
            writable |= (e.events & (EPOLLOUT | EPOLLHUP | EPOLLERR)) != 0;
            continue;
        }
        if (readable)
            readable = receive(c, op->rx, chunk(&c->rx_random, c->rx_total - c->rx));
        if (writable)
            writable = transmit(c, op->tx, chunk(&c->tx_random, c->tx_total - c->tx));
    }
    close(set);
}

static void transfer(int fd, const char *driver, const struct op *op, uint64_t c2s, uint64_t s2c, uint64_t seed)
{
    struct conn c = { .fd = fd, .file = -1, .tx_total = is_server ? s2c : c2s, .rx_total = is_server ? c2s : s2c,
                      .tx_seed = mix(seed * 2 + is_server), .rx_seed = mix(seed * 2 + !is_server),
                      .tx_random = mix(seed * 7 + is_server), .rx_random = mix(seed * 11 + is_server) };
    c.tx_buf = malloc(CHUNK);
    c.rx_buf = malloc(CHUNK);
    MUST(pipe(c.tx_pipe));
    MUST(pipe(c.rx_pipe));
    if (strcmp(driver, "lockstep") == 0) {
        lockstep(&c, op, seed);
        finish_sending(&c);
    } else if (strcmp(driver, "threads") == 0)
        two_threads(&c, op);
    else if (strcmp(driver, "poll") == 0)
        level(&c, op, wait_poll);
    else if (strcmp(driver, "select") == 0)
        level(&c, op, wait_select);
    else if (strcmp(driver, "epoll") == 0)
        level(&c, op, wait_epoll);
    else if (strcmp(driver, "edge") == 0)
        edge(&c, op);
    else
        die("unknown driver %s", driver);
    expect_end(&c);
    printf("tx %llu rx %llu ok\n", (unsigned long long)c.tx, (unsigned long long)c.rx);
    fflush(stdout);
    close(fd);
    close(c.file);
    for (int i = 0; i < 2; i++) {
        close(c.tx_pipe[i]);
        close(c.rx_pipe[i]);
    }
    free(c.tx_buf);
    free(c.rx_buf);
}

int main(int argc, char **argv)
{
    if (argc < 8)
        die("usage: transfer server|client PORT DRIVER OP C2S S2C SEED [CONNECTIONS] [survive]");
    is_server = strcmp(argv[1], "server") == 0;
    int port = atoi(argv[2]), connections = argc > 8 ? atoi(argv[8]) : 1;
    const struct op *op = NULL;
    for (size_t i = 0; i < sizeof ops / sizeof *ops; i++)
        if (strcmp(ops[i].name, argv[4]) == 0)
            op = &ops[i];
    if (!op)
        die("unknown operation %s", argv[4]);
    survive = argc > 9;
    signal(SIGPIPE, SIG_IGN);
    limit_life(900);
    int listener = is_server ? listen_on(port) : -1;
    if (is_server) {
        printf("listening\n");
        fflush(stdout);
    }
    for (int i = 0; i < connections; i++) {
        int fd = is_server ? answer(listener) : dial(port);
        printf("connected\n");
        fflush(stdout);
        transfer(fd, argv[3], op, strtoull(argv[5], NULL, 10), strtoull(argv[6], NULL, 10), strtoull(argv[7], NULL, 10) + i);
    }
    return 0;
}
