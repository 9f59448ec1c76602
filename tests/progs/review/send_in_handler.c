// A handler sends on the blocking socket whose send it interrupted. Plain: yes.
#include "t.h"
static int a, b;
static volatile int inh, done;
static void h(int s)
{
    inh++;
    ssize_t r = send(a, "s", 1, 0);
    if(r == 1)done++;
}
static void *reader(void*_)
{
    static char buf[1 << 16];
    while(recv(b, buf, sizeof buf, 0) > 0);
    return 0;
}
int main()
{
    setvbuf(stdout, 0, _IOLBF, 0);
    ready2(&a, &b);
    pthread_t t;
    sigset_t bm;
    sigemptyset(&bm);
    sigaddset(&bm, SIGALRM);
    sigprocmask(SIG_BLOCK, &bm, 0);
    pthread_create(&t, 0, reader, 0);
    sigprocmask(SIG_UNBLOCK, &bm, 0);
    sigset_t m;
    struct sigaction sa = {.sa_handler = h, .sa_flags = SA_RESTART};
    sigaction(SIGALRM, &sa, 0);
    struct itimerval it = {{0, 1000}, {0, 1000}};
    static char big[1 << 20];
    sigemptyset(&m);
    sigaddset(&m, SIGALRM);
    alarm(0);
    setitimer(ITIMER_REAL, &it, 0);
    double s = now();
    long n = 0;
    struct rlimit rl = {20, 20};
    setrlimit(RLIMIT_CPU, &rl);
    // A busy machine may take longer for so many.
    while(now() - s < 3 || (inh <= 100 && now() - s < HANGS)) {
        ssize_t r = send(a, big, sizeof big, 0);
        if(r > 0)n += r;
    }
    it = (struct itimerval) {
        {0, 0}, {0, 0}
    };
    setitimer(ITIMER_REAL, &it, 0);
    printf("handler ran, every send in it returned 1: %s\n", inh > 100 && inh == done ? "yes" : "no");
    fprintf(stderr, "# inh=%d done=%d %ld MB\n", inh, done, n >> 20);
    _exit(0);
}
