// close by another thread under a blocked recv. Plain: peer sees EAGAIN, its 5 bytes are received, then end.
#include "t.h"
static int a, b;
static ssize_t got = -2;
static volatile pid_t caller;
static void*blocked(void*_)
{
    char c[8];
    caller = gettid();
    ssize_t r = recv(a, c, 8, 0);
    got = r < 0 ? -errno : r;
    return 0;
}
int main()
{
    setvbuf(stdout, 0, _IOLBF, 0);
    ready2(&a, &b);
    pthread_t t;
    pthread_create(&t, 0, blocked, 0);
    until_it_waits(&caller);
    close(a);
    ms(200);
    char c[8];
    ssize_t r = recv(b, c, 8, MSG_DONTWAIT);
    printf("peer sees after close under a blocked recv: %zd %s\n", r, r < 0 ? strerror(errno) : "");
    r = send(b, "hello", 5, MSG_NOSIGNAL);
    printf("peer sends: %zd %s\n", r, r < 0 ? strerror(errno) : "");
    struct timespec ts;
    clock_gettime(CLOCK_REALTIME, &ts);
    ts.tv_sec += HANGS;
    printf("join %d\n", pthread_timedjoin_np(t, 0, &ts));
    printf("blocked recv over close: %zd\n", got);
    ms(100);
    r = recv(b, c, 8, MSG_DONTWAIT);
    printf("peer afterwards: %zd %s\n", r, r < 0 ? strerror(errno) : "");
    _exit(0);
}
