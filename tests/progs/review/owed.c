// More lies unread in a ring than a socket takes when the reader's descriptor goes to a program of another kind. The writer sends the rest while it waits for the answer, by whatever call it waits, in front of what others send, and before it ends.
#include "t.h"
#include <spawn.h>
#include <sys/select.h>
#define MOST (8 << 20)
extern char **environ;
static char buf[MOST];
static void pattern(void)
{
    for (int i = 0; i < MOST; i++)
        buf[i] = 'a' + i % 23;
}
static int take(int s, int n)
{
    char at[8];
    for (int d = 0, r; d < n; d += r)
        if ((r = recv(s, at, n - d, 0)) <= 0)
            return 0;
    return 1;
}
enum { POLL, POLL_ROOM, SELECT, EPOLL, EDGE, ONESHOT, RECV, ALL, PEEK_ALL, SPLICE, SEND, DPRINTF, FGETS, RESET, CLOSE, HOWS };
/* Waits for the answer of ten bytes; how many of them came. */
static int answer(int s, int how, int set)
{
    char at[10];
    struct epoll_event e;
    int p[2], r = -1;
    rescue();
    for (;;) {
        struct pollfd f = {s, POLLIN, 0};
        fd_set rs;
        switch (how) {
        case POLL:
            poll(&f, 1, -1);
            break;
        case POLL_ROOM:
            f.events = POLLOUT;
            poll(&f, 1, -1);
            f.events = POLLIN;
            poll(&f, 1, -1);
            break;
        case SELECT:
            FD_ZERO(&rs);
            FD_SET(s, &rs);
            select(s + 1, &rs, 0, 0, 0);
            break;
        case EPOLL:
        case EDGE:
        case ONESHOT:
            epoll_wait(set, &e, 1, -1);
            break;
        case RECV:
            return recv(s, at, 1, 0) == 1 ? 1 + recv(s, at, 9, MSG_WAITALL) : -1;
        case ALL:
            return recv(s, at, 10, MSG_WAITALL);
        case PEEK_ALL:
            return recv(s, at, 10, MSG_WAITALL | MSG_PEEK);
        case SPLICE:
            pipe(p);
            for (r = 0; r < 10;)
                r += splice(s, 0, p[1], 0, 10, 0);
            return r;
        case DPRINTF:
            dprintf(s, "end");
            return recv(s, at, 10, MSG_WAITALL);
        case FGETS: {
            char line[11];
            FILE *file = fdopen(s, "r+");
            return fgets(line, 11, file) ? strlen(line) : -1;
        }
        case RESET: {
            struct pollfd f = {s, POLLIN, 0};
            poll(&f, 1, -1);
            r = f.revents & POLLERR ? 5 : 0;
            return recv(s, at, 10, 0) < 0 && errno == ECONNRESET ? r + 5 : r;
        }
        case SEND:
            while (send(s, "end", 3, 0) < 0)
                ;
            return recv(s, at, 10, MSG_WAITALL);
        }
        if ((r = recv(s, at, 10, MSG_DONTWAIT | MSG_WAITALL)) >= 0 || errno != EAGAIN)
            return r;
        if (how == ONESHOT) {
            e = (struct epoll_event){.events = EPOLLIN | EPOLLONESHOT};
            epoll_ctl(set, EPOLL_CTL_MOD, s, &e);
        }
    }
}
static int listener(struct sockaddr_in *a)
{
    int l = socket(AF_INET, SOCK_STREAM, 0);
    *a = (struct sockaddr_in){AF_INET, 0, {htonl(INADDR_LOOPBACK)}};
    socklen_t len = sizeof *a;
    bind(l, (void *)a, len);
    listen(l, 1);
    getsockname(l, (void *)a, &len);
    return l;
}
/* Sends as much as is taken, says so, and waits until the reader's end has been given away. */
static void pours(int s, int out, int in)
{
    int n = 0, r;
    for (int i = 0; i < 20; i++) {
        send(s, buf, 8, 0);
        take(s, 8);
    }
    while (n < MOST && (r = send(s, buf + n, MOST - n, MSG_DONTWAIT)) > 0)
        n += r;
    write(out, &n, sizeof n);
    read(in, &r, 1);
}
/* The reader's side of that; how many bytes it was. */
static int gives_away(int s, int in, int out)
{
    int sent;
    pid_t q;
    char *args[] = {"true", 0};
    for (int i = 0; i < 20; i++) {
        take(s, 8);
        send(s, buf, 8, 0);
    }
    read(in, &sent, sizeof sent);
    posix_spawnp(&q, "true", 0, 0, args, environ);
    waitpid(q, 0, 0);
    write(out, "x", 1);
    /* The writer is to sleep before it is read from. */
    usleep(100000);
    return sent;
}
static void writer(struct sockaddr_in *a, int size, int how, int out, int in)
{
    int s = socket(AF_INET, SOCK_STREAM, 0), set = epoll_create1(0);
    if (size)
        setsockopt(s, SOL_SOCKET, SO_SNDBUF, &size, sizeof size);
    if (connect(s, (void *)a, sizeof *a))
        exit(3);
    struct epoll_event e = {.events = EPOLLIN};
    e.events |= how == EDGE ? EPOLLET : how == ONESHOT ? EPOLLONESHOT : 0;
    if (how >= EPOLL && how <= ONESHOT)
        epoll_ctl(set, EPOLL_CTL_ADD, s, &e);
    pours(s, out, in);
    if (how == CLOSE) {
        close(s);
        exit(10);
    }
    exit(answer(s, how, set));
}
static void round_of(int size, int how)
{
    struct sockaddr_in a;
    int l = listener(&a), there[2], back[2], sent, end;
    pipe2(there, O_CLOEXEC);
    pipe2(back, O_CLOEXEC);
    pid_t p = fork();
    if (p == 0)
        writer(&a, size, how, there[1], back[0]);
    int s = accept(l, 0, 0);
    sent = gives_away(s, there[0], back[1]);
    static char got[MOST + 16];
    struct timeval limit = {20, 0};
    setsockopt(s, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof limit);
    int n = 0, r = 1, wrong = 0, more = how == SEND || how == DPRINTF ? 3 : 0;
    if (how == RESET) {
        struct linger hard = {1, 0};
        setsockopt(s, SOL_SOCKET, SO_LINGER, &hard, sizeof hard);
        close(s);
        n = sent;
        memcpy(got, buf, n);
    }
    while (n < sent + more && (r = recv(s, got + n, sent + more - n, 0)) > 0)
        n += r;
    for (int i = 0; i < n && i < sent; i++)
        wrong += got[i] != buf[i];
    for (int i = sent; i < n; i++)
        wrong += got[i] != "end"[i - sent];
    if (how == CLOSE)
        r = recv(s, got, 1, 0);
    else if (how != RESET)
        send(s, "0123456789", 10, 0);
    waitpid(p, &end, 0);
    printf("%d %d: %s, %d wrong, end %s, answer %d, signal %d\n", size, how, n == sent + more ? "all" : "not all", wrong,
           how == CLOSE && r == 0 ? "clean" : "none", end >> 8, end & 127);
    close(s);
    close(l);
    for (int i = 0; i < 2; i++) {
        close(there[i]);
        close(back[i]);
    }
}
/* The first process of a family writes, and ends without a call behind the return; with `hard` by _exit. */
static int ends(int hard)
{
    struct sockaddr_in a;
    int l = listener(&a), there[2], back[2], n = 0, r, size = 65536;
    pipe2(there, O_CLOEXEC);
    pipe2(back, O_CLOEXEC);
    if (fork() == 0) {
        int s = accept(l, 0, 0), sent, wrong = 0;
        sent = gives_away(s, there[0], back[1]);
        static char got[MOST];
        while ((r = recv(s, got + n, MOST - n, 0)) > 0)
            n += r;
        for (int i = 0; i < n; i++)
            wrong += got[i] != buf[i];
        printf("ends %d: %s, %d wrong, end %s\n", hard, n == sent ? "all" : "not all", wrong, r == 0 ? "clean" : "none");
        exit(0);
    }
    int s = socket(AF_INET, SOCK_STREAM, 0);
    setsockopt(s, SOL_SOCKET, SO_SNDBUF, &size, sizeof size);
    connect(s, (void *)&a, sizeof a);
    pours(s, there[1], back[0]);
    if (hard)
        _exit(0);
    return 0;
}
int main(int count, char **args)
{
    pattern();
    setlinebuf(stdout);
    if (count > 1)
        return ends(atoi(args[1]));
    for (int hard = 0; hard < 2; hard++) {
        int done[2];
        char *again[] = {args[0], hard ? "1" : "0", 0}, none;
        pipe(done);
        if (fork() == 0) {
            close(done[0]);
            execv("/proc/self/exe", again);
        }
        close(done[1]);
        /* Until the reader has ended, too. */
        read(done[0], &none, 1);
        wait(0);
    }
    for (int how = 0; how < HOWS; how++)
        round_of(65536, how);
    /* With the size that the kernel chooses the ring is larger, too. */
    round_of(0, POLL);
    round_of(0, EPOLL);
    return 0;
}
