/* Ends: half-close, close, reset, broken pipe, and what poll and epoll say of each. */
#include "sem.h"
#include <sys/epoll.h>

static volatile sig_atomic_t pipes;

static void on_pipe(int s) { (void)s; pipes++; }

static const char *events(int mask)
{
    static const struct { int bit; const char *name; } names[] = {
        { EPOLLIN, "IN" }, { EPOLLPRI, "PRI" }, { EPOLLOUT, "OUT" }, { EPOLLERR, "ERR" }, { EPOLLHUP, "HUP" },
        { EPOLLRDNORM, "RDNORM" }, { EPOLLWRNORM, "WRNORM" }, { EPOLLRDHUP, "RDHUP" }, { POLLNVAL, "NVAL" } };
    static char text[4][100];
    static int turn;
    char *t = text[turn++ % 4];
    t[0] = 0;
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        if (mask & names[i].bit) {
            strcat(t, t[0] ? "|" : "");
            strcat(t, names[i].name);
        }
    return t[0] ? t : "none";
}

static void look(int fd, const char *when)
{
    struct pollfd p = { .fd = fd, .events = POLLIN | POLLOUT | POLLPRI | POLLRDHUP };
    int n = poll(&p, 1, 0), set = MUST(epoll_create1(0));
    struct epoll_event e = { .events = EPOLLIN | EPOLLOUT | EPOLLPRI | EPOLLRDHUP };
    MUST(epoll_ctl(set, EPOLL_CTL_ADD, fd, &e));
    e.events = 0;
    int m = epoll_wait(set, &e, 1, 0);
    say("%s: poll %d %s, epoll %d %s", when, n, events(n > 0 ? p.revents : 0), m, events(m > 0 ? (int)e.events : 0));
    p.events = 0;
    n = poll(&p, 1, 0);
    say("%s: asked for nothing %d %s", when, n, events(n > 0 ? p.revents : 0));
    close(set);
}

static void peer_half_closes(void)
{
    int fd = fresh("the peer half-closes");
    look(fd, "idle");
    tell('w', 10);
    look(fd, "data");
    tell('s', 0);
    look(fd, "data and end");
    say("recv %s", result(take(fd, 100, 0)));
    look(fd, "end");
    say("recv %s", result(take(fd, 100, 0)));
    say("recv %s", result(take(fd, 100, MSG_DONTWAIT)));
    say("send %s", result(put(fd, 50, 0)));
    say("helper got %d", ask('r', 50, 0).value);
    say("shutdown %s", result(shutdown(fd, SHUT_WR)));
    settle();
    look(fd, "both ended");
    struct reply r = ask('R', 0, 0);
    say("helper then reads %d %s", r.value, ename(r.error));
    close(fd);
}

static void we_half_close(void)
{
    int fd = fresh("we half-close");
    say("send %s", result(put(fd, 70, 0)));
    say("shutdown %s", result(shutdown(fd, SHUT_WR)));
    look(fd, "after shutdown");
    struct reply r = ask('R', 0, 0);
    say("helper reads %d %s", r.value, ename(r.error));
    say("send %s", result(put(fd, 1, MSG_NOSIGNAL)));
    tell('w', 5000);
    look(fd, "data back");
    say("recv %s", result(take(fd, 5000, MSG_WAITALL)));
    say("recv dontwait %s", result(take(fd, 10, MSG_DONTWAIT)));
    tell('c', 0);
    look(fd, "closed");
    say("recv %s", result(take(fd, 10, 0)));
    close(fd);
}

static void read_side(void)
{
    int fd = fresh("shutdown of the read side");
    say("shutdown %s", result(shutdown(fd, SHUT_RD)));
    look(fd, "after it");
    say("recv %s", result(take(fd, 10, 0)));
    say("send %s", result(put(fd, 30, 0)));
    say("helper got %d", ask('r', 30, 0).value);
    say("shutdown both %s", result(shutdown(fd, SHUT_RDWR)));
    settle();
    look(fd, "both");
    struct reply r = ask('R', 0, 0);
    say("helper reads %d %s", r.value, ename(r.error));
    close(fd);
}

