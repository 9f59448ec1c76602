/* Steps of `wander` in which somebody waits: for the other side, for a time limit, for room. */
#ifndef WANDER_WAITS_H
#define WANDER_WAITS_H
#include "wander_peer.h"

/* A peer that has forked holds the connection as well as its child, which does what is to be done. */
static pid_t peer, child_of_peer;
/* That peer has been killed: its child's close is like a death, because it does not know to be the last. */
static int bereft;

static int alone(void) { return !child_of_peer && !bereft; }

/* Whether something can come yet, and this side may look at it. */
static int can_hear(void) { return !board->shut_rd[0] && !board->shut_wr[1] && !board->gone[1]; }
static int can_say(void) { return !board->shut_wr[0] && !board->shut_rd[1] && !board->gone[1]; }

static void read_all(void)
{
    settle();
    blocking();
    recv_stream(unread(0), sizeof scratch);
}

static int edge_tells(int set)
{
    struct epoll_event e;
    for (long end = now_ms() + PATIENCE; now_ms() < end;)
        if (epoll_wait(set, &e, 1, 200) == 1 && e.events & EPOLLIN)
            return 1;
    return 0;
}

static void *reader(void *unused)
{
    (void)unused;
    ssize_t n = recv(fd, scratch, sizeof scratch, 0);
    took_stream(scratch, n, 0);
    note("a thread receives %s", result(n));
    return NULL;
}

/* The peer acts, and a call that waits for it returns. */
static void step_wait(void)
{
    int what = pick(3) ? SENDS : pick(alone() ? ACTS : CLOSES), way = pick(7), n = 0, hard = what == RESETS;
    struct epoll_event e = { .events = EPOLLIN | EPOLLRDHUP | EPOLLONESHOT, .data.u64 = 7 };
    struct pollfd p = { .fd = fd, .events = POLLIN | POLLRDHUP };
    struct timeval tv = { PATIENCE / 1000, 0 };
    pthread_t t;
    fd_set in;
    if (!can_hear())
        return;
    ask('S', 0);
    read_all();
    note("the peer will %s", (char *[]){ "send", "shut", "close", "reset" }[what]);
    MUST(limit(SO_RCVTIMEO, PATIENCE));
    if (way == 1 && pthread_create(&t, NULL, reader, NULL))
        die("pthread_create");
    unsigned closed_with_unread = what == CLOSES && unread(1) > 0;
    tell('A', pick(1 << 20) * ACTS + what);
    switch (way) {
    case 0: reader(NULL); break;
    case 1: pthread_join(t, NULL); break;
    case 2:
        n = poll(&p, 1, PATIENCE);
        note("poll waits: %s %x", result(n), hard || closed_with_unread ? p.revents & POLLIN : p.revents);
        break;
    case 3:
        n = epoll_wait(level, &e, 1, PATIENCE);
        note("level waits: %s %x", result(n), hard || closed_with_unread ? e.events & POLLIN : e.events);
        break;
    case 4: note("edge %s", edge_tells(edge) ? "tells" : "says nothing"); break;
    case 5:
        MUST(epoll_ctl(once, EPOLL_CTL_MOD, fd, &e));
        n = epoll_wait(once, &e, 1, PATIENCE);
        note("oneshot waits: %s %x", result(n), hard || closed_with_unread ? e.events & POLLIN : e.events);
        break;
    case 6:
        FD_ZERO(&in);
        FD_SET(fd, &in);
        note("select waits: %s", result(select(fd + 1, &in, NULL, NULL, &tv)));
        break;
    }
    answered();
    settle();
    MUST(limit(SO_RCVTIMEO, BRIEF));
}

static const char *since(struct moment began)
{
    long ms = ms_since(began);
    return ms < BRIEF - 5 ? "too soon" : ms > PATIENCE ? "too late" : "in time";
}

/* Time limits of receives, and a low-water mark. */
static void step_limits(void)
{
    int mark = 2 + pick(500), one = 1, part = 1 + pick(mark - 1);
    if (!can_hear())
        return;
    read_all();
    MUST(limit(SO_RCVTIMEO, BRIEF));
    struct moment began = moment();
    ssize_t n = recv(fd, scratch, 100, pick(2) ? MSG_WAITALL : 0);
    note("a limit runs out: %s %s", result(n), since(began));
    MUST(setsockopt(fd, SOL_SOCKET, SO_RCVLOWAT, &mark, sizeof mark));
    ask('n', part);
    settle();
    struct pollfd p = { .fd = fd, .events = POLLIN };
    note("poll below the mark = %s", result(poll(&p, 1, 0)));
    began = moment();
    n = recv(fd, scratch, 2000, 0);
    took_stream(scratch, n, 0);
    note("receive below it: %s %s", result(n), since(began));
    ask('n', mark);
    settle();
    note("poll at the mark = %s", result(poll(&p, 1, 0)));
    n = recv(fd, scratch, 2000, 0);
    took_stream(scratch, n, 0);
    note("receive at it: %s", result(n));
    MUST(setsockopt(fd, SOL_SOCKET, SO_RCVLOWAT, &one, sizeof one));
}

/* Several threads at once: both directions busy, or one that waits while another ends the connection. */
static void step_crowd(void)
{
    pthread_t t;
    if (!can_hear() || !can_say())
        return;
    ask('d', 0);
    read_all();
    if (pick(4)) {
        int total = 1 + pick(pick(2) ? 400000 : 20000);
        tell('T', total);
        both_ways(total);
        answered();
        note("%d bytes each way", total);
        return;
    }
    MUST(limit(SO_RCVTIMEO, PATIENCE));
    if (pthread_create(&t, NULL, reader, NULL))
        die("pthread_create");
    nap(pick(4));
    int how = 2 * pick(2);
    int r = shutdown(fd, how ? SHUT_RDWR : SHUT_RD);
    pthread_join(t, NULL);
    note("shut under it: %d %s", how, result(r));
    board->shut_rd[0] = 1;
    board->shut_wr[0] |= how > 0;
    MUST(limit(SO_RCVTIMEO, BRIEF));
}

/* Sends until there is no room any more, with and without waiting; then the peer reads all of it. */
static void step_flood(void)
{
    uint64_t next = mix(luck);
    int ample = 1 << 20, total = 0, size = 4096 << pick(8), flags = MSG_NOSIGNAL | (pick(2) ? MSG_DONTWAIT : 0);
    ssize_t n;
    if (!can_say() || !can_hear())
        return;
    if (pick(2))
        MUST(setsockopt(fd, SOL_SOCKET, SO_SNDBUF, &size, sizeof size));
    ask('d', 0);
    blocking();
    MUST(limit(SO_SNDTIMEO, BRIEF));
    do {
        size_t len = 1 + pick(sizeof scratch);
        put_stream(scratch, len);
        n = send(fd, scratch, len, flags);
        if (n > 0)
            board->sent[0] += n, total += n;
    } while (n > 0 && total < 100 << 20);
    note("no room: %s", result(n));
    MUST(limit(SO_SNDTIMEO, 0));
    /* Or a later send might find no room in the kernel where a ring has some. */
    MUST(setsockopt(fd, SOL_SOCKET, SO_SNDBUF, &ample, sizeof ample));
    ask('f', total);
    struct pollfd p = { .fd = fd, .events = POLLOUT };
    int r = poll(&p, 1, PATIENCE);
    note("room again: %s %x", result(r), p.revents);
    /* How many sends that took is the kernel's affair. */
    luck = next;
}
#endif
