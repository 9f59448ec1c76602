/* epoll: level, edge, oneshot, several sets, nested sets, other kinds of descriptors in the same wait. */
#include "frame.h"
#include <sys/eventfd.h>
#include <sys/timerfd.h>

CASE(sets_level)
{
    int fd = fresh(), set = set_with(fd, EPOLLIN);
    say("idle %s", wait_for(set, 0));
    tell('w', 10);
    say("data %s", wait_for(set, 1000));
    say("again %s", wait_for(set, 0));
    say("recv %s", result(take(fd, 4, 0)));
    say("rest %s", wait_for(set, 0));
    drain(fd);
    say("empty %s", wait_for(set, 0));
    long start = now_ms();
    say("limit %s", wait_for(set, 60));
    say("kept %d", now_ms() - start >= 59);
    when_asleep('w', 3, 0);
    say("woken %s", wait_for(set, -1));
    drain(fd);
    struct epoll_event e = { .events = EPOLLIN | EPOLLOUT };
    MUST(epoll_ctl(set, EPOLL_CTL_MOD, fd, &e));
    say("out %s", wait_for(set, 0));
    e.events = 0;
    MUST(epoll_ctl(set, EPOLL_CTL_MOD, fd, &e));
    tell('w', 1);
    say("asked for nothing %s", wait_for(set, 0));
    MUST(epoll_ctl(set, EPOLL_CTL_DEL, fd, NULL));
    say("deleted %s", wait_for(set, 0));
    close(set);
    close(fd);
}

CASE(sets_edge)
{
    int fd = fresh(), set = set_with(fd, EPOLLIN | EPOLLET);
    say("idle %s", wait_for(set, 0));
    tell('w', 10);
    say("edge %s", wait_for(set, 1000));
    say("only once %s", wait_for(set, 0));
    say("recv %s", result(take(fd, 4, 0)));
    say("still %s", wait_for(set, 0));
    tell('w', 10);
    say("new data, new edge %s", wait_for(set, 1000));
    say("only once %s", wait_for(set, 0));
    drain(fd);
    say("drained %s", wait_for(set, 0));
    when_asleep('w', 3, 0);
    say("woken %s", wait_for(set, -1));
    struct epoll_event e = { .events = EPOLLIN | EPOLLET };
    MUST(epoll_ctl(set, EPOLL_CTL_MOD, fd, &e));
    say("a change arms again %s", wait_for(set, 0));
    say("once %s", wait_for(set, 0));
    drain(fd);
    MUST(epoll_ctl(set, EPOLL_CTL_MOD, fd, &e));
    say("not when empty %s", wait_for(set, 0));
    for (int i = 0; i < 3; i++) {
        tell('w', 5);
        say("round %d %s", i, wait_for(set, 1000));
        drain(fd);
    }
    tell('s', SHUT_WR);
    say("end %s", wait_for(set, 1000));
    say("once %s", wait_for(set, 0));
    close(set);
    close(fd);
}

CASE(sets_edge_out)
{
    int fd = fresh(), set = set_with(fd, EPOLLIN | EPOLLOUT | EPOLLET);
    nonblocking(fd);
    say("writable at first %s", wait_for(set, 0));
    say("once %s", wait_for(set, 0));
    tell('w', 3);
    say("data shows both %s", wait_for(set, 1000));
    drain(fd);
    long total = fill_up(fd);
    say("full %s", result(put(fd, 50000, 0)));
    say("no event while full %s", wait_for(set, 30));
    when_asleep('r', total, 0);
    say("writable after the peer read %s", wait_for(set, 5000));
    say("send %d", put(fd, 1000, 0) > 0);
    ask('r', 1000, 0);
    close(set);
    close(fd);
}

CASE(sets_oneshot)
{
    int fd = fresh(), set = set_with(fd, EPOLLIN | EPOLLONESHOT);
    struct epoll_event e = { .events = EPOLLIN | EPOLLONESHOT };
    tell('w', 5);
    say("first %s", wait_for(set, 1000));
    say("then off %s", wait_for(set, 0));
    tell('w', 5);
    say("new data, still off %s", wait_for(set, 0));
    MUST(epoll_ctl(set, EPOLL_CTL_MOD, fd, &e));
    say("armed %s", wait_for(set, 1000));
    drain(fd);
    MUST(epoll_ctl(set, EPOLL_CTL_MOD, fd, &e));
    say("armed and empty %s", wait_for(set, 0));
    when_asleep('w', 2, 0);
    say("woken %s", wait_for(set, -1));
    say("off %s", wait_for(set, 0));
    close(set);
    close(fd);
}

CASE(sets_several_sets)
{
    int fd = fresh(), one = set_with(fd, EPOLLIN), two = set_with(fd, EPOLLIN | EPOLLET);
    int copy = dup(fd), third = set_with(copy, EPOLLIN);
    tell('w', 5);
    say("level %s", wait_for(one, 1000));
    say("edge %s", wait_for(two, 1000));
    say("through a dup %s", wait_for(third, 1000));
    say("recv %s", result(take(fd, 100, 0)));
    say("level %s, edge %s, dup %s", wait_for(one, 0), wait_for(two, 0), wait_for(third, 0));
    struct epoll_event e = { .events = EPOLLIN };
    say("add twice %s", result(epoll_ctl(one, EPOLL_CTL_ADD, fd, &e)));
    MUST(epoll_ctl(one, EPOLL_CTL_ADD, copy, &e));
    tell('w', 5);
    say("same set, both numbers %c", wait_for(one, 1000)[0]);
    close(fd);
    say("number closed, dup open: still %c", wait_for(one, 0)[0]);
    say("recv %s", result(take(copy, 100, 0)));
    say("ctl on a closed number %s", result(epoll_ctl(one, EPOLL_CTL_MOD, fd, &e)));
    MUST(epoll_ctl(two, EPOLL_CTL_ADD, copy, &e));
    MUST(epoll_ctl(two, EPOLL_CTL_DEL, copy, NULL));
    say("mod of a missing one %s", result(epoll_ctl(two, EPOLL_CTL_MOD, copy, &e)));
    say("del of a missing one %s", result(epoll_ctl(two, EPOLL_CTL_DEL, copy, NULL)));
    close(copy);
    say("all closed %s", wait_for(one, 0));
    close(one);
    close(two);
    close(third);
}

