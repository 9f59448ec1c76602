// close by another thread under a blocked send. Plain: 100, join 0; peer sees EAGAIN under poll.
#include "t.h"
/* close() by another thread: blocked send, blocked poll, epoll */
static int a, b, e;
static volatile pid_t caller;
static char big[1 << 20];
static void*snd(void*_)
{
    caller = gettid();
    ssize_t r = send(a, big, 100, MSG_NOSIGNAL);
    printf("blocked send over close: %zd %s\n", r, r < 0 ? strerror(errno) : "");
    return 0;
}
static void*pl(void*_)
{
    struct pollfd p = {a, POLLIN, 0};
    caller = gettid();
    int r = poll(&p, 1, 20000);
    printf("blocked poll over close: %d %x\n", r, p.revents);
    return 0;
}
int main()
{
    setvbuf(stdout, 0, _IOLBF, 0);
    pthread_t t;
    char c[8];
    ready2(&a, &b);
    fcntl(a, F_SETFL, O_NONBLOCK);
    for(int k = 0; k < 3; k++) {
        while(send(a, big, sizeof big, 0) > 0);
        while(send(a, big, 1, 0) > 0);
        ms(50);
    }
    fcntl(a, F_SETFL, 0);
    pthread_create(&t, 0, snd, 0);
    until_it_waits(&caller);
    close(a);
    ms(100);
    long n = 0;
    ssize_t r;
    fcntl(b, F_SETFL, O_NONBLOCK);
    double s = now();
    int eof = 0;
    while(now() - s < HANGS && !eof) {
        r = recv(b, big, sizeof big, 0);
        if(r > 0)n += r;
        else if(r == 0)eof = 1;
        else if(errno != EAGAIN) {
            printf("peer %s\n", strerror(errno));
            break;
        } else ms(5);
    }
    struct timespec ts;
    clock_gettime(CLOCK_REALTIME, &ts);
    ts.tv_sec += HANGS;
    int joined = pthread_timedjoin_np(t, 0, &ts);
    /* Behind the thread's own line, which it writes after the end that we have just read. */
    printf("peer reads to the end: %d\njoin %d\n", eof, joined);
    ready2(&a, &b);
    caller = 0;
    pthread_create(&t, 0, pl, 0);
    until_it_waits(&caller);
    close(a);
    ms(100);
    r = recv(b, c, 1, MSG_DONTWAIT);
    printf("peer sees %zd %s\n", r, r < 0 ? strerror(errno) : "");
    send(b, "x", 1, MSG_NOSIGNAL);
    ms(100);
    clock_gettime(CLOCK_REALTIME, &ts);
    ts.tv_sec += HANGS;
    printf("join %d\n", pthread_timedjoin_np(t, 0, &ts));
    _exit(0);
}
