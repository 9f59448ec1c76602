// pthread_cancel of loops over recv, send, epoll_wait, poll. Plain: 1 1 1 1.
#include "t.h"
static int a, b;
static volatile long got;
static void *rd(void*_)
{
    char buf[4096];
    for(;;) {
        ssize_t r = recv(b, buf, sizeof buf, 0);
        if(r <= 0)break;
        got += r;
    }
    return 0;
}
static void *wr(void*_)
{
    char buf[512];
    for(;;) {
        if(send(a, buf, sizeof buf, MSG_NOSIGNAL) <= 0)break;
    }
    return 0;
}
static void*drain(void*_)
{
    static char buf[65536];
    while(recv(b, buf, sizeof buf, 0) > 0);
    return 0;
}
static int joined(pthread_t t)
{
    struct timespec ts;
    clock_gettime(CLOCK_REALTIME, &ts);
    ts.tv_sec += HANGS;
    void*r;
    int e = pthread_timedjoin_np(t, &r, &ts);
    return e == 0 && r == PTHREAD_CANCELED;
}
static void*ew(void*_)
{
    int e = epoll_create1(0);
    struct epoll_event ev = {.events = EPOLLOUT | EPOLLIN};
    epoll_ctl(e, EPOLL_CTL_ADD, a, &ev);
    for(;;)epoll_wait(e, &ev, 1, -1);
    return 0;
}
static void*pl(void*_)
{
    struct pollfd p = {a, POLLOUT, 0};
    for(;;)poll(&p, 1, -1);
    return 0;
}
int main()
{
    setvbuf(stdout, 0, _IOLBF, 0);
    ready2(&a, &b);
    pthread_t t, w, d;
    pthread_create(&w, 0, wr, 0);
    pthread_create(&t, 0, rd, 0);
    ms(300);
    pthread_cancel(t);
    printf("recv loop with data flowing cancelled: %d\n", joined(t));
    pthread_create(&d, 0, drain, 0);
    ms(100);
    pthread_cancel(w);
    printf("send loop cancelled: %d\n", joined(w));
    pthread_create(&w, 0, ew, 0);
    ms(100);
    pthread_cancel(w);
    printf("epoll_wait loop always ready cancelled: %d\n", joined(w));
    pthread_create(&w, 0, pl, 0);
    ms(100);
    pthread_cancel(w);
    printf("poll loop always ready cancelled: %d\n", joined(w));
    _exit(0);
}
