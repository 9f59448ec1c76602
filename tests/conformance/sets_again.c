/* epoll: registrations that are removed and added over and over, as clients do that wait for one direction at a time. */
#include "frame.h"

static int control(int set, int op, int fd, unsigned events)
{
    struct epoll_event e = { .events = events, .data.u64 = 0x1234567890abcdefull };
    return epoll_ctl(set, op, fd, &e);
}

static void again(int set, int fd, unsigned events, int rounds)
{
    for (int i = 0; i < rounds; i++) {
        MUST(epoll_ctl(set, EPOLL_CTL_DEL, fd, NULL));
        MUST(control(set, EPOLL_CTL_ADD, fd, events));
    }
}

/* A connection whose registration is gone after having come and gone often. */
static int gone_from(int set, int fd)
{
    again(set, fd, EPOLLIN, 9);
    return epoll_ctl(set, EPOLL_CTL_DEL, fd, NULL);
}

CASE(sets_again_level)
{
    int fd = fresh(), set = set_with(fd, EPOLLIN);
    for (int i = 0; i < 12; i++) {
        tell('w', 5);
        say("round %d %s", i, wait_for(set, 1000));
        drain(fd);
        MUST(epoll_ctl(set, EPOLL_CTL_DEL, fd, NULL));
        MUST(control(set, EPOLL_CTL_ADD, fd, EPOLLOUT));
        say("out %s", wait_for(set, 1000));
        MUST(epoll_ctl(set, EPOLL_CTL_DEL, fd, NULL));
        MUST(control(set, EPOLL_CTL_ADD, fd, EPOLLIN));
    }
    MUST(epoll_ctl(set, EPOLL_CTL_DEL, fd, NULL));
    tell('w', 5);
    say("removed, with data %s", wait_for(set, 20));
    MUST(control(set, EPOLL_CTL_ADD, fd, EPOLLIN));
    say("added with data %s", wait_for(set, 0));
    drain(fd);
    MUST(epoll_ctl(set, EPOLL_CTL_DEL, fd, NULL));
    MUST(control(set, EPOLL_CTL_ADD, fd, EPOLLIN));
    when_asleep('w', 3, 0);
    say("woken %s", wait_for(set, -1));
    drain(fd);
    MUST(epoll_ctl(set, EPOLL_CTL_DEL, fd, NULL));
    when_asleep('w', 3, 0);
    say("asleep, removed %s", wait_for(set, 100));
    tell('r', 0); /* It has written by now. */
    MUST(control(set, EPOLL_CTL_ADD, fd, EPOLLIN));
    say("added %s", wait_for(set, 1000));
    MUST(epoll_ctl(set, EPOLL_CTL_DEL, fd, NULL));
    tell('s', SHUT_WR);
    say("the end of what is removed %s", wait_for(set, 20));
    MUST(control(set, EPOLL_CTL_ADD, fd, EPOLLIN | EPOLLRDHUP));
    say("added at the end %s", wait_for(set, 1000));
    close(set);
    close(fd);
}

CASE(sets_again_edge)
{
    int fd = fresh(), set = set_with(fd, EPOLLIN | EPOLLET);
    for (int i = 0; i < 8; i++) {
        again(set, fd, EPOLLIN | EPOLLET, 1);
        say("nothing %s", wait_for(set, 0));
        tell('w', 5);
        say("round %d %s", i, wait_for(set, 1000));
        say("once %s", wait_for(set, 0));
        again(set, fd, EPOLLIN | EPOLLET, 1);
        say("anew %s", wait_for(set, 0));
        say("once %s", wait_for(set, 0));
        drain(fd);
    }
    again(set, fd, EPOLLIN | EPOLLONESHOT, 3);
    tell('w', 5);
    say("oneshot %s", wait_for(set, 1000));
    say("off %s", wait_for(set, 0));
    again(set, fd, EPOLLIN | EPOLLONESHOT, 1);
    say("armed %s", wait_for(set, 0));
    close(set);
    close(fd);
}

CASE(sets_again_errors)
{
    int fd = fresh(), set = set_with(fd, EPOLLIN);
    MUST(gone_from(set, fd));
    R(epoll_ctl(set, EPOLL_CTL_DEL, fd, NULL));
    R(control(set, EPOLL_CTL_MOD, fd, EPOLLIN));
    R(control(set, EPOLL_CTL_ADD, fd, EPOLLIN));
    R(control(set, EPOLL_CTL_ADD, fd, EPOLLIN));
    R(epoll_ctl(set, EPOLL_CTL_DEL, fd, (struct epoll_event *)8));
    R(epoll_ctl(set, EPOLL_CTL_ADD, fd, NULL));
    R(epoll_ctl(set, EPOLL_CTL_DEL, fd, NULL));
    R(control(set, EPOLL_CTL_ADD, fd, EPOLLIN));
    R(control(set, EPOLL_CTL_MOD, fd, EPOLLOUT));
    say("out %s", wait_for(set, 0));
    R(control(set, EPOLL_CTL_ADD, set, EPOLLIN));
    close(set);
    close(fd);
}