static void broken_pipe(void)
{
    int fd = fresh("broken pipe");
    signal(SIGPIPE, on_pipe);
    pipes = 0;
    tell('c', 0);
    look(fd, "closed by the peer");
    say("recv %s", result(take(fd, 10, 0)));
    say("first send %s", result(put(fd, 10, 0)));
    settle();
    look(fd, "after it");
    say("second send %s", result(put(fd, 10, 0)));
    say("signals %d", (int)pipes);
    say("write %s", result(write(fd, "x", 1)));
    say("signals %d", (int)pipes);
    say("MSG_NOSIGNAL %s", result(put(fd, 10, MSG_NOSIGNAL)));
    say("signals %d", (int)pipes);
    say("recv %s", result(take(fd, 10, 0)));
    close(fd);
    fd = fresh("broken pipe after our own shutdown");
    pipes = 0;
    MUST(shutdown(fd, SHUT_WR));
    say("send %s", result(put(fd, 10, 0)));
    say("signals %d", (int)pipes);
    struct iovec v = { "abc", 3 };
    say("writev %s", result(writev(fd, &v, 1)));
    say("signals %d", (int)pipes);
    close(fd);
    signal(SIGPIPE, SIG_DFL);
}

static void resets(void)
{
    int fd = fresh("reset by linger 0");
    tell('l', 0);
    look(fd, "reset");
    say("recv %s", result(take(fd, 10, 0)));
    say("recv %s", result(take(fd, 10, 0)));
    look(fd, "reported");
    say("send %s", result(put(fd, 10, MSG_NOSIGNAL)));
    close(fd);

    fd = fresh("reset seen by a send");
    tell('l', 0);
    say("send %s", result(put(fd, 10, MSG_NOSIGNAL)));
    say("send %s", result(put(fd, 10, MSG_NOSIGNAL)));
    say("recv %s", result(take(fd, 10, 0)));
    close(fd);

    fd = fresh("reset seen by SO_ERROR");
    int v = -1;
    socklen_t len = sizeof v;
    tell('l', 0);
    MUST(getsockopt(fd, SOL_SOCKET, SO_ERROR, &v, &len));
    say("SO_ERROR %s", ename(v));
    MUST(getsockopt(fd, SOL_SOCKET, SO_ERROR, &v, &len));
    say("SO_ERROR %d", v);
    say("recv %s", result(take(fd, 10, 0)));
    close(fd);

    fd = fresh("reset wakes a blocked receive");
    ask('X', 50, 'l');
    say("recv %s", result(take(fd, 10, 0)));
    close(fd);

    fd = fresh("close with unread data resets the peer");
    tell('w', 100);
    close(fd);
    settle();
    struct reply r = ask('R', 0, 0);
    say("helper reads %d %s", r.value, ename(r.error));

    fd = fresh("close with everything read does not");
    tell('w', 100);
    say("recv %s", result(take(fd, 100, MSG_WAITALL)));
    put(fd, 33, 0);
    close(fd);
    r = ask('R', 0, 0);
    say("helper reads %d %s", r.value, ename(r.error));

    fd = fresh("our linger 0 resets the peer");
    struct linger now = { 1, 0 };
    MUST(setsockopt(fd, SOL_SOCKET, SO_LINGER, &now, sizeof now));
    close(fd);
    settle();
    r = ask('R', 0, 0);
    say("helper reads %d %s", r.value, ename(r.error));
}

static void late_data(void)
{
    int fd = fresh("data sent before a close arrives after it");
    say("send %s", result(put(fd, 40000, 0)));
    close(fd);
    nap(100);
    struct reply r = ask('R', 0, 0);
    say("helper reads %d %s", r.value, ename(r.error));

    fd = fresh("the same from the peer");
    tell('w', 40000);
    tell('c', 0);
    say("recv %s", result(take(fd, 40000, MSG_WAITALL)));
    say("recv %s", result(take(fd, 1, 0)));
    close(fd);

    fd = fresh("the end wakes a blocked receive");
    ask('X', 50, 's');
    say("recv %s", result(take(fd, 10, 0)));
    say("send %s", result(put(fd, 10, 0)));
    say("helper got %d", ask('r', 10, 0).value);
    close(fd);

    fd = fresh("poll on a closed number");
    close(fd);
    struct pollfd p = { .fd = fd, .events = POLLIN };
    int n = poll(&p, 1, 0);
    say("poll %d %s", n, events(p.revents));
}

static void cases(void)
{
    peer_half_closes();
    we_half_close();
    read_side();
    broken_pipe();
    resets();
    late_data();
}
