// shutdown(SHUT_WR) by another thread under a blocked send. Plain: -1 Broken pipe.
#include "t.h"
static int a, b;
static char big[1 << 20];
static void giveup(int s)
{
    write(1, "still blocked after 30 s\n", 25);
    _exit(1);
}
static void*sh(void*_)
{
    sigset_t m;
    sigfillset(&m);
    pthread_sigmask(SIG_BLOCK, &m, 0);
    ms(500);
    shutdown(a, SHUT_WR);
    return 0;
}
int main()
{
    setvbuf(stdout, 0, _IOLBF, 0);
    signal(SIGPIPE, SIG_IGN);
    signal(SIGALRM, giveup);
    ready2(&a, &b);
    fcntl(a, F_SETFL, O_NONBLOCK);
    for (int k = 0; k < 3; k++) {
        while (send(a, big, sizeof big, 0) > 0);
        while (send(a, big, 1, 0) > 0);
        ms(50);
    }
    fcntl(a, F_SETFL, 0);
    pthread_t t;
    pthread_create(&t, 0, sh, 0);
    alarm(HANGS);
    ssize_t r = send(a, big, 100, 0);
    printf("shutdown(SHUT_WR) by another thread under a blocked send: %zd %s\n", r, r < 0 ? strerror(errno) : "");
    return 0;
}
