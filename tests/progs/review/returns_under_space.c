// One end fills the way and sleeps until there is room; the other goes back to TCP by an option and reads only then.
#include "t.h"
static int a, b;
static volatile int woken;
static void *sleeper(void *how)
{
    struct epoll_event e = {.events = EPOLLOUT}, o = {0};
    int set = epoll_create1(0), n;
    epoll_ctl(set, EPOLL_CTL_ADD, b, &e);
    n = epoll_wait(set, &o, 1, 15000);
    woken = 1;
    printf("option %d: woken %d %x\n", *(int *)how, n, o.events);
    close(set);
    return 0;
}
int main()
{
    static char buf[1 << 20];
    for (int how = 0; how < 2; how++) {
        ready2(&a, &b);
        while (send(b, buf, sizeof buf, MSG_DONTWAIT) > 0)
            ;
        pthread_t t;
        woken = 0;
        pthread_create(&t, 0, sleeper, &how);
        // Longer than a sender's sleeps are cut short.
        ms(2600);
        int one = 1;
        if (how)
            setsockopt(a, SOL_SOCKET, SO_OOBINLINE, &one, sizeof one);
        else
            fcntl(a, F_SETFL, O_ASYNC);
        ms(50);
        // What was taken back is sent by the sleeper's thread, which may have to wait for a processor.
        while (!woken)
            if (recv(a, buf, sizeof buf, MSG_DONTWAIT) <= 0)
                ms(5);
        pthread_join(t, 0);
        close(a);
        close(b);
    }
    return 0;
}
