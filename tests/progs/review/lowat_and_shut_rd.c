// POLLIN after the own shutdown(SHUT_RD), fewer bytes than SO_RCVLOWAT unread. Plain: poll 5 and 15, epoll 1 and 11.
#include "t.h"
int main()
{
    setvbuf(stdout, 0, _IOLBF, 0);
    for (int how = 0; how < 3; how += 2) {
        int a, b;
        ready2(&a, &b);
        int m = 1000;
        setsockopt(a, SOL_SOCKET, SO_RCVLOWAT, &m, 4);
        send(b, "0123456789", 10, 0);
        ms(20);
        shutdown(a, how);
        ms(10);
        struct pollfd p = {a, POLLIN | POLLOUT, 0};
        int n = poll(&p, 1, 0);
        printf("SO_RCVLOWAT 1000, 10 bytes, shutdown(%d), poll: %d %x\n", how, n, p.revents);
        int e = epoll_create1(0);
        struct epoll_event ev = {.events = EPOLLIN}, o = {0};
        epoll_ctl(e, EPOLL_CTL_ADD, a, &ev);
        n = epoll_wait(e, &o, 1, 50);
        printf("epoll %d %x\n", n, o.events);
    }
    return 0;
}
