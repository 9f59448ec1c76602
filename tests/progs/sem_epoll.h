/* What the epoll programs share. */
#ifndef SEM_EPOLL_H
#define SEM_EPOLL_H
#include "sem.h"
#include <sys/epoll.h>

static int set_with(int fd, unsigned events)
{
    int set = MUST(epoll_create1(EPOLL_CLOEXEC));
    struct epoll_event e = { .events = events, .data.u64 = 0x1234567890abcdefull };
    MUST(epoll_ctl(set, EPOLL_CTL_ADD, fd, &e));
    return set;
}

static const char *wait_for(int set, int ms)
{
    static char text[4][60];
    static int turn;
    char *t = text[turn++ % 4];
    struct epoll_event e[4];
    memset(e, 0, sizeof e);
    int n = epoll_wait(set, e, 4, ms);
    if (n > 0)
        snprintf(t, 60, "%d events %x%s", n, e[0].events, e[0].data.u64 == 0x1234567890abcdefull ? "" : " other data");
    else
        snprintf(t, 60, "%s", result(n));
    return t;
}

static void drain(int fd) { while (take(fd, 1000, MSG_DONTWAIT) > 0) ; }
#endif
