// Edge-triggered: HUP after shutdown(SHUT_WR) by another thread, peer shut before. Plain: 1 events 11, 1 events 2010.
#include "t.h"
static int a, b;
static void*sh(void*_)
{
    ms(300);
    shutdown(a, SHUT_WR);
    return 0;
}
static void*sp(void*_)
{
    ms(300);
    shutdown(b, SHUT_WR);
    return 0;
}
static void*cl(void*_)
{
    ms(300);
    struct linger l = {1, 0};
    setsockopt(b, SOL_SOCKET, SO_LINGER, &l, sizeof l);
    close(b);
    return 0;
}
static void run(const char*w, void*(*f)(void*), int m, int pre)
{
    ready2(&a, &b);
    int e = epoll_create1(0);
    struct epoll_event ev = {.events = m}, o;
    epoll_ctl(e, EPOLL_CTL_ADD, a, &ev);
    if (pre == 1)shutdown(b, SHUT_WR);
    if (pre == 2)shutdown(a, SHUT_WR);
    ms(20);
    while (m & EPOLLET && epoll_wait(e, &o, 1, 20) > 0);
    pthread_t t;
    pthread_create(&t, 0, f, 0);
    double s = now();
    int n = epoll_wait(e, &o, 1, HANGS * 1000);
    printf("%s mask %x pre %d: epoll %d events %x after %.1f\n", w, m, pre, n, n > 0 ? o.events : 0, now() - s);
    pthread_join(t, 0);
    struct pollfd p = {a, m & 0x2005, 0};
    n = poll(&p, 1, 0);
    printf("   poll %d %x\n", n, p.revents);
    close(e);
    close(a);
    if (f != cl)close(b);
}
int main()
{
    setvbuf(stdout, 0, _IOLBF, 0);
    int ms_[] = {0, EPOLLET, EPOLLIN | EPOLLET, EPOLLRDHUP | EPOLLET, EPOLLONESHOT};
    for (int i = 0; i < 5; i++) {
        run("own SHUT_WR", sh, ms_[i], 1);
        run("peer SHUT_WR", sp, ms_[i], 2);
        run("peer reset", cl, ms_[i], 0);
        run("peer reset", cl, ms_[i], 2);
    }
    return 0;
}