CASE(sets_nested)
{
    int fd = fresh(), inner = set_with(fd, EPOLLIN), outer = set_with(inner, EPOLLIN);
    struct pollfd p = { .fd = inner, .events = POLLIN };
    fd_set in;
    say("idle: outer %s, poll of the inner %d", wait_for(outer, 0), poll(&p, 1, 0));
    tell('w', 5);
    say("data: outer %s", wait_for(outer, 1000));
    say("poll of the inner %d", poll(&p, 1, 1000));
    FD_ZERO(&in);
    FD_SET(inner, &in);
    say("select of the inner %d", select(inner + 1, &in, NULL, NULL, NULL));
    say("inner %s", wait_for(inner, 0));
    drain(fd);
    say("drained: outer %s", wait_for(outer, 0));
    when_asleep('w', 2, 0);
    say("woken through two %s", wait_for(outer, -1));
    drain(fd);
    when_asleep('w', 2, 0);
    p.revents = 0;
    say("poll of the inner woken %d", poll(&p, 1, -1));
    close(outer);
    close(inner);
    close(fd);
}

/* Which of the descriptors are reported, over a few calls: one call may report a part, but none may starve. */
static const char *reported(int set, int at_most)
{
    static char text[8];
    struct epoll_event got[8];
    int seen[4] = { 0 }, len = 0;
    /* A set may answer for what it has at hand, and ask the kernel for the rest every few microseconds. */
    for (int call = 0; call < 6; call++, usleep(100))
        for (int i = 0, n = epoll_wait(set, got, at_most, 0); i < n; i++)
            seen[got[i].data.u32 & 3] = 1;
    for (int i = 0; i < 4; i++)
        if (seen[i])
            text[len++] = "CEPT"[i];
    text[len] = 0;
    return text;
}

CASE(sets_mixed_kinds)
{
    int fd = fresh(), set = MUST(epoll_create1(0)), ev = MUST(eventfd(0, EFD_NONBLOCK)), ends[2];
    int timer = MUST(timerfd_create(CLOCK_MONOTONIC, TFD_NONBLOCK));
    struct itimerspec soon = { { 0, 0 }, { 0, 20000000 } };
    uint64_t v = 1;
    MUST(pipe(ends));
    int all[4] = { fd, ev, ends[0], timer };
    for (int i = 0; i < 4; i++) {
        struct epoll_event e = { .events = EPOLLIN, .data.u32 = i };
        MUST(epoll_ctl(set, EPOLL_CTL_ADD, all[i], &e));
    }
    (void)!write(ev, &v, 8);
    tell('w', 3);
    say("eventfd and the connection: %s", reported(set, 8));
    (void)!write(ends[1], "x", 1);
    say("and a pipe: %s", reported(set, 8));
    MUST(timerfd_settime(timer, 0, &soon, NULL));
    MUST(poll(&(struct pollfd){ .fd = timer, .events = POLLIN }, 1, 5000));
    say("and a timer: %s", reported(set, 8));
    say("one at a time: %s", reported(set, 1));
    (void)!read(ev, &v, 8);
    (void)!read(timer, &v, 8);
    (void)!read(ends[0], &v, 1);
    say("only the connection: %s", reported(set, 8));
    drain(fd);
    say("nothing: %s", reported(set, 8));
    struct pollfd p[3] = { { .fd = fd, .events = POLLIN }, { .fd = ev, .events = POLLIN }, { .fd = -1, .events = POLLIN } };
    MUST(timerfd_settime(timer, 0, &soon, NULL));
    say("timer wakes the set %c", wait_for(set, -1)[0]);
    say("poll of idle ones %d", poll(p, 3, 20));
    tell('w', 1);
    int n = poll(p, 3, 1000);
    say("poll %d %x %x %x", n, p[0].revents, p[1].revents, p[2].revents);
    drain(fd);
    close(set);
    close(ev);
    close(timer);
    close(ends[0]);
    close(ends[1]);
    close(fd);
}

static void *wait_in_thread(void *arg)
{
    static char text[60];
    snprintf(text, sizeof text, "%s", wait_for(*(int *)arg, 5000));
    return text;
}

CASE(sets_threads)
{
    int fd = fresh(), set = MUST(epoll_create1(0));
    pthread_t t;
    void *text;
    struct epoll_event e = { .events = EPOLLIN, .data.u64 = 0x1234567890abcdefull };
    tell('w', 2);
    pthread_create(&t, NULL, wait_in_thread, &set);
    nap(40);
    MUST(epoll_ctl(set, EPOLL_CTL_ADD, fd, &e));
    pthread_join(t, &text);
    say("ready when added %s", (char *)text);
    drain(fd);
    pthread_create(&t, NULL, wait_in_thread, &set);
    nap(40);
    tell('w', 2);
    pthread_join(t, &text);
    say("woken by data %s", (char *)text);
    drain(fd);
    e.events = EPOLLIN | EPOLLOUT;
    MUST(epoll_ctl(set, EPOLL_CTL_MOD, fd, &e));
    say("writable now %s", wait_for(set, 1000));
    close(set);
    close(fd);
}
