// The same out of epoll_wait. Plain: 0 of 100 failed.
#include "t.h"
static int a, b;
static sigjmp_buf j;
static volatile int jumps;
static void h(int s)
{
    jumps++;
    siglongjmp(j, 1);
}
int main()
{
    setvbuf(stdout, 0, _IOLBF, 0);
    ready2(&a, &b);
    int e = epoll_create1(0);
    struct epoll_event ev = {.events = EPOLLIN | EPOLLOUT}, o;
    epoll_ctl(e, EPOLL_CTL_ADD, a, &ev);
    double s = now();
    signal(SIGALRM, h);
    while (now() - s < 1.5) {
        if (!sigsetjmp(j, 1)) {
            ualarm(700, 0);
            for (;;)epoll_wait(e, &o, 1, 0);
        }
    }
    ualarm(0, 0);
    fprintf(stderr, "# %d jumps\n", jumps);
    int bad = 0, n = 0;
    for (int i = 0; i < 100; i++) {
        n = epoll_wait(e, &o, 1, 0);
        if (n < 0)bad++;
    }
    printf("epoll_wait after jumps out of a handler: %d of 100 failed\n", bad);
    _exit(0);
}
