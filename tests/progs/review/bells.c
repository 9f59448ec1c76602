// What is done to a connection under a receive that has slept on it many times before.
#include "t.h"

enum { OFTEN = 14 };
static pthread_mutex_t turn[2] = {PTHREAD_MUTEX_INITIALIZER, PTHREAD_MUTEX_INITIALIZER};
static int there[2], here[2];

static struct reader {
    int fd, total, end;
    volatile pid_t caller;
} one;
static volatile pid_t first;

static void*reads(void*arg)
{
    struct reader*me = arg;
    char c[64];
    ssize_t r;
    me->caller = gettid();
    while ((r = recv(me->fd, c, sizeof c, 0)) > 0)
        __atomic_add_fetch(&me->total, r, __ATOMIC_SEQ_CST);
    me->end = r < 0 ? errno : 0;
    return 0;
}

static int joined(pthread_t t)
{
    struct timespec ts;
    clock_gettime(CLOCK_REALTIME, &ts);
    ts.tv_sec += HANGS;
    return pthread_timedjoin_np(t, 0, &ts);
}

// One byte after the other, each while the reader sleeps.
static void drip(int to, int n)
{
    while (n--) {
        ms(4);
        send(to, "x", 1, MSG_NOSIGNAL);
    }
    ms(30);
}

// Until the reader has so many bytes and sleeps again.
static void has(int total)
{
    for (double end = now() + HANGS; __atomic_load_n(&one.total, __ATOMIC_SEQ_CST) < total && now() < end;)
        ms(1);
    until_it_waits(&one.caller);
}

static void closed_under_it(void)
{
    int a, b;
    pthread_t t;
    ready2(&a, &b);
    one = (struct reader){a};
    pthread_create(&t, 0, reads, &one);
    drip(b, OFTEN);
    has(OFTEN);
    close(a);
    ms(30);
    char c;
    printf("closed under a receive: the peer sees %zd", recv(b, &c, 1, MSG_DONTWAIT));
    printf(" %s\n", strerror(errno));
    send(b, "hello", 5, MSG_NOSIGNAL);
    int r = joined(t);
    printf("it gets %d bytes, then: %s (join %d)\n", one.total, strerror(one.end), r);
    close(b);
}

static int set;

static void*waits(void*_)
{
    struct epoll_event e[4];
    char c;
    while (epoll_wait(set, e, 4, -1) > 0)
        if (recv(e[0].data.fd, &c, 1, MSG_DONTWAIT) > 0 && c == 'e')
            break;
    return 0;
}

static void added_under_it(void)
{
    int a, b, c, d;
    pthread_t t, w;
    set = epoll_create1(0);
    ready2(&a, &b);
    ready2(&c, &d);
    struct epoll_event e = {.events = EPOLLIN, .data.fd = c};
    epoll_ctl(set, EPOLL_CTL_ADD, c, &e);
    pthread_create(&w, 0, waits, 0);
    drip(d, OFTEN);
    one = (struct reader){a};
    pthread_create(&t, 0, reads, &one);
    drip(b, OFTEN);
    has(OFTEN);
    // Not for data: the receive alone waits for that.
    e = (struct epoll_event){.events = EPOLLRDHUP, .data.fd = a};
    epoll_ctl(set, EPOLL_CTL_ADD, a, &e);
    ms(30);
    drip(b, OFTEN);
    has(2 * OFTEN);
    printf("added to a set under a receive: it gets %d bytes\n", one.total);
    epoll_ctl(set, EPOLL_CTL_DEL, a, 0);
    send(d, "e", 1, MSG_NOSIGNAL);
    printf("the set is woken: join %d\n", joined(w));
    shutdown(b, SHUT_WR);
    printf("the receive is woken: join %d\n", joined(t));
    close(a), close(b), close(c), close(d), close(set);
}

static void*takes_turns(void*arg)
{
    unsigned long n = 0, seed = (unsigned long)arg;
    for (int open = 3; open;) {
        seed = seed * 6364136223846793005ul + 1442695040888963407ul;
        int at = open == 3 ? seed >> 63 : open - 1;
        char c;
        pthread_mutex_lock(&turn[at]);
        ssize_t r = recv(here[at], &c, 1, 0);
        pthread_mutex_unlock(&turn[at]);
        if (r == 1)
            n++;
        else
            open &= ~(1 << at);
    }
    return (void*)n;
}

static void handed_over(void)
{
    pthread_t t[2];
    void*got[2] = {0};
    for (int i = 0; i < 2; i++)
        ready2(&here[i], &there[i]);
    for (long i = 0; i < 2; i++)
        pthread_create(&t[i], 0, takes_turns, (void*)(i + 1));
    for (int i = 0; i < 4000; i++) {
        send(there[i & 1], "x", 1, MSG_NOSIGNAL);
        if (i % 4 == 0)
            usleep(100);
    }
    for (int i = 0; i < 2; i++)
        close(there[i]);
    alarm(HANGS);
    for (int i = 0; i < 2; i++)
        pthread_join(t[i], &got[i]);
    alarm(0);
    printf("two threads take turns on two connections: %lu bytes\n", (unsigned long)got[0] + (unsigned long)got[1]);
    close(here[0]), close(here[1]);
}

