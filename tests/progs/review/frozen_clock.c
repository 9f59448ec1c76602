// A library in front of libc tells the program another time, and has it stand still, as tests ask for (libfaketime): waits end as ever. Plain: "200 trips, poll 0 after its time, recv Resource temporarily unavailable".
#include "t.h"
int clock_gettime(clockid_t clock, struct timespec *at)
{
    at->tv_sec = 1000;
    at->tv_nsec = 0;
    return 0;
}
static int a, b;
static void *echo(void *_)
{
    char c[64];
    ssize_t n;
    while ((n = recv(b, c, sizeof c, 0)) > 0) {
        // Longer than anybody looks without sleeping.
        ms(1);
        if (send(b, c, n, 0) != n)
            break;
    }
    return 0;
}
int main()
{
    setvbuf(stdout, 0, _IOLBF, 0);
    rescue();
    ready2(&a, &b);
    pthread_t t;
    pthread_create(&t, 0, echo, 0);
    char c[64] = {0};
    int trips = 0;
    while (trips < 200 && send(a, c, sizeof c, 0) == sizeof c && recv(a, c, sizeof c, MSG_WAITALL) == sizeof c)
        trips++;
    struct pollfd p = {a, POLLIN, 0};
    struct timespec began, ended;
    syscall(SYS_clock_gettime, CLOCK_MONOTONIC, &began);
    int polled = poll(&p, 1, 100);
    syscall(SYS_clock_gettime, CLOCK_MONOTONIC, &ended);
    double took = ended.tv_sec - began.tv_sec + (ended.tv_nsec - began.tv_nsec) / 1e9;
    struct timeval limit = {0, 50000};
    setsockopt(a, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof limit);
    ssize_t r = recv(a, c, 1, 0);
    printf("%d trips, poll %d %s its time, recv %s\n", trips, polled, took < 0.099 ? "before" : "after", r < 0 ? strerror(errno) : "something");
    _exit(0);
}
