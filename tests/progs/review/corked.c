// TCP_CORK and MSG_MORE: a peer that sleeps gets the pieces together, at the end of the cork or after 200 ms. Plain: as printed.
#include "t.h"
static int a, b;
static void*reads(void*_)
{
    static char buf[4096];
    for (int i = 0; i < 4; i++) {
        double t = now();
        ssize_t r = recv(b, buf, sizeof buf, 0);
        printf("received %zd%s\n", r, i == 3 && now() - t > 1 ? ", late" : "");
    }
    return 0;
}
static void cork(int on)
{
    setsockopt(a, IPPROTO_TCP, TCP_CORK, &on, sizeof on);
}
int main()
{
    setvbuf(stdout, 0, _IOLBF, 0);
    ready2(&a, &b);
    static char buf[4096];
    pthread_t t;
    pthread_create(&t, 0, reads, 0);
    ms(300);
    cork(1);
    // One after the other: on a busy machine a pause may take the 200 ms.
    for (int i = 0; i < 3; i++)
        send(a, buf, 100, 0);
    cork(0);
    ms(300);
    send(a, buf, 10, MSG_MORE);
    send(a, buf, 20, MSG_MORE);
    send(a, buf, 30, 0);
    ms(300);
    // TCP_NODELAY lets go, too.
    cork(1);
    send(a, buf, 7, 0);
    int on = 1;
    setsockopt(a, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
    cork(0);
    ms(300);
    // Nobody pulls it.
    cork(1);
    send(a, buf, 9, 0);
    pthread_join(t, 0);
    return 0;
}
