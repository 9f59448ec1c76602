/* connect, accept, bind, listen, names: what happens before there is a connection, and what one refuses. */
#include "frame.h"

static struct sockaddr_storage here;
#define LEN sizeof(struct sockaddr_in)

static struct sockaddr *to(int port)
{
    address(&here, port, 0);
    return (struct sockaddr *)&here;
}

/* What was sent to it by this process may lie in the kernel for a moment, also when the call has returned. */
static void arrived_at(int fd, int what) { MUST(poll(&(struct pollfd){ .fd = fd, .events = what }, 1, 5000)); }

/* Without Nagle's delays. */
static int tcp(void)
{
    int one = 1, fd = MUST(socket(AF_INET, SOCK_STREAM, 0));
    MUST(setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one));
    return fd;
}

CASE_PLAN(connect_refused, NO_CONNECTION)
{
    int fd = tcp(), holder = tcp();
    MUST(bind(holder, to(0), LEN));
    int port = port_of(holder);
    R(connect(fd, to(port), LEN));
    R(connect(fd, to(port), LEN));
    look(fd, "refused");
    R(put(fd, 5, MSG_NOSIGNAL));
    R(take(fd, 5, 0));
}

CASE_PLAN(connect_nonblocking, NO_CONNECTION)
{
    need_listener();
    int fd = MUST(socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK, 0)), v = -1;
    socklen_t len = sizeof v;
    look(fd, "fresh");
    R(connect(fd, to(case_port), LEN));
    struct pollfd p = { .fd = fd, .events = POLLOUT };
    R(poll(&p, 1, 5000));
    R(getsockopt(fd, SOL_SOCKET, SO_ERROR, &v, &len));
    say("SO_ERROR %d", v);
    R(connect(fd, to(case_port), LEN));
    R(connect(fd, to(case_port), LEN));
    look(fd, "connected");
}

CASE_PLAN(connect_nonblocking_refused, NO_CONNECTION)
{
    int fd = MUST(socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK, 0)), v = -1, holder = tcp();
    socklen_t len = sizeof v;
    MUST(bind(holder, to(0), LEN));
    R(connect(fd, to(port_of(holder)), LEN) < 0);
    struct pollfd p = { .fd = fd, .events = POLLOUT };
    R(poll(&p, 1, 5000));
    say("%s", mask_names(p.revents));
    R(getsockopt(fd, SOL_SOCKET, SO_ERROR, &v, &len));
    say("SO_ERROR %s", ename(v));
    R(getsockopt(fd, SOL_SOCKET, SO_ERROR, &v, &len));
    say("SO_ERROR %s", ename(v));
}

CASE(connect_again)
{
    int fd = fresh();
    struct sockaddr none = { .sa_family = AF_UNSPEC };
    R(connect(fd, to(9), LEN));
    R(connect(fd, to(9), 3));
    R(connect(fd, (struct sockaddr *)8, LEN));
    R(bind(fd, to(0), LEN));
    R(listen(fd, 5));
    R(accept(fd, NULL, NULL));
    tell('w', 4);
    R(take(fd, 4, 0));
    R(connect(fd, &none, sizeof none));
    look(fd, "disconnected");
    R(take(fd, 4, 0));
    R(put(fd, 4, MSG_NOSIGNAL));
    socklen_t len = sizeof here;
    R(getpeername(fd, (struct sockaddr *)&here, &len));
    struct reply r = ask('R', 0, 0);
    say("the peer ends with %s", ename(r.error));
}

/* The same socket makes a second connection. */
CASE_PLAN(connect_after_disconnect, STAYS_TCP)
{
    need_listener();
    int fd = tcp(), a, b;
    char c[8];
    struct sockaddr none = { .sa_family = AF_UNSPEC };
    for (int i = 0; i < 2; i++) {
        R(connect(fd, to(case_port), LEN));
        a = answer(listener);
        for (int k = 0; k < 40; k++) {
            send_all(a, "12345678", 8);
            recv_all(fd, c, 8);
            send_all(fd, "87654321", 8);
            recv_all(a, c, 8);
        }
        R(connect(fd, &none, sizeof none));
        b = recv(a, c, 8, 0);
        say("the other end reads %s", result(b));
        close(a);
    }
}

