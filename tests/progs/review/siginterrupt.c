// A full socket, a signal after 1 s, siginterrupt (with an argument: sysv_signal). Plain: send -1 EINTR in time.
#include "t.h"
static int a, b;
static void h(int s) {}
static void*late(void*_)
{
    sigset_t m;
    sigemptyset(&m);
    sigaddset(&m, SIGALRM);
    pthread_sigmask(SIG_BLOCK, &m, 0);
    ms(10000);
    static char c[1 << 20];
    double s = now();
    while (now() - s < 6)if (recv(b, c, sizeof c, MSG_DONTWAIT) <= 0)ms(5);
    return 0;
}
int main(int c, char**v)
{
    setvbuf(stdout, 0, _IOLBF, 0);
    ready2(&a, &b);
    static char big[1 << 20];
    if (c > 1) {
        sysv_signal(SIGALRM, h);
    } else {
        signal(SIGALRM, h);
        siginterrupt(SIGALRM, 1);
    }
    fcntl(a, F_SETFL, O_NONBLOCK);
    while (send(a, big, sizeof big, 0) > 0);
    while (send(a, big, 1, 0) > 0);
    ms(50);
    while (send(a, big, 1, 0) > 0);
    fcntl(a, F_SETFL, 0);
    pthread_t t;
    pthread_create(&t, 0, late, 0);
    // Again and again, where the handler is for more than one: the first may come in front of the send.
    struct itimerval each = {{c > 1 ? 0 : 1, 0}, {1, 0}};
    double s = now();
    setitimer(ITIMER_REAL, &each, 0);
    ssize_t r = send(a, big, 1000, 0);
    printf("a signal, full socket, %s: send %zd %s %s\n", c > 1 ? "sysv_signal" : "siginterrupt", r,
           r < 0 ? strerror(errno) : "", now() - s < 0.9 ? "early" : "in time");
    _exit(0);
}