CASE(sets_again_elsewhere)
{
    int fd = fresh(), one = set_with(fd, EPOLLIN), two = MUST(epoll_create1(0)), copy;
    MUST(gone_from(one, fd));
    MUST(control(two, EPOLL_CTL_ADD, fd, EPOLLIN));
    when_asleep('w', 5, 0);
    say("the other set %s", wait_for(two, -1));
    say("not the first %s", wait_for(one, 20));
    MUST(control(one, EPOLL_CTL_ADD, fd, EPOLLIN));
    say("both %s", wait_for(one, 0));
    say("both %s", wait_for(two, 0));
    MUST(epoll_ctl(one, EPOLL_CTL_DEL, fd, NULL));
    MUST(epoll_ctl(two, EPOLL_CTL_DEL, fd, NULL));
    drain(fd);
    MUST(control(one, EPOLL_CTL_ADD, fd, EPOLLIN));
    MUST(gone_from(one, fd));
    /* The number goes, the connection lives on under another one. */
    copy = MUST(dup(fd));
    close(fd);
    known_as(0, copy);
    tell('w', 5);
    say("closed %s", wait_for(one, 20));
    R(control(one, EPOLL_CTL_ADD, copy, EPOLLIN));
    say("the copy %s", wait_for(one, 0));
    drain(copy);
    MUST(gone_from(one, copy));
    MUST(control(two, EPOLL_CTL_ADD, one, EPOLLIN));
    tell('w', 5);
    say("empty inside another %s", wait_for(two, 20));
    R(control(one, EPOLL_CTL_ADD, copy, EPOLLIN));
    say("inside another %s", wait_for(two, 1000));
    close(one);
    close(two);
    close(copy);
}

CASE(sets_again_and_fork)
{
    int fd = fresh(), set = set_with(fd, EPOLLIN);
    MUST(gone_from(set, fd));
    pid_t child = fork();
    if (child == 0) {
        tell('w', 5);
        int n = epoll_ctl(set, EPOLL_CTL_DEL, fd, NULL) == 0 || errno != ENOENT;
        n |= (strcmp(wait_for(set, 20), "0") != 0) << 1;
        _exit(n);
    }
    reap(child, "the child");
    say("removed %s", wait_for(set, 20));
    R(epoll_ctl(set, EPOLL_CTL_DEL, fd, NULL));
    R(control(set, EPOLL_CTL_ADD, fd, EPOLLIN));
    say("added %s", wait_for(set, 1000));
    close(set);
    close(fd);
}

/* A thread sleeps on the set while the connection comes and goes. */
struct sleep { int set; char told[160]; };

static void *sleeper(void *arg)
{
    struct sleep *s = arg;
    snprintf(s->told, sizeof s->told, "%s", wait_for(s->set, 5000));
    return s->told;
}

CASE(sets_again_beside_asleep)
{
    int fd = fresh(), set = set_with(fd, EPOLLIN);
    struct thread t;
    struct sleep s = { .set = set };
    MUST(gone_from(set, fd));
    spawn_thread(&t, sleeper, &s);
    until_asleep(t.tid);
    tell('w', 5);
    say("nothing in time %d", sleeping(getpid(), t.tid));
    MUST(control(set, EPOLL_CTL_ADD, fd, EPOLLIN));
    say("woken by the addition %s", (const char *)join(&t));
    drain(fd);
    again(set, fd, EPOLLIN, 9);
    spawn_thread(&t, sleeper, &s);
    until_asleep(t.tid);
    again(set, fd, EPOLLIN, 9);
    until_asleep(t.tid);
    tell('w', 5);
    say("woken by data %s", (const char *)join(&t));
    close(set);
    close(fd);
}

/* Somebody else waits for the connection while it is out of the set. */
CASE(sets_again_and_recv)
{
    int fd = fresh(), set = set_with(fd, EPOLLIN);
    struct thread t;
    struct sleep s = { .set = set };
    for (int i = 0; i < 8; i++) {
        MUST(gone_from(set, fd));
        spawn_thread(&t, sleeper, &s);
        until_asleep(t.tid);
        when_asleep('w', 5, 0);
        say("recv %s", result(take(fd, 5, 0)));
        MUST(control(set, EPOLL_CTL_ADD, fd, EPOLLIN));
        tell('w', 5);
        say("woken %s", (const char *)join(&t));
        drain(fd);
    }
    close(set);
    close(fd);
}