// The peer, in a program of its own.
static int peer(int port)
{
    int fd = socket(AF_INET, SOCK_STREAM, 0);
    struct sockaddr_in s = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK), .sin_port = htons(port)};
    connect(fd, (void*)&s, sizeof s);
    char c;
    while (recv(fd, &c, 1, 0) == 1 && c != 'p')
        send(fd, &c, 1, 0);
    drip(fd, OFTEN);
    pause();
    return 0;
}

static void killed_meanwhile(char*self)
{
    int l = socket(AF_INET, SOCK_STREAM, 0), c, d;
    struct sockaddr_in s = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t n = sizeof s;
    char port[16], byte = 'x';
    bind(l, (void*)&s, n);
    listen(l, 1);
    getsockname(l, (void*)&s, &n);
    fcntl(l, F_SETFD, FD_CLOEXEC);
    snprintf(port, sizeof port, "%d", ntohs(s.sin_port));
    pid_t child = fork();
    if (child == 0) {
        execl(self, self, port, (char*)0);
        _exit(1);
    }
    int a = accept(l, 0, 0), got = 0;
    for (int i = 0; i < 60; i++) {
        send(a, "x", 1, 0);
        recv(a, &byte, 1, 0);
    }
    ready2(&c, &d);
    send(a, "p", 1, 0);
    while (got < OFTEN && recv(a, &byte, 1, 0) == 1)
        got++;
    ms(40);
    kill(child, SIGKILL);
    struct pollfd p = {c, POLLIN};
    int r = poll(&p, 1, 300);
    waitpid(child, 0, 0);
    alarm(HANGS);
    ssize_t end = recv(a, &byte, 1, 0);
    alarm(0);
    printf("killed while another one is polled (%d): after %d bytes %zd\n", r, got, end);
    close(a), close(c), close(d), close(l);
}

static int limited, sender;

static void*limits_and_sends(void*_)
{
    struct timeval tv = {0, 300000};
    until_it_waits(&first);
    setsockopt(limited, SOL_SOCKET, SO_RCVTIMEO, &tv, sizeof tv);
    ms(10);
    send(sender, "x", 1, MSG_NOSIGNAL);
    return 0;
}

static void*drips(void*_)
{
    drip(sender, OFTEN);
    return 0;
}

// A time limit that is set during a receive is that of the next one.
static void limited_meanwhile(void)
{
    pthread_t t;
    char c;
    int n = 0;
    ready2(&limited, &sender);
    pthread_create(&t, 0, drips, 0);
    while (n < OFTEN && recv(limited, &c, 1, 0) == 1)
        n++;
    pthread_join(t, 0);
    pthread_create(&t, 0, limits_and_sends, 0);
    n += recv(limited, &c, 1, 0);
    pthread_join(t, 0);
    alarm(HANGS);
    double begin = now();
    ssize_t r = recv(limited, &c, 1, 0);
    alarm(0);
    printf("limited meanwhile: %d bytes, then %zd %s, %s\n", n, r, strerror(errno),
           now() - begin < 0.2 ? "early" : "in time");
    close(limited), close(sender);
}

static void*sends_soon(void*arg)
{
    ms(30);
    send(*(int*)arg, "x", 1, MSG_NOSIGNAL);
    return 0;
}

static void polled_with_as_many_as_there_may_be(void)
{
    int a, b;
    pthread_t t;
    struct rlimit all, few;
    ready2(&a, &b);
    getrlimit(RLIMIT_NOFILE, &all);
    few = (struct rlimit){60, all.rlim_max};
    struct pollfd p[60];
    for (int i = 0; i < 60; i++)
        p[i] = (struct pollfd){i ? -1 : a, POLLIN};
    char c;
    int n = 0;
    for (int i = 0; i < OFTEN; i++) {
        if (i == OFTEN - 1)
            setrlimit(RLIMIT_NOFILE, &few);
        pthread_create(&t, 0, sends_soon, &b);
        n += poll(p, 60, HANGS * 1000);
        pthread_join(t, 0);
        recv(a, &c, 1, 0);
    }
    setrlimit(RLIMIT_NOFILE, &all);
    printf("polled with as many as there may be: %d\n", n);
    close(a), close(b);
}

static void one_after_the_other(void)
{
    int total = 0;
    for (int i = 0; i < 24; i++) {
        int a, b;
        pthread_t t;
        char c;
        pairup(&a, &b);
        warmup(a, b);
        for (int k = 0; k < 3; k++) {
            pthread_create(&t, 0, sends_soon, &b);
            total += recv(a, &c, 1, 0);
            pthread_join(t, 0);
        }
        close(a), close(b);
    }
    printf("connections one after the other: %d bytes\n", total);
}

int main(int argc, char**argv)
{
    setvbuf(stdout, 0, _IOLBF, 0);
    if (argc > 1)
        return peer(atoi(argv[1]));
    first = gettid();
    closed_under_it();
    added_under_it();
    handed_over();
    killed_meanwhile("/proc/self/exe");
    limited_meanwhile();
    polled_with_as_many_as_there_may_be();
    one_after_the_other();
    _exit(0);
}
