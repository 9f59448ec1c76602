// siglongjmp out of handlers that interrupted send. Plain: 1.
#include "t.h"
static int a, b;
static sigjmp_buf j;
static volatile int jumps;
static void h(int s)
{
    jumps++;
    siglongjmp(j, 1);
}
static void giveup(int s)
{
    printf("hangs\n");
    _exit(1);
}
static void*drain(void*_)
{
    static char c[1 << 20];
    for (;;)if (recv(b, c, sizeof c, 0) <= 0)break;
    return 0;
}
int main()
{
    setvbuf(stdout, 0, _IOLBF, 0);
    ready2(&a, &b);
    sigset_t m;
    sigemptyset(&m);
    sigaddset(&m, SIGALRM);
    sigprocmask(SIG_BLOCK, &m, 0);
    pthread_t t;
    pthread_create(&t, 0, drain, 0);
    sigprocmask(SIG_UNBLOCK, &m, 0);
    static char big[1 << 20];
    double s = now();
    signal(SIGALRM, h);
    while (now() - s < 1.5) {
        if (!sigsetjmp(j, 1)) {
            ualarm(700, 0);
            for (;;)send(a, big, sizeof big, 0);
        }
    }
    ualarm(0, 0);
    signal(SIGALRM, giveup);
    fprintf(stderr, "# %d jumps\n", jumps);
    alarm(HANGS);
    printf("send after jumps out of a handler that interrupted send: ");
    fflush(stdout);
    ssize_t r = send(a, "x", 1, 0);
    printf("%zd\n", r);
    _exit(0);
}
