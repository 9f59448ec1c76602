// What SO_SNDBUF, SO_RCVBUF and TCP_NOTSENT_LOWAT let be under way to a peer that does not read. Plain: "kept" everywhere.
#include "t.h"
static void set(int fd, int level, int name, int value)
{
    if (setsockopt(fd, level, name, &value, sizeof value))
        perror("setsockopt");
}
// Bytes until the socket takes no more for 100 ms.
static long fill(int fd)
{
    static char buf[16384];
    struct pollfd p = {fd, POLLOUT};
    long all = 0;
    for (ssize_t r; poll(&p, 1, 100) == 1 && (r = send(fd, buf, sizeof buf, MSG_DONTWAIT)) > 0;)
        all += r;
    return all;
}
static long drain(int fd)
{
    static char buf[65536];
    struct pollfd p = {fd, POLLIN};
    long all = 0;
    for (ssize_t r; poll(&p, 1, 300) == 1 && (r = recv(fd, buf, sizeof buf, MSG_DONTWAIT)) > 0;)
        all += r;
    return all;
}
static void judge(const char*what, int late, int fd, int peer, long most)
{
    long n = fill(fd), m = drain(peer);
    // Twice: what was read makes room again.
    long again = fill(fd), rest = drain(peer);
    fprintf(stderr, "# %s: %ld, %ld\n", what, n, again);
    printf("%s, set %s the upgrade: %s, %s\n", what, late ? "after" : "before",
           n > 0 && n <= most && again > 0 && again <= most ? "kept" : "not kept", n == m && again == rest ? "whole" : "torn");
}
static int a, b, done;
static void*pours(void*_)
{
    static char buf[300000];
    ssize_t r = send(a, buf, sizeof buf, 0);
    __atomic_store_n(&done, r == sizeof buf ? 1 : 2, __ATOMIC_SEQ_CST);
    return 0;
}
static void*widens(void*_)
{
    ms(200);
    set(a, SOL_SOCKET, SO_SNDBUF, 150000);
    return 0;
}
static void pair(int late, int sndbuf, int rcvbuf, int unsent)
{
    if (late)
        ready2(&a, &b);
    else
        pairup(&a, &b);
    if (sndbuf)
        set(a, SOL_SOCKET, SO_SNDBUF, sndbuf);
    if (rcvbuf)
        set(b, SOL_SOCKET, SO_RCVBUF, rcvbuf);
    if (unsent)
        set(a, IPPROTO_TCP, TCP_NOTSENT_LOWAT, unsent);
    if (!late) {
        warmup(a, b);
        fprintf(stderr, "# on ring: %d\n", onring(a, b));
    }
}
int main()
{
    setvbuf(stdout, 0, _IOLBF, 0);
    for (int late = 0; late < 2; late++) {
        pair(late, 4096, 4096, 0);
        judge("both 4 KiB", late, a, b, 100 << 10);
        close(a), close(b);
        pair(late, 65536, 65536, 0);
        judge("both 64 KiB", late, a, b, 512 << 10);
        close(a), close(b);
        pair(late, 8192, 0, 0);
        judge("SO_SNDBUF 8 KiB", late, a, b, 512 << 10);
        close(a), close(b);
        pair(late, 0, 0, 16384);
        judge("TCP_NOTSENT_LOWAT 16 KiB", late, a, b, 512 << 10);
        close(a), close(b);
    }
    // A send that waits goes on when the buffer is made larger.
    pair(1, 8192, 8192, 0);
    pthread_t t;
    pthread_create(&t, 0, pours, 0);
    ms(200);
    printf("a send of 300000 bytes into small buffers: %s\n", done ? "done" : "waits");
    set(a, SOL_SOCKET, SO_SNDBUF, 180000);
    set(a, SOL_SOCKET, SO_SNDBUFFORCE, 4 << 20);
    // At once or never, but the thread may have to wait for a processor.
    for (double end = now() + HANGS; !__atomic_load_n(&done, __ATOMIC_SEQ_CST) && now() < end;)
        ms(10);
    printf("with SO_SNDBUF made larger: %s\n", done == 1 ? "done" : "waits");
    int all = drain(b);
    pthread_join(t, 0);
    all += drain(b);
    printf("received: %d\n", all);
    // And so does epoll_wait.
    pair(1, 8192, 8192, 0);
    int e = epoll_create1(0);
    struct epoll_event ev = {EPOLLOUT | EPOLLET, {.fd = a}};
    fill(a);
    epoll_ctl(e, EPOLL_CTL_ADD, a, &ev);
    printf("EPOLLOUT with small buffers: %d\n", epoll_wait(e, &ev, 1, 100));
    pthread_create(&t, 0, widens, 0);
    printf("EPOLLOUT with SO_SNDBUF made larger: %d\n", epoll_wait(e, &ev, 1, HANGS * 1000));
    pthread_join(t, 0);
    return 0;
}
