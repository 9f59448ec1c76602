// TCP_USER_TIMEOUT against a peer that does not read: ETIMEDOUT from a send that blocks, and from poll and epoll ERR and HUP; also by the listener's.
// A peer that reads, if slowly, is waited for. Plain: the same.
#include "t.h"
static int a, b;
static volatile pid_t caller;
static double last, longest;
static char junk[1 << 16];
// The handshake may take longer behind connections that have just ended.
static void ready(void)
{
    int times = 0;
    pairup(&a, &b);
    do
        warmup(a, b);
    while (!(onring(a, b) && onring(b, a)) && ++times < 30 && (ms(1), 1));
    fprintf(stderr, "# on ring: %d\n", times < 30);
}
static void end(const char *what)
{
    int e = -1, r;
    socklen_t l = sizeof e;
    getsockopt(a, SOL_SOCKET, SO_ERROR, &e, &l);
    printf("%s: SO_ERROR %s", what, e ? strerrorname_np(e) : "0");
    printf(", then recv %zd\n", recv(a, junk, 1, 0));
    close(a);
    // The peer gets no orderly end, of which it would make that it has all.
    while ((r = recv(b, junk, sizeof junk, 0)) > 0);
    printf("%s: the peer's receive ends with %s\n", what, r < 0 ? strerrorname_np(errno) : "the end");
    close(b);
}
static void fill(void)
{
    while (send(a, junk, sizeof junk, MSG_DONTWAIT | MSG_NOSIGNAL) > 0);
    while (send(a, junk, 1, MSG_DONTWAIT | MSG_NOSIGNAL) > 0);
}
static void limit(int fd)
{
    int ms = 400;
    if (setsockopt(fd, IPPROTO_TCP, TCP_USER_TIMEOUT, &ms, sizeof ms))
        perror("TCP_USER_TIMEOUT");
}
static void blocks(const char *what)
{
    long r;
    while ((r = send(a, junk, sizeof junk, MSG_NOSIGNAL)) > 0);
    printf("%s: send %ld %s\n", what, r, strerrorname_np(errno));
    printf("%s: recv %zd\n", what, recv(a, junk, 1, 0));
    close(a);
    close(b);
}
static void *reads(void *v)
{
    for (int i = 0; i < 25; i++) {
        ms(60);
        for (int n = 0; n < 300000;) {
            int k = recv(b, junk, sizeof junk, 0);
            if (k <= 0)
                return 0;
            n += k;
            if (now() - last > longest)
                longest = now() - last;
            last = now();
        }
    }
    return 0;
}
static void *waits(void *v)
{
    struct epoll_event e = {0};
    caller = gettid();
    int n = epoll_wait(*(int *)v, &e, 1, 15000);
    printf("another thread's set: %d, %x\n", n, e.events & ~(EPOLLIN | EPOLLRDHUP));
    return 0;
}
static int to_a_slow_peer(void)
{
    pthread_t t;
    long sent = 0, r = 0;
    ready();
    limit(a);
    longest = 0, last = now();
    pthread_create(&t, 0, reads, 0);
    while (sent < 5000000 && (r = send(a, junk, 50000, MSG_NOSIGNAL)) > 0)
        sent += r;
    int why = r > 0 ? 0 : errno;
    close(a);
    pthread_join(t, 0);
    close(b);
    return why;
}
int main()
{
    setvbuf(stdout, 0, _IOLBF, 0);
    rescue();
    ready();
    limit(a);
    blocks("blocking");

    ready();
    limit(a);
    fill();
    struct pollfd p = {.fd = a, .events = POLLOUT};
    int n = poll(&p, 1, 15000);
    printf("poll %d %x\n", n, p.revents);
    end("poll");

    for (int edge = 0; edge < 2; edge++) {
        ready();
        limit(a);
        int set = epoll_create1(0);
        struct epoll_event e = {.events = EPOLLIN | EPOLLOUT | (edge ? EPOLLET : 0)};
        epoll_ctl(set, EPOLL_CTL_ADD, a, &e);
        epoll_wait(set, &e, 1, 0);
        fill();
        e.events = 0;
        n = epoll_wait(set, &e, 1, 15000);
        printf("epoll %d %x\n", n, e.events & ~(EPOLLIN | EPOLLRDHUP));
        end("epoll");
        close(set);
    }

    // Room is waited for before each send, so none ever finds too little.
    ready();
    limit(a);
    p.fd = a;
    while ((n = poll(&p, 1, 15000)) == 1 && p.revents == POLLOUT)
        send(a, junk, 4096, MSG_DONTWAIT | MSG_NOSIGNAL);
    printf("poll in front of each send: %d %x\n", n, p.revents);
    end("poll in front");

    // The peer reads once, and less than makes room.
    ready();
    limit(a);
    fill();
    ms(150);
    recv(b, junk, 1000, 0);
    n = poll(&p, 1, 15000);
    printf("a short read: %d %x\n", n, p.revents);
    end("a short read");

    // The set is waited for before the buffers are full.
    ready();
    limit(a);
    int set = epoll_create1(0);
    struct epoll_event e = {.events = EPOLLIN | EPOLLOUT | EPOLLET};
    epoll_ctl(set, EPOLL_CTL_ADD, a, &e);
    epoll_wait(set, &e, 1, 0);
    pthread_t t;
    pthread_create(&t, 0, waits, &set);
    until_it_waits(&caller);
    fill();
    pthread_join(t, 0);
    end("another thread");

    // Again, where the peer was slower than it wanted to be: its thread got no processor.
    int why, tries = 0;
    do
        why = to_a_slow_peer();
    while (longest > 0.3 && ++tries < 10);
    printf("to a slow peer: %s\n", why ? strerrorname_np(why) : "all");

    // The listener has it.
    int l = socket(AF_INET, SOCK_STREAM, 0);
    struct sockaddr_in s = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t len = sizeof s;
    bind(l, (void *)&s, len);
    limit(l);
    listen(l, 1);
    getsockname(l, (void *)&s, &len);
    b = socket(AF_INET, SOCK_STREAM, 0);
    connect(b, (void *)&s, len);
    a = accept(l, 0, 0);
    warmup(a, b);
    fprintf(stderr, "# on ring: %d\n", onring(a, b));
    blocks("inherited");
    return 0;
}
