// Ends that write more than a ring holds, and less than TCP's buffers do, before either reads. Run with small rings. Plain: "whole" everywhere.
#include "t.h"
enum { SIZE = 1 << 20, BLOCKING = 0, POLL, EPOLL, EDGES, ELSEWHERE, WAYS };
static const char*ways[] = {"send", "poll", "epoll", "edges", "edges of another thread"};
static unsigned char byte(long at, int from)
{
    return at * 31 + at / 977 + from;
}
static void fill(int fd, int how, int from)
{
    int e = epoll_create1(0);
    struct epoll_event ev = {how >= EDGES ? EPOLLIN | EPOLLOUT | EPOLLET : EPOLLOUT, {.fd = fd}};
    struct pollfd p = {fd, POLLOUT};
    if (how >= EPOLL)
        epoll_ctl(e, EPOLL_CTL_ADD, fd, &ev);
    for (long at = 0; at < SIZE;) {
        static __thread unsigned char buf[100000];
        long n = SIZE - at < sizeof buf ? SIZE - at : sizeof buf;
        for (long i = 0; i < n; i++)
            buf[i] = byte(at + i, from);
        ssize_t r = send(fd, buf, n, how ? MSG_DONTWAIT : 0);
        if (r > 0) {
            at += r;
            continue;
        }
        if (errno != EAGAIN) {
            perror("send");
            exit(1);
        }
        if (how == POLL)
            poll(&p, 1, -1);
        else
            epoll_wait(e, &ev, 1, -1);
    }
    close(e);
}
static const char*take(int fd, int from)
{
    long at = 0;
    int torn = 0;
    while (at < SIZE) {
        static __thread unsigned char buf[100000];
        ssize_t r = recv(fd, buf, SIZE - at < sizeof buf ? SIZE - at : sizeof buf, 0);
        if (r <= 0)
            return "ended";
        for (long i = 0; i < r; i++)
            torn |= buf[i] != byte(at + i, from);
        at += r;
    }
    return torn ? "torn" : "whole";
}
// A thread sleeps for edges; this one sends, and after "no room" waits for what that one says.
static int set, told[2];
static void*waits(void*_)
{
    struct epoll_event ev;
    for (char c = 0; epoll_wait(set, &ev, 1, -1) == 1 && !(ev.events & EPOLLRDHUP);)
        if (ev.events & EPOLLOUT)
            write(told[1], &c, 1);
    return 0;
}
static void fill_elsewhere(int fd, int from, pthread_t*t)
{
    static unsigned char buf[100000];
    struct epoll_event ev = {EPOLLIN | EPOLLOUT | EPOLLET | EPOLLRDHUP, {.fd = fd}};
    set = epoll_create1(0);
    pipe2(told, O_NONBLOCK);
    epoll_ctl(set, EPOLL_CTL_ADD, fd, &ev);
    pthread_create(t, 0, waits, 0);
    ms(300);
    for (long at = 0; at < SIZE;) {
        struct pollfd p = {told[0], POLLIN};
        char c;
        long n = SIZE - at < sizeof buf ? SIZE - at : sizeof buf;
        while (read(told[0], &c, 1) == 1)
            ;
        for (long i = 0; i < n; i++)
            buf[i] = byte(at + i, from);
        ssize_t r = send(fd, buf, n, MSG_DONTWAIT);
        if (r > 0)
            at += r;
        else
            poll(&p, 1, -1);
    }
}
static void between_processes(int how)
{
    int a, b, status;
    char c = 0;
    pthread_t t;
    pairup(&a, &b);
    pid_t child = fork();
    int fd = child ? a : b;
    close(child ? b : a);
    for (int i = 0; i < 300; i++)
        if (child ? send(fd, &c, 1, 0) != 1 || recv(fd, &c, 1, 0) != 1 : recv(fd, &c, 1, 0) != 1 || send(fd, &c, 1, 0) != 1)
            perror("warm");
    if (how == ELSEWHERE)
        fill_elsewhere(fd, !child, &t);
    else
        fill(fd, how, !child);
    const char*got = take(fd, !!child);
    // And it goes on.
    for (int i = 0; i < 50; i++)
        if (child ? send(fd, &c, 1, 0) != 1 || recv(fd, &c, 1, 0) != 1 : recv(fd, &c, 1, 0) != 1 || send(fd, &c, 1, 0) != 1)
            got = "lost";
    if (!child) {
        shutdown(fd, SHUT_WR);
        recv(fd, &c, 1, 0);
        _exit(got[0] != 'w');
    }
    recv(fd, &c, 1, 0);
    shutdown(fd, SHUT_WR);
    waitpid(child, &status, 0);
    printf("two processes, %s: %s, %s\n", ways[how], got, status ? "and the other not" : "whole");
    close(fd);
}
int main()
{
    int a, b;
    setvbuf(stdout, 0, _IOLBF, 0);
    // One thread has both ends.
    ready2(&a, &b);
    fill(a, BLOCKING, 1);
    fill(b, BLOCKING, 0);
    const char*there = take(b, 1), *here = take(a, 0);
    printf("one thread: %s, %s\n", there, here);
    close(a), close(b);
    for (int how = 0; how < WAYS; how++)
        between_processes(how);
    return 0;
}
