// SO_RCVTIMEO with MSG_WAITALL, SO_SNDTIMEO with a slow reader. Plain: some after 1.0s; returned after 1.0s.
#include "t.h"
static int a, b;
static void *trickle(void*_)
{
    for (int i = 0; i < 12; i++) {
        ms(250);
        if (send(b, "x", 1, MSG_NOSIGNAL) != 1)break;
    }
    return 0;
}
static void *slowread(void*_)
{
    static char buf[1 << 20];
    for (int i = 0; i < 12; i++) {
        ms(250);
        ssize_t r = recv(b, buf, sizeof buf, MSG_DONTWAIT);
        (void)r;
    }
    return 0;
}
int main(int c, char**v)
{
    setvbuf(stdout, 0, _IOLBF, 0);
    ready2(&a, &b);
    pthread_t t;
    struct timeval tv = {1, 0};
    setsockopt(a, SOL_SOCKET, SO_RCVTIMEO, &tv, sizeof tv);
    setsockopt(a, SOL_SOCKET, SO_SNDTIMEO, &tv, sizeof tv);
    double s = now();
    pthread_create(&t, 0, trickle, 0);
    char buf[100];
    ssize_t r = recv(a, buf, 100, MSG_WAITALL);
    printf("WAITALL+RCVTIMEO 1s, 1 byte each 250ms: %s after %.0fs\n", r > 0 && r < 12 ? "some" : "not some", now() - s);
    pthread_join(t, 0);
    while (recv(a, buf, 100, MSG_DONTWAIT) > 0);
    static char big[64 << 20];
    s = now();
    pthread_create(&t, 0, slowread, 0);
    r = send(a, big, sizeof big, 0);
    printf("send 64M SNDTIMEO 1s, 1MB read each 250ms: returned after %.0fs (%s)\n", now() - s,
           r < 0 ? strerror(errno) : "partial");
    fprintf(stderr, "#   r=%zd\n", r);
    pthread_join(t, 0);
    return 0;
}
