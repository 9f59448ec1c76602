/* epoll: the calls' own rules, and what each kind of registration tells. */
#include "frame.h"

/* Wrong arguments are what some cases are about. */
#pragma GCC diagnostic ignored "-Wnonnull"
#pragma GCC diagnostic ignored "-Wstringop-overflow"

#define E(ev) (&(struct epoll_event){ .events = ev, .data.u64 = 0x1234567890abcdefull })

CASE(epoll_ctl_errors)
{
    int fd = fresh(), set = MUST(epoll_create1(0)), file = MUST(open("/dev/null", O_RDONLY));
    R(epoll_ctl(set, EPOLL_CTL_MOD, fd, E(EPOLLIN)));
    R(epoll_ctl(set, EPOLL_CTL_DEL, fd, NULL));
    R(epoll_ctl(set, EPOLL_CTL_ADD, fd, E(EPOLLIN)));
    R(epoll_ctl(set, EPOLL_CTL_ADD, fd, E(EPOLLIN)));
    R(epoll_ctl(set, 77, fd, E(EPOLLIN)));
    R(epoll_ctl(set, EPOLL_CTL_ADD, set, E(EPOLLIN)));
    R(epoll_ctl(fd, EPOLL_CTL_ADD, set, E(EPOLLIN)));
    R(epoll_ctl(-1, EPOLL_CTL_ADD, fd, E(EPOLLIN)));
    R(epoll_ctl(set, EPOLL_CTL_ADD, -1, E(EPOLLIN)));
    R(epoll_ctl(set, EPOLL_CTL_ADD, 700, E(EPOLLIN)));
    R(epoll_ctl(set, EPOLL_CTL_ADD, file, E(EPOLLIN)));
    R(epoll_ctl(set, EPOLL_CTL_MOD, fd, (struct epoll_event *)8));
    R(epoll_ctl(set, EPOLL_CTL_MOD, fd, NULL));
    R(epoll_ctl(set, EPOLL_CTL_MOD, fd, E(EPOLLIN | EPOLLEXCLUSIVE)));
    R(epoll_ctl(set, EPOLL_CTL_DEL, fd, (struct epoll_event *)8));
    R(epoll_ctl(set, EPOLL_CTL_DEL, fd, NULL));
    R(epoll_ctl(set, EPOLL_CTL_ADD, fd, E(EPOLLIN | EPOLLEXCLUSIVE | EPOLLONESHOT)));
}

CASE(epoll_wait_errors)
{
    int fd = fresh(), set = set_with(fd, EPOLLIN);
    struct epoll_event e[2];
    tell('w', 3);
    R(epoll_wait(set, e, 0, 0));
    R(epoll_wait(set, e, -1, 0));
    R(epoll_wait(set, e, 1 << 30, 0));
    R(epoll_wait(set, (struct epoll_event *)8, 1, 0));
    R(epoll_wait(set, NULL, 1, 0));
    R(epoll_wait(fd, e, 1, 0));
    R(epoll_wait(-1, e, 1, 0));
    R(epoll_wait(700, e, 1, 0));
    R(epoll_pwait2(set, e, 1, &(struct timespec){ 0, -1 }, NULL));
    R(epoll_pwait2(set, e, 1, &(struct timespec){ -1, 0 }, NULL));
    R(epoll_pwait2(set, e, 1, (struct timespec *)8, NULL));
    R(epoll_wait(set, e, 2, 0));
    R(epoll_create(0));
    R(epoll_create1(12345));
}

