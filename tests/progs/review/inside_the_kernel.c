// A thread is inside a receive that began before its socket was upgraded. Another one's receive keeps its time limit and goes on
// behind a handler with SA_RESTART; close and dup2 take effect when the first has ended.
// Plain: limit EAGAIN, EAGAIN; restarted 1 1; close 1 1 0; dup2 1 1 0 new 1
#include "t.h"
static int a, b;
static volatile pid_t caller;
static void nothing(int s)
{
}
static void *one(void *v)
{
    char c;
    caller = gettid();
    return (void *)recv(b, &c, 1, 0);
}
// Upgraded meanwhile: by what b sends and a receives.
static pthread_t inside(void)
{
    pthread_t t;
    char c;
    pairup(&a, &b);
    caller = 0;
    pthread_create(&t, 0, one, 0);
    until_it_waits(&caller);
    for (int i = 0; i < 40; i++) {
        send(b, "y", 1, 0);
        recv(a, &c, 1, 0);
    }
    return t;
}
static long result(pthread_t t)
{
    void *r;
    pthread_join(t, &r);
    return (long)r;
}
static const char *receive(int flags)
{
    char c;
    return recv(b, &c, 1, flags) < 0 ? (errno == EAGAIN ? "EAGAIN" : strerror(errno)) : "data";
}
int main(void)
{
    struct timeval tv = {0, 200000};
    char c;
    pthread_t t = inside();
    setsockopt(b, SOL_SOCKET, SO_RCVTIMEO, &tv, sizeof tv);
    printf("limit %s,", receive(0));
    printf(" %s\n", receive(MSG_WAITALL));
    send(a, "z", 1, 0);
    pthread_join(t, 0);

    t = inside();
    struct sigaction sa = {.sa_handler = nothing, .sa_flags = SA_RESTART};
    sigaction(SIGALRM, &sa, 0);
    struct itimerval often = {{0, 10000}, {0, 10000}}, never = {0};
    setitimer(ITIMER_REAL, &often, 0);
    if (fork() == 0) {
        ms(300);
        send(a, "zz", 2, 0);
        _exit(0);
    }
    int n = recv(b, &c, 1, 0);
    printf("restarted %d %ld\n", n, result(t));
    setitimer(ITIMER_REAL, &never, 0);
    wait(0);

    t = inside();
    close(b);
    ms(50);
    n = send(a, "z", 1, MSG_NOSIGNAL);
    long r = result(t);
    printf("close %d %ld", n, r);
    printf(" %ld\n", recv(a, &c, 1, 0));

    int x, y;
    pairup(&x, &y);
    t = inside();
    dup2(y, b);
    ms(50);
    n = send(a, "z", 1, MSG_NOSIGNAL);
    r = result(t);
    printf("dup2 %d %ld", n, r);
    printf(" %ld", recv(a, &c, 1, 0));
    send(x, "q", 1, 0);
    printf(" new %ld\n", recv(b, &c, 1, 0));
}