CASE_PLAN(connect_interrupted, NO_CONNECTION)
{
    /* A full backlog holds the next connection back. */
    int l = tcp(), fds[3];
    MUST(bind(l, to(0), LEN));
    MUST(listen(l, 0));
    int port = port_of(l);
    for (int i = 0; i < 3; i++) {
        fds[i] = MUST(socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK, 0));
        connect(fds[i], to(port), LEN);
    }
    arrived_at(l, POLLIN);
    int fd = tcp();
    struct timeval t = { 0, 60000 };
    R(setsockopt(fd, SOL_SOCKET, SO_SNDTIMEO, &t, sizeof t));
    R(connect(fd, to(port), LEN));
    R(connect(fd, to(port), LEN));
}

CASE_PLAN(accept_flags, NO_CONNECTION)
{
    need_listener();
    static const int flags[] = { 0, SOCK_NONBLOCK, SOCK_CLOEXEC, SOCK_NONBLOCK | SOCK_CLOEXEC };
    for (int i = 0; i < 4; i++) {
        int a = tcp();
        MUST(connect(a, to(case_port), LEN));
        int fd = accept4(listener, NULL, NULL, flags[i]);
        say("%x: nonblocking %d, close on exec %d", i, (fcntl(fd, F_GETFL) & O_NONBLOCK) != 0, fcntl(fd, F_GETFD));
    }
    R(accept4(listener, NULL, NULL, 12345));
    R(fcntl(listener, F_SETFL, O_NONBLOCK));
    R(accept(listener, NULL, NULL));
    int a = tcp();
    MUST(connect(a, to(case_port), LEN));
    struct pollfd p = { .fd = listener, .events = POLLIN };
    R(poll(&p, 1, 5000));
    int fd = accept(listener, NULL, NULL);
    say("nonblocking is not inherited %d", (fcntl(fd, F_GETFL) & O_NONBLOCK) == 0);
    R(accept(-1, NULL, NULL));
    R(accept(fd, NULL, NULL));
    R(accept(0, NULL, NULL));
}

CASE_PLAN(accept_addresses, NO_CONNECTION)
{
    need_listener();
    int a = tcp();
    struct sockaddr_storage ss;
    socklen_t len = 4;
    MUST(connect(a, to(case_port), LEN));
    memset(&ss, 0xee, sizeof ss);
    int fd = accept(listener, (struct sockaddr *)&ss, &len);
    say("accepted %d, length %u, byte 5 untouched %d", fd >= 0, len, ((unsigned char *)&ss)[5] == 0xee);
    a = tcp();
    MUST(connect(a, to(case_port), LEN));
    len = sizeof ss;
    fd = accept(listener, (struct sockaddr *)&ss, &len);
    say("length %u, port is right %d", len, ntohs(((struct sockaddr_in *)&ss)->sin_port) == port_of(a));
    a = tcp();
    MUST(connect(a, to(case_port), LEN));
    R(accept(listener, (struct sockaddr *)&ss, (socklen_t *)8));
    len = -1;
    a = tcp();
    MUST(connect(a, to(case_port), LEN));
    R(accept(listener, (struct sockaddr *)&ss, &len));
}

CASE_PLAN(accept_reset_while_waiting, NO_CONNECTION)
{
    need_listener();
    int a = tcp();
    struct linger l = { 1, 0 };
    char c;
    MUST(connect(a, to(case_port), LEN));
    setsockopt(a, SOL_SOCKET, SO_LINGER, &l, sizeof l);
    close(a);
    nap(10);
    int fd = accept(listener, NULL, NULL);
    say("accepted %d", fd >= 0);
    R(recv(fd, &c, 1, 0));
}

CASE_PLAN(accept_data_before, NO_CONNECTION)
{
    need_listener();
    int a = tcp();
    char c[8];
    MUST(connect(a, to(case_port), LEN));
    send_all(a, "early", 5);
    close(a);
    int fd = accept(listener, NULL, NULL);
    R(recv(fd, c, 8, MSG_WAITALL));
    R(recv(fd, c, 8, 0));
}

CASE_PLAN(accept_interrupted, NO_CONNECTION)
{
    need_listener();
    on(SIGUSR1, count_hit, 0);
    when_asleep('k', SIGUSR1, 0);
    R(accept(listener, NULL, NULL));
    struct timeval t = { 0, 30000 };
    R(setsockopt(listener, SOL_SOCKET, SO_RCVTIMEO, &t, sizeof t));
    R(accept(listener, NULL, NULL));
    look(listener, "idle listener");
    int a = tcp();
    MUST(connect(a, to(case_port), LEN));
    arrived_at(listener, POLLIN);
    look(listener, "a connection waits");
}