CASE(epoll_data_and_masks)
{
    int fd = fresh(), set = MUST(epoll_create1(0));
    struct epoll_event e;
    static const unsigned masks[] = { EPOLLIN, EPOLLOUT, EPOLLRDNORM, EPOLLWRNORM, EPOLLRDHUP, EPOLLPRI, 0, EPOLLIN | EPOLLRDNORM,
                                      EPOLLIN | EPOLLOUT | EPOLLRDHUP | EPOLLPRI | EPOLLRDNORM | EPOLLWRNORM };
    tell('w', 3);
    R(epoll_ctl(set, EPOLL_CTL_ADD, fd, E(0)));
    for (int i = 0; i < 9; i++) {
        epoll_ctl(set, EPOLL_CTL_MOD, fd, &(struct epoll_event){ .events = masks[i], .data.u64 = ~0ull - i });
        memset(&e, 0, sizeof e);
        int n = epoll_wait(set, &e, 1, 0);
        say("%s: %d %s, data %d", mask_names(masks[i]), n, mask_names(e.events), n == 1 && e.data.u64 == ~0ull - i);
    }
    tell('s', SHUT_WR);
    for (int i = 0; i < 9; i++) {
        epoll_ctl(set, EPOLL_CTL_MOD, fd, &(struct epoll_event){ .events = masks[i] });
        say("with the end, %s: %c", mask_names(masks[i]), wait_for(set, 0)[0]);
    }
}

/* Which masks an edge-triggered registration tells for each thing that happens. */
static void edges(unsigned mask)
{
    int fd = fresh(), set = set_with(fd, mask | EPOLLET);
    say("at first %s", wait_for(set, 0));
    say("again %s", wait_for(set, 0));
    tell('w', 5);
    say("data %s", wait_for(set, 200));
    say("again %s", wait_for(set, 0));
    say("recv %s", result(take(fd, 2, 0)));
    say("a part read %s", wait_for(set, 0));
    tell('w', 5);
    say("more data %s", wait_for(set, 200));
    drain(fd);
    say("drained %s", wait_for(set, 0));
    R(epoll_ctl(set, EPOLL_CTL_MOD, fd, E(mask | EPOLLET)));
    say("changed to the same %s", wait_for(set, 0));
    say("again %s", wait_for(set, 0));
    tell('s', SHUT_WR);
    say("end %s", wait_for(set, 200));
    say("again %s", wait_for(set, 0));
    say("recv %s", result(take(fd, 2, 0)));
    say("end read %s", wait_for(set, 0));
}

CASE(epoll_edge_in) { edges(EPOLLIN); }
CASE(epoll_edge_in_out) { edges(EPOLLIN | EPOLLOUT); }
CASE(epoll_edge_in_rdhup) { edges(EPOLLIN | EPOLLRDHUP); }
CASE(epoll_edge_rdhup) { edges(EPOLLRDHUP); }
CASE(epoll_edge_every) { edges(EPOLLIN | EPOLLOUT | EPOLLRDHUP | EPOLLPRI); }

CASE(epoll_edge_reset)
{
    int fd = fresh(), set = set_with(fd, EPOLLIN | EPOLLET);
    say("at first %s", wait_for(set, 0));
    tell('l', 0);
    say("reset %s", wait_for(set, 200));
    say("again %s", wait_for(set, 0));
    say("recv %s", result(take(fd, 2, 0)));
    say("told %s", wait_for(set, 0));
}

CASE(epoll_edge_data_before_add)
{
    int fd = fresh();
    tell('w', 5);
    int set = set_with(fd, EPOLLIN | EPOLLET);
    say("added %s", wait_for(set, 200));
    say("again %s", wait_for(set, 0));
    R(epoll_ctl(set, EPOLL_CTL_DEL, fd, NULL));
    R(epoll_ctl(set, EPOLL_CTL_ADD, fd, E(EPOLLIN | EPOLLET)));
    say("added again %s", wait_for(set, 200));
    say("again %s", wait_for(set, 0));
}

static void oneshot(unsigned mask)
{
    int fd = fresh(), set = set_with(fd, EPOLLIN | EPOLLONESHOT | mask);
    tell('w', 5);
    say("data %s", wait_for(set, 200));
    say("off %s", wait_for(set, 0));
    tell('s', SHUT_WR);
    say("end while off %s", wait_for(set, 0));
    R(epoll_ctl(set, EPOLL_CTL_MOD, fd, E(EPOLLIN | EPOLLONESHOT | mask)));
    say("on %s", wait_for(set, 200));
    say("off %s", wait_for(set, 0));
    R(epoll_ctl(set, EPOLL_CTL_ADD, fd, E(EPOLLIN)));
    R(epoll_ctl(set, EPOLL_CTL_MOD, fd, E(EPOLLIN)));
    say("no oneshot any more %s", wait_for(set, 200));
    say("again %s", wait_for(set, 0));
}

