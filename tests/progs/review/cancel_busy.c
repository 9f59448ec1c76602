// pthread_cancel of loops that never block. Plain: 1 and 1.
#include "t.h"
static int a, b;
static void*rd(void*_)
{
    char c[1];
    for(;;) {
        if(recv(b, c, 1, 0) <= 0)break;
    }
    return 0;
}
static void*rdn(void*_)
{
    char c[1];
    for(;;) {
        read(b, c, 1);
    }
    return 0;
}
static int joined(pthread_t t)
{
    struct timespec ts;
    clock_gettime(CLOCK_REALTIME, &ts);
    ts.tv_sec += HANGS;
    void*r;
    int e = pthread_timedjoin_np(t, &r, &ts);
    return e == 0 && r == PTHREAD_CANCELED;
}
static void*wr(void*_)
{
    char c = 0;
    for(;;)if(write(a, &c, 1) <= 0)break;
    return 0;
}
static void*dr(void*_)
{
    static char c[1 << 20];
    for(;;)if(recv(b, c, sizeof c, 0) <= 0)break;
    return 0;
}
int main()
{
    setvbuf(stdout, 0, _IOLBF, 0);
    ready2(&a, &b);
    static char big[2000000];
    pthread_t t;
    ssize_t n = 0;
    int j, asked, left;
    // Again, where it had read nearly all before it was cancelled: this thread got no processor.
    for (int tries = 0; tries < 10; tries++) {
        ssize_t more = send(a, big, sizeof big, MSG_DONTWAIT);
        n = tries ? n : more;
        pthread_create(&t, 0, rd, 0);
        ms(5);
        pthread_cancel(t);
        ioctl(b, FIONREAD, &asked);
        j = joined(t);
        ioctl(b, FIONREAD, &left);
        if (asked > 1000)
            break;
    }
    printf("recv loop over %s buffered data: cancelled at once %d\n", n > 1000000 ? "MBs of" : "KBs of", j && left > 0);
    fprintf(stderr, "# left %d\n", left);
    pthread_create(&t, 0, dr, 0);
    pthread_t w;
    pthread_create(&w, 0, wr, 0);
    ms(200);
    pthread_cancel(w);
    printf("write loop cancelled %d\n", joined(w));
    _exit(0);
}
