// SO_RCVTIMEO with MSG_WAITALL, SO_SNDTIMEO with a slow reader. Plain: some, returned in time.
// A limit that began anew with each byte would end after 20 seconds and after 16; a busy machine may be late by some.
#include "t.h"
static int a, b;
enum { MOST = 80 };
static volatile int over;
static void *trickle(void*_)
{
    for (int i = 1; i < MOST && !over; i++) {
        ms(250);
        if (send(b, "x", 1, MSG_NOSIGNAL) != 1)break;
    }
    return 0;
}
static void *slowread(void*_)
{
    static char buf[1 << 20];
    for (int i = 0; i < MOST && !over; i++) {
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
    // The first one is there, however long the other thread waits for a processor.
    send(b, "x", 1, 0);
    pthread_create(&t, 0, trickle, 0);
    char buf[100];
    ssize_t r = recv(a, buf, 100, MSG_WAITALL);
    printf("WAITALL+RCVTIMEO 1s, 1 byte each 250ms: %s\n", r > 0 && r < MOST && now() - s > 0.9 ? "some" : "not some");
    over = 1;
    pthread_join(t, 0);
    while (recv(a, buf, 100, MSG_DONTWAIT) > 0);
    static char big[64 << 20];
    s = now();
    over = 0;
    pthread_create(&t, 0, slowread, 0);
    r = send(a, big, sizeof big, 0);
    printf("send 64M SNDTIMEO 1s, 1MB read each 250ms: returned %s (%s)\n", now() - s > 0.9 && now() - s < 8 ? "in time" : "early or late",
           r < 0 ? strerror(errno) : "partial");
    fprintf(stderr, "#   r=%zd\n", r);
    over = 1;
    pthread_join(t, 0);
    return 0;
}