CASE(epoll_oneshot) { oneshot(0); }
CASE(epoll_oneshot_edge) { oneshot(EPOLLET); }

CASE(epoll_oneshot_reset_while_off)
{
    int fd = fresh(), set = set_with(fd, EPOLLIN | EPOLLONESHOT);
    tell('w', 5);
    say("data %s", wait_for(set, 200));
    tell('l', 0);
    say("reset while off %s", wait_for(set, 0));
    R(epoll_ctl(set, EPOLL_CTL_MOD, fd, E(EPOLLIN | EPOLLONESHOT)));
    say("on %s", wait_for(set, 200));
}

CASE_PLAN(epoll_exclusive, STAYS_TCP)
{
    int fd = cold(), one = set_with(fd, EPOLLIN | EPOLLEXCLUSIVE), two = set_with(fd, EPOLLIN | EPOLLEXCLUSIVE | EPOLLET);
    warm_slot(0);
    say("at first %s", wait_for(one, 0));
    wait_for(two, 0);
    tell('w', 5);
    say("data %s", wait_for(one, 1000));
    say("again %s", wait_for(one, 0));
    say("the other %s", wait_for(two, 1000));
    say("again %s", wait_for(two, 0));
    drain(fd);
    say("drained %s %s", wait_for(one, 0), wait_for(two, 0));
    R(epoll_ctl(one, EPOLL_CTL_MOD, fd, E(EPOLLIN)));
}

/* It comes when the connection has left TCP already. */
CASE(epoll_exclusive_late)
{
    int fd = fresh(), one = set_with(fd, EPOLLIN | EPOLLEXCLUSIVE);
    say("at first %s", wait_for(one, 0));
    tell('w', 5);
    say("data %s", wait_for(one, 1000));
    drain(fd);
    say("drained %s", wait_for(one, 0));
    when_asleep('w', 3, 0);
    say("woken %s", wait_for(one, 5000));
    say("recv %s", result(take(fd, 10, 0)));
    R(put(fd, 5, 0));
    say("the peer reads %ld", tell('r', 5));
}

/* A set inside a set inside a set; edges between them. */
static void nest(unsigned inner_mask, unsigned outer_mask)
{
    int fd = fresh(), inner = set_with(fd, EPOLLIN | inner_mask), middle = set_with(inner, EPOLLIN | outer_mask);
    int outer = set_with(middle, EPOLLIN);
    say("idle %s", wait_for(outer, 0));
    tell('w', 5);
    say("data: outer %s", wait_for(outer, 1000));
    say("middle %s", wait_for(middle, 0));
    say("inner %s", wait_for(inner, 0));
    say("recv %s", result(take(fd, 2, 0)));
    say("a part read: outer %s", wait_for(outer, 0));
    drain(fd);
    say("inner %s", wait_for(inner, 0));
    say("drained: outer %s", wait_for(outer, 0));
    when_asleep('w', 5, 0);
    say("woken %s", wait_for(outer, 5000));
    struct pollfd p = { .fd = outer, .events = POLLIN };
    say("poll %d", poll(&p, 1, 0));
}

CASE(epoll_nested_level) { nest(0, 0); }
CASE(epoll_nested_edge_inside) { nest(EPOLLET, 0); }
CASE(epoll_nested_edge_outside) { nest(0, EPOLLET); }

