// shutdown(SHUT_RD, with an argument SHUT_RDWR) under recv(MSG_WAITALL) that has 10 bytes. Plain: 10.
#include "t.h"
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
    shutdown(a, how);
    return 0;
}
int main(int c, char**v)
{
    setvbuf(stdout, 0, _IOLBF, 0);
    how = c > 1 ? SHUT_RDWR : SHUT_RD;
    signal(SIGALRM, giveup);
    ready2(&a, &b);
    send(b, "0123456789", 10, 0);
    ms(10);
    pthread_t t;
    pthread_create(&t, 0, sh, 0);
    alarm(HANGS);
    char buf[100];
    double c0 = cpu();
    ssize_t r = recv(a, buf, 100, MSG_WAITALL);
    printf("shutdown by another thread under recv(MSG_WAITALL) that has 10 bytes: %zd\n", r);
    fprintf(stderr, "# cpu %.2f\n", cpu() - c0);
    return 0;
}
