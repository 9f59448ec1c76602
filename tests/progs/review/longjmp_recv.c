// The same out of recv. Plain: 0 of 100 failed.
#include "t.h"
static int a, b;
static sigjmp_buf j;
static volatile int jumps;
static void h(int s)
{
    jumps++;
    siglongjmp(j, 1);
}
static void*fill(void*_)
{
    static char c[1 << 20];
    for (;;)if (send(b, c, sizeof c, MSG_NOSIGNAL) <= 0)break;
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
    pthread_create(&t, 0, fill, 0);
    sigprocmask(SIG_UNBLOCK, &m, 0);
    static char big[1 << 20];
    double s = now();
    signal(SIGALRM, h);
    while (now() - s < 1.5) {
        if (!sigsetjmp(j, 1)) {
            ualarm(700, 0);
            for (;;)recv(a, big, sizeof big, 0);
        }
    }
    ualarm(0, 0);
    fprintf(stderr, "# %d jumps\n", jumps);
    int bad = 0;
    for (int i = 0; i < 100; i++)bad += recv(a, big, 100, 0) < 0;
    printf("blocking recv with data there, after jumps out of a handler that interrupted recv: %d of 100 failed %s\n",
           bad, bad ? strerror(errno) : "");
    _exit(0);
}