static void nest_late(int read_first)
{
    int fd = fresh(), inner = set_with(fd, EPOLLIN), outer = MUST(epoll_create1(0));
    when_asleep('w', 5, 0);
    say("inner woken %s", wait_for(inner, 5000));
    if (read_first)
        drain(fd);
    R(epoll_ctl(outer, EPOLL_CTL_ADD, inner, E(EPOLLIN)));
    say("outer %s", wait_for(outer, 200));
    drain(fd);
    say("drained %s", wait_for(outer, 0));
    when_asleep('w', 5, 0);
    say("outer woken %s", wait_for(outer, 5000));
    R(epoll_ctl(outer, EPOLL_CTL_DEL, inner, NULL));
    say("alone again %s", wait_for(inner, 0));
    drain(fd);
    say("drained %s", wait_for(inner, 0));
}

CASE(epoll_nested_late) { nest_late(1); }
CASE(epoll_nested_late_with_unread) { nest_late(0); }

/* poll and select on a set's descriptor. */
CASE(epoll_descriptor_polled)
{
    int fd = fresh(), set = set_with(fd, EPOLLIN);
    struct pollfd p = { .fd = set, .events = POLLIN | POLLOUT };
    fd_set in;
    struct timeval t = { 0, 0 };
    say("idle: poll %d", poll(&p, 1, 0));
    when_asleep('w', 5, 0);
    int n = poll(&p, 1, 5000);
    say("woken: poll %d %s", n, mask_names(p.revents));
    FD_ZERO(&in);
    FD_SET(set, &in);
    say("select %d", select(set + 1, &in, NULL, NULL, &t));
    say("set %s", wait_for(set, 0));
    drain(fd);
    say("drained: poll %d", poll(&p, 1, 0));
    FD_SET(set, &in);
    when_asleep('w', 5, 0);
    say("woken: select %d", select(set + 1, &in, NULL, NULL, &(struct timeval){ 5, 0 }));
}

CASE(epoll_dup_of_the_set)
{
    int fd = fresh(), set = set_with(fd, EPOLLIN), copy = MUST(dup(set)), high = MUST(fcntl(set, F_DUPFD_CLOEXEC, 300));
    tell('w', 5);
    say("set %s, copy %s, high %s", wait_for(set, 200), wait_for(copy, 1000), wait_for(high, 1000));
    R(epoll_ctl(copy, EPOLL_CTL_MOD, fd, E(EPOLLIN | EPOLLONESHOT)));
    say("once %s", wait_for(high, 1000));
    say("off for all %s %s", wait_for(set, 0), wait_for(copy, 0));
    close(set);
    R(epoll_ctl(high, EPOLL_CTL_MOD, fd, E(EPOLLIN)));
    say("copy %s", wait_for(copy, 0));
    R(dup2(copy, high));
    say("high %s", wait_for(high, 0));
}

/* More is ready than one answer holds: all get their turn. */
CASE(epoll_small_answers)
{
    int fds[SLOTS], set = MUST(epoll_create1(0)), seen = 0;
    struct epoll_event e;
    for (int i = 0; i < SLOTS; i++) {
        fds[i] = fresh_slot(i);
        MUST(epoll_ctl(set, EPOLL_CTL_ADD, fds[i], &(struct epoll_event){ .events = EPOLLIN, .data.u32 = i }));
    }
    for (slot = 0; slot < SLOTS; slot++)
        tell('w', 3);
    for (int i = 0; i < 3 * SLOTS; i++)
        if (epoll_wait(set, &e, 1, 0) == 1)
            seen |= 1 << e.data.u32;
    say("seen %x", seen);
    for (slot = 0; slot < SLOTS; slot++)
        drain(fds[slot]);
    say("drained %s", result(epoll_wait(set, &e, 1, 0)));
    R(epoll_ctl(set, EPOLL_CTL_DEL, fds[1], NULL));
    close(fds[2]);
    for (slot = 0; slot < SLOTS; slot++)
        if (slot != 2)
            ask('w', 3, 0);
    seen = 0;
    for (int i = 0; i < 400 && seen != 9; i++)
        if (epoll_wait(set, &e, 1, 10) == 1)
            seen |= 1 << e.data.u32;
    say("seen %x", seen);
}
