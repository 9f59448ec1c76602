// Polls of an end that leaves what came before the switch unread, and whose writes have filled the way: none may spin, each is woken.
#include "t.h"
static int spins(struct pollfd p, int timeout, int *n)
{
    double began = now(), before = cpu();
    *n = poll(&p, 1, timeout);
    return cpu() - before > (now() - began) / 4 && now() - began > 0.1;
}
// TCP makes room again when what is under way has arrived.
static void fill(int fd)
{
    static char buf[1 << 16];
    struct pollfd p = {fd, POLLOUT};
    do
        while (send(fd, buf, sizeof buf, MSG_DONTWAIT) > 0)
            ;
    while (poll(&p, 1, 200) == 1);
}
static volatile int woken;
static void *reads_soon(void *fd)
{
    static char buf[1 << 20];
    ms(300);
    while (!woken)
        if (recv(*(int *)fd, buf, sizeof buf, MSG_DONTWAIT) <= 0)
            ms(5);
    return 0;
}
int main()
{
    static char buf[1 << 16];
    int a, b, n;
    pairup(&a, &b);
    send(a, "a greeting that nobody reads", 28, 0);
    for (int i = 0; i < 40; i++) {
        send(b, buf, 1, 0);
        recv(a, buf, 1, 0);
        if (i > 4)
            continue;
        send(a, buf, 1, 0);
    }
    unsigned long long sent = tcpsent(b);
    fill(b);
    fprintf(stderr, "# on ring: %d\n", tcpsent(b) - sent < 100);
    const short events[] = {POLLOUT, POLLOUT | POLLRDHUP, POLLRDHUP, 0};
    for (int i = 0; i < 4; i++) {
        int spun = spins((struct pollfd){b, events[i], 0}, 400, &n);
        printf("%x: %d, spins %d\n", events[i], n, spun);
    }
    pthread_t t;
    for (int i = 0; i < 2; i++) {
        fill(b);
        woken = 0;
        pthread_create(&t, 0, reads_soon, &a);
        struct pollfd p = {b, events[i], 0};
        printf("room: %d", poll(&p, 1, 20000));
        printf(" %x\n", p.revents);
        woken = 1;
        pthread_join(t, 0);
    }
    n = recv(b, buf, sizeof buf, MSG_DONTWAIT);
    printf("greeting: %d %.10s\n", n, buf);
    return 0;
}