CASE_PLAN(accept_listener_shut, NO_CONNECTION)
{
    need_listener();
    R(shutdown(listener, SHUT_WR));
    R(shutdown(listener, SHUT_RD));
    R(accept(listener, NULL, NULL));
    look(listener, "shut");
    R(listen(listener, 5));
    int a = tcp();
    R(connect(a, to(case_port), LEN));
    R(accept(listener, NULL, NULL) >= 0);
}

CASE_PLAN(listen_rules, NO_CONNECTION)
{
    int fd = tcp(), udp = MUST(socket(AF_INET, SOCK_DGRAM, 0));
    R(listen(fd, -5));
    R(listen(fd, 1 << 30));
    R(bind(fd, to(0), LEN));
    R(connect(fd, to(9), LEN));
    R(listen(udp, 5));
    R(listen(-1, 5));
    need_listener();
    int other = tcp();
    R(bind(other, to(case_port), LEN));
    R(bind(other, to(0), 3));
    R(bind(other, (struct sockaddr *)8, LEN));
    struct sockaddr_in6 six = { .sin6_family = AF_INET6 };
    R(bind(other, (struct sockaddr *)&six, sizeof six));
    R(bind(other, to(0), LEN));
    R(bind(other, to(0), LEN));
}

CASE_PLAN(socket_rules, NO_CONNECTION)
{
    R(socket(AF_INET, 77, 0));
    R(socket(9999, SOCK_STREAM, 0));
    R(socket(AF_INET, SOCK_STREAM, IPPROTO_UDP));
    int fd = MUST(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, IPPROTO_TCP)), pair[2];
    say("flags %d %d", fcntl(fd, F_GETFD), (fcntl(fd, F_GETFL) & O_NONBLOCK) != 0);
    R(socketpair(AF_INET, SOCK_STREAM, 0, pair));
    int *volatile nowhere = (int *)8;
    R(socketpair(AF_UNIX, SOCK_STREAM, 0, nowhere));
    look(fd, "fresh");
    socklen_t len = sizeof here;
    R(getpeername(fd, to(0), &len));
    R(getsockname(fd, to(0), &len));
}

/* The listener wakes only when data is there; the first bytes must come by TCP. */
CASE_PLAN(accept_deferred, NO_CONNECTION)
{
    need_listener();
    int seconds = 3, a = tcp();
    char c[8];
    R(setsockopt(listener, IPPROTO_TCP, TCP_DEFER_ACCEPT, &seconds, sizeof seconds));
    MUST(connect(a, to(case_port), LEN));
    struct pollfd p = { .fd = listener, .events = POLLIN };
    R(poll(&p, 1, 30));
    send_all(a, "12345678", 8);
    R(poll(&p, 1, 2000));
    int fd = MUST(accept(listener, NULL, NULL));
    R(recv(fd, c, 8, 0));
    for (int i = 0; i < 100; i++) {
        send_all(fd, "12345678", 8);
        recv_all(a, c, 8);
        send_all(a, "87654321", 8);
        recv_all(fd, c, 8);
    }
    close(a);
    R(recv(fd, c, 8, 0));
}

CASE_PLAN(connect_fast_open, NO_CONNECTION)
{
    need_listener();
    int fd = tcp(), queue = 5;
    char c[8];
    R(setsockopt(listener, IPPROTO_TCP, TCP_FASTOPEN, &queue, sizeof queue));
    R(sendto(fd, "12345678", 8, MSG_FASTOPEN, to(case_port), LEN));
    int a = MUST(accept(listener, NULL, NULL));
    R(recv(a, c, 8, MSG_WAITALL));
    for (int i = 0; i < 100; i++) {
        send_all(fd, "12345678", 8);
        recv_all(a, c, 8);
        send_all(a, "87654321", 8);
        recv_all(fd, c, 8);
    }
    close(fd);
    R(recv(a, c, 8, 0));
}

