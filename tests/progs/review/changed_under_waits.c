// O_NONBLOCK, SO_RCVTIMEO and SO_SNDTIMEO are read once in a call; the time limit of a receive counts on when another thread takes
// the bytes that woke it; a look of ppoll and pselect lets signals in, also in front of old doorbells.
// Plain: nonblock 6; sent all; limit 6; no limit 3; limits are kept; ppoll EINTR 1, pselect EINTR 1
#include "t.h"
static int a, b, handled;
static volatile int caller;
static volatile double began;
static int came_late;
static char large[8 << 20];
static void count(int s)
{
    handled++;
}
static void *six(void *v)
{
    char c[6];
    began = now();
    caller = gettid();
    return (void *)recv(b, c, 6, MSG_WAITALL);
}
static void *all(void *v)
{
    caller = gettid();
    return (void *)send(a, large, sizeof large, 0);
}
static void limit(int fd, int option, int milliseconds)
{
    struct timeval tv = {0, milliseconds * 1000};
    setsockopt(fd, SOL_SOCKET, option, &tv, sizeof tv);
}
static long try(void *(*call)(void *), int what)
{
    pthread_t t;
    void *r;
    ready2(&a, &b);
    if (what == 3)
        limit(b, SO_RCVTIMEO, 600);
    caller = 0;
    pthread_create(&t, 0, call, 0);
    until_it_waits(&caller);
    if (what == 0)
        fcntl(b, F_SETFL, O_NONBLOCK), fcntl(a, F_SETFL, O_NONBLOCK);
    if (what == 1)
        limit(a, SO_SNDTIMEO, 100);
    if (what == 2)
        limit(b, SO_RCVTIMEO, 100);
    if (what == 3)
        limit(b, SO_RCVTIMEO, 0);
    if (call == six) {
        send(a, "abc", 3, 0);
        came_late = what == 3 && now() - began > 0.5;
        ms(what == 3 ? 900 : 400);
        send(a, "def", 3, 0);
    } else {
        ms(300);
        static char c[65536];
        double end = now() + 20;
        for (long n = 0, k; n < sizeof large && now() < end; n += k > 0 ? k : 0)
            if ((k = recv(b, c, sizeof c, MSG_DONTWAIT)) < 0)
                ms(1);
    }
    pthread_join(t, &r);
    return (long)r;
}
// Again, where the limit of a call may have run out before anything came: this thread got no processor.
static long during(void *(*call)(void *), int what)
{
    for (int tries = 0;; tries++) {
        long r = try(call, what);
        if (!came_late || tries == 9)
            return r;
        close(a), close(b);
    }
}
static void *worst(void *v)
{
    double most = 0, end = now() + 2;
    char c;
    while (now() < end) {
        double t = now();
        recv(b, &c, 1, 0);
        if (now() - t > most)
            most = now() - t;
    }
    return (void *)(long)(most * 1000);
}
static int limits_are_late(void)
{
    pthread_t t[3];
    long late = 0;
    ready2(&a, &b);
    limit(b, SO_RCVTIMEO, 500);
    for (int i = 0; i < 3; i++)
        pthread_create(&t[i], 0, worst, 0);
    for (int i = 0; i < 8; i++) {
        ms(200);
        send(a, "x", 1, 0);
    }
    for (int i = 0; i < 3; i++) {
        void *r;
        pthread_join(t[i], &r);
        late |= (long)r > 1000;
    }
    close(a), close(b);
    return late;
}
int main(void)
{
    printf("nonblock %ld\n", during(six, 0));
    printf("sent %s", during(all, 0) == sizeof large ? "all" : "a part");
    printf(", %s\n", during(all, 1) == sizeof large ? "all" : "a part");
    printf("limit %ld\n", during(six, 2));
    printf("no limit %ld\n", during(six, 3));

    // A limit that began anew with a byte would be late each time, a thread that got no processor once.
    int late = 1;
    for (int tries = 0; late && tries < 5; tries++)
        late = limits_are_late();
    printf("limits are %s\n", late ? "late" : "kept");

    struct sigaction sa = {.sa_handler = count};
    sigset_t block, none;
    sigaction(SIGUSR1, &sa, 0);
    sigemptyset(&none);
    sigemptyset(&block);
    sigaddset(&block, SIGUSR1);
    sigprocmask(SIG_BLOCK, &block, 0);
    ready2(&a, &b);
    struct pollfd p = {b, POLLIN};
    struct timespec zero = {0};
    fd_set set;
    for (int i = 0; i < 2; i++) {
        FD_ZERO(&set);
        FD_SET(b, &set);
        handled = 0;
        raise(SIGUSR1);
        int n = i ? pselect(b + 1, &set, 0, 0, &zero, &none) : ppoll(&p, 1, &zero, &none);
        printf("%s %s %d\n", i ? "pselect" : "ppoll", n < 0 && errno == EINTR ? "EINTR" : "returns", handled);
    }
}
