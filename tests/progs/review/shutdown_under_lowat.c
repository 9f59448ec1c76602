// The same under recv with SO_RCVLOWAT. Plain: lowat: 10, poll lowat: 1 1.
#include "t.h"
/* same for SO_RCVLOWAT, poll with POLLIN after low mark and shutdown, peek waitall */
static int a, b, how;
static void giveup(int s)
{
    write(1, "still inside after 30 s\n", 24);
    _exit(1);
}
static void*sh(void*_)
{
    sigset_t m;
    sigfillset(&m);
    pthread_sigmask(SIG_BLOCK, &m, 0);
    ms(500);
    shutdown(a, SHUT_RD);
    return 0;
}
int main(int c, char**v)
{
    setvbuf(stdout, 0, _IOLBF, 0);
    signal(SIGALRM, giveup);
    pthread_t t;
    char buf[100];
    alarm(HANGS);
    ssize_t r;
    ready2(&a, &b);
    int n = 50;
    setsockopt(a, SOL_SOCKET, SO_RCVLOWAT, &n, sizeof n);
    send(b, "0123456789", 10, 0);
    ms(10);
    pthread_create(&t, 0, sh, 0);
    alarm(HANGS);
    r = recv(a, buf, 100, 0);
    printf("lowat: %zd\n", r);
    pthread_join(t, 0);
    ready2(&a, &b);
    setsockopt(a, SOL_SOCKET, SO_RCVLOWAT, &n, sizeof n);
    send(b, "0123456789", 10, 0);
    ms(10);
    pthread_create(&t, 0, sh, 0);
    alarm(HANGS);
    struct pollfd p = {a, POLLIN, 0};
    int q = poll(&p, 1, HANGS * 1000);
    printf("poll lowat: %d %x\n", q, p.revents);
    return 0;
}