/* Both ends in one process and one thread, and a socket connected to itself. */
CASE_PLAN(connect_within_a_thread, NO_CONNECTION)
{
    need_listener();
    int a = tcp(), wrong = 0;
    char c[1000], d[1000];
    MUST(connect(a, to(case_port), LEN));
    int one = 1, b = MUST(accept(listener, NULL, NULL));
    MUST(setsockopt(b, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one));
    for (int i = 0; i < 200; i++) {
        fill(c, 5, i * 1000, 1000);
        send_all(a, c, 1000);
        recv_all(b, d, 1000);
        wrong += memcmp(c, d, 1000) != 0;
        send_all(b, d, 500);
        recv_all(a, d, 500);
        wrong += memcmp(c, d, 500) != 0;
    }
    say("wrong %d", wrong);
    look(a, "idle");
    send_all(b, c, 10);
    arrived_at(a, POLLIN);
    look(a, "data");
    close(b);
    arrived_at(a, POLLRDHUP);
    look(a, "data and end");
    R(recv(a, d, 1000, MSG_WAITALL));
    R(recv(a, d, 1000, 0));
}

CASE_PLAN(connect_to_itself, NO_CONNECTION)
{
    int fd = tcp(), wrong = 0;
    char c[8], d[8];
    MUST(bind(fd, to(0), LEN));
    int port = port_of(fd);
    R(connect(fd, to(port), LEN));
    for (int i = 0; i < 100; i++) {
        fill(c, 5, i * 8, 8);
        send_all(fd, c, 8);
        recv_all(fd, d, 8);
        wrong += memcmp(c, d, 8) != 0;
    }
    say("wrong %d", wrong);
    R(shutdown(fd, SHUT_WR));
    R(recv(fd, d, 8, 0));
}

/* Names and lengths that go with the bytes. TCP knows no names; a receive whose name is refused has taken its bytes. */
CASE(names_of_receives)
{
    int fd = fresh();
    struct sockaddr *name = (struct sockaddr *)&here, *bad = (struct sockaddr *)8;
    char buf[5];
    struct iovec v = { buf, sizeof buf };
    socklen_t len = sizeof here;
    tell('w', 40);
#define FROM(name, len)                                                                                                \
    R(recvfrom(fd, buf, sizeof buf, 0, name, len));                                                                    \
    took(buf, sizeof buf)
    FROM(name, &len);
    say("length %d", (int)len);
    len = -1;
    FROM(name, &len);
    say("length %d", (int)len);
    FROM(name, NULL);
    FROM(name, (socklen_t *)8);
    len = 16;
    FROM(bad, &len);
    say("length %d", (int)len);
    FROM(NULL, (socklen_t *)8);
    struct msghdr m = { .msg_name = name, .msg_namelen = -1, .msg_iov = &v, .msg_iovlen = 1 };
    R(recvmsg(fd, &m, 0));
    m.msg_name = NULL;
    R(recvmsg(fd, &m, 0));
    took(buf, sizeof buf);
    say("length %d", (int)m.msg_namelen);
    m.msg_name = name;
    m.msg_namelen = LEN;
    R(recvmsg(fd, &m, 0));
    took(buf, sizeof buf);
    say("length %d", (int)m.msg_namelen);
    R(take(fd, 1, MSG_DONTWAIT));
}

CASE(names_of_sends)
{
    int fd = fresh();
    struct sockaddr *name = to(9), *bad = (struct sockaddr *)8;
#define TO(name, len) sent(R(sendto(fd, to_send(4), 4, 0, name, len)))
    TO(name, LEN);
    TO(name, 3);
    TO(name, -1);
    TO(name, sizeof here);
    TO(name, sizeof here + 1);
    TO(bad, LEN);
    TO(bad, 0);
    TO(NULL, LEN);
    struct iovec v = { NULL, 4 };
    struct msghdr m = { .msg_iov = &v, .msg_iovlen = 1 };
#define MESSAGE_TO(name, len)                                                                                          \
    v.iov_base = to_send(4);                                                                                           \
    m.msg_name = name;                                                                                                 \
    m.msg_namelen = len;                                                                                               \
    sent(R(sendmsg(fd, &m, 0)))
    MESSAGE_TO(name, LEN);
    MESSAGE_TO(name, -1);
    MESSAGE_TO(name, sizeof here + 1);
    MESSAGE_TO(bad, LEN);
    MESSAGE_TO(bad, 0);
    MESSAGE_TO(NULL, LEN);
    MESSAGE_TO(NULL, -1);
    say("the peer reads %ld", tell('r', 40));
}
