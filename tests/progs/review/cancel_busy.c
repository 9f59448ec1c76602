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
static int joined(pthread_t t, int s)
{
    struct timespec ts;
    clock_gettime(CLOCK_REALTIME, &ts);
    ts.tv_sec += s;
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
    int s = 4 << 20;
    fcntl(a, F_SETFL, O_NONBLOCK);
    ssize_t n = send(a, big, sizeof big, 0);
    fcntl(a, F_SETFL, 0);
    pthread_t t;
    pthread_create(&t, 0, rd, 0);
    ms(5);
    pthread_cancel(t);
    int j = joined(t, 1);
    int left;
    ioctl(b, FIONREAD, &left);
    printf("recv loop over %s buffered data: cancelled at once %d\n", n > 1000000 ? "MBs of" : "KBs of", j && left > 0);
    fprintf(stderr, "# left %d\n", left);
    pthread_create(&t, 0, dr, 0);
    pthread_t w;
    pthread_create(&w, 0, wr, 0);
    ms(200);
    pthread_cancel(w);
    printf("write loop cancelled %d\n", joined(w, 2));
    _exit(0);
}
