/* Ends: half-close, close, reset, broken pipe, and what poll and epoll say of each. */
#include "frame.h"

CASE(ends_peer_half_closes)
{
    int fd = fresh();
    look(fd, "idle");
    tell('w', 10);
    look(fd, "data");
    tell('s', SHUT_WR);
    look(fd, "data and end");
    say("recv %s", result(take(fd, 100, 0)));
    look(fd, "end");
    say("recv %s", result(take(fd, 100, 0)));
    say("recv %s", result(take(fd, 100, MSG_DONTWAIT)));
    say("send %s", result(put(fd, 50, 0)));
    say("the peer reads %ld", ask('r', 50, 0).value);
    say("shutdown %s", result(shutdown(fd, SHUT_WR)));
    nap(30);
    look(fd, "both ended");
    peer_reads_to_end();
    close(fd);
}

CASE(ends_we_half_close)
{
    int fd = fresh();
    say("send %s", result(put(fd, 70, 0)));
    say("shutdown %s", result(shutdown(fd, SHUT_WR)));
    look(fd, "after shutdown");
    peer_reads_to_end();
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

CASE(ends_read_side)
{
    int fd = fresh();
    say("shutdown %s", result(shutdown(fd, SHUT_RD)));
    look(fd, "after it");
    say("recv %s", result(take(fd, 10, 0)));
    say("send %s", result(put(fd, 30, 0)));
    say("the peer reads %ld", ask('r', 30, 0).value);
    say("shutdown both %s", result(shutdown(fd, SHUT_RDWR)));
    nap(30);
    look(fd, "both");
    peer_reads_to_end();
    close(fd);
}

CASE(ends_broken_pipe)
{
    int fd = fresh();
    on(SIGPIPE, count_hit, 0);
    tell('c', 0);
    look(fd, "closed by the peer");
    say("recv %s", result(take(fd, 10, 0)));
    say("first send %s", result(put(fd, 10, 0)));
    reset_arrives(fd);
    look(fd, "after it");
    say("second send %s", result(put(fd, 10, 0)));
    say("signals %d", (int)hits);
    say("write %s", result(write(fd, "x", 1)));
    say("signals %d", (int)hits);
    say("MSG_NOSIGNAL %s", result(put(fd, 10, MSG_NOSIGNAL)));
    say("signals %d", (int)hits);
    say("recv %s", result(take(fd, 10, 0)));
    close(fd);
}

CASE(ends_broken_pipe_own)
{
    int fd = fresh();
    on(SIGPIPE, count_hit, 0);
    MUST(shutdown(fd, SHUT_WR));
    say("send %s", result(put(fd, 10, 0)));
    say("signals %d", (int)hits);
    struct iovec v = { "abc", 3 };
    say("writev %s", result(writev(fd, &v, 1)));
    say("signals %d", (int)hits);
    close(fd);
}

CASE(ends_resets)
{
    int fd = fresh();
    tell('l', 0);
    look(fd, "reset");
    say("recv %s", result(take(fd, 10, 0)));
    say("recv %s", result(take(fd, 10, 0)));
    look(fd, "reported");
    say("send %s", result(put(fd, 10, MSG_NOSIGNAL)));
    close(fd);
}

/* What has come is given out first; the reset waits for a call that gets nothing else. */
CASE(ends_reset_behind_part)
{
    int fd = fresh(), mark = 80;
    tell('w', 150);
    tell('l', 0);
    say("recv %s", result(take(fd, 100, MSG_WAITALL)));
    say("part %s", result(take(fd, 100, MSG_WAITALL)));
    say("reset %s", result(take(fd, 100, MSG_WAITALL)));
    say("end %s", result(take(fd, 10, 0)));
    close(fd);
    fd = fresh();
    MUST(setsockopt(fd, SOL_SOCKET, SO_RCVLOWAT, &mark, sizeof mark));
    tell('w', 50);
    tell('l', 0);
    say("part %s", result(take(fd, 100, 0)));
    say("reset %s", result(take(fd, 100, 0)));
    close(fd);
}

CASE(ends_reset_send)
{
    int fd = fresh();
    tell('l', 0);
    say("send %s", result(put(fd, 10, MSG_NOSIGNAL)));
    say("send %s", result(put(fd, 10, MSG_NOSIGNAL)));
    say("recv %s", result(take(fd, 10, 0)));
    close(fd);
}

CASE(ends_reset_so_error)
{
    int fd = fresh();
    int v = -1;
    socklen_t len = sizeof v;
    tell('l', 0);
    MUST(getsockopt(fd, SOL_SOCKET, SO_ERROR, &v, &len));
    say("SO_ERROR %s", ename(v));
    MUST(getsockopt(fd, SOL_SOCKET, SO_ERROR, &v, &len));
    say("SO_ERROR %d", v);
    say("recv %s", result(take(fd, 10, 0)));
    close(fd);
}

CASE(ends_reset_wakes)
{
    int fd = fresh();
    when_asleep('l', 0, 0);
    say("recv %s", result(take(fd, 10, 0)));
    close(fd);
}

CASE(ends_close_unread)
{
    int fd = fresh();
    tell('w', 100);
    close(fd);
    nap(30);
    peer_reads_to_end();
}

CASE(ends_close_all_read)
{
    int fd = fresh();
    tell('w', 100);
    say("recv %s", result(take(fd, 100, MSG_WAITALL)));
    put(fd, 33, 0);
    close(fd);
    peer_reads_to_end();
}

CASE(ends_linger_0)
{
    int fd = fresh();
    struct linger now = { 1, 0 };
    MUST(setsockopt(fd, SOL_SOCKET, SO_LINGER, &now, sizeof now));
    close(fd);
    nap(30);
    peer_reads_to_end();
}

CASE(ends_late_data)
{
    int fd = fresh();
    say("send %s", result(put(fd, 40000, 0)));
    close(fd);
    nap(100);
    peer_reads_to_end();
}

CASE(ends_late_data_from_peer)
{
    int fd = fresh();
    tell('w', 40000);
    tell('c', 0);
    say("recv %s", result(take(fd, 40000, MSG_WAITALL)));
    say("recv %s", result(take(fd, 1, 0)));
    close(fd);
}

CASE(ends_end_wakes)
{
    int fd = fresh();
    when_asleep('s', SHUT_WR, 0);
    say("recv %s", result(take(fd, 10, 0)));
    say("send %s", result(put(fd, 10, 0)));
    say("the peer reads %ld", ask('r', 10, 0).value);
    close(fd);
}

CASE(ends_poll_closed)
{
    int fd = fresh();
    close(fd);
    struct pollfd p = { .fd = fd, .events = POLLIN };
    int n = poll(&p, 1, 0);
    say("poll %d %s", n, mask_names(p.revents));
}

CASE(ends_linger_waits)
{
    int fd = fresh();
    struct linger l = { 1, 5 }, back;
    socklen_t len = sizeof back;
    R(setsockopt(fd, SOL_SOCKET, SO_LINGER, &l, sizeof l));
    getsockopt(fd, SOL_SOCKET, SO_LINGER, &back, &len);
    say("reads %d %d", back.l_onoff, back.l_linger);
    R(put(fd, 1000, 0));
    ask('r', 1000, 0);
    R(close(fd));
    peer_reads_to_end();
}

CASE(ends_linger_0_unread_there)
{
    int fd = fresh();
    struct linger l = { 1, 0 };
    R(put(fd, 1000, 0));
    R(setsockopt(fd, SOL_SOCKET, SO_LINGER, &l, sizeof l));
    R(close(fd));
    nap(20);
    struct reply r = ask('R', 0, 0);
    say("the peer ends with %s", ename(r.error));
}

CASE(ends_linger_off_again)
{
    int fd = fresh();
    struct linger l = { 1, 0 };
    R(setsockopt(fd, SOL_SOCKET, SO_LINGER, &l, sizeof l));
    l.l_onoff = 0;
    R(setsockopt(fd, SOL_SOCKET, SO_LINGER, &l, sizeof l));
    R(put(fd, 1000, 0));
    R(close(fd));
    peer_reads_to_end();
}

CASE(ends_exit_without_close)
{
    int fd = fresh();
    pid_t child = fork();
    if (child == 0) {
        put(fd, 100, 0);
        _exit(0);
    }
    close(fd);
    reap(child, "child");
    peer_reads_to_end();
}

CASE(ends_killed)
{
    int fd = fresh();
    pid_t child = fork();
    if (child == 0) {
        put(fd, 100, 0);
        kill(getpid(), SIGKILL);
    }
    close(fd);
    reap(child, "child");
    peer_reads_to_end();
}

CASE(ends_shutdown_errors)
{
    int fd = fresh(), fresh_socket = MUST(socket(AF_INET, SOCK_STREAM, 0));
    R(shutdown(fd, 3));
    R(shutdown(fd, -1));
    R(shutdown(-1, SHUT_WR));
    R(shutdown(fresh_socket, SHUT_WR));
    R(shutdown(fresh_socket, SHUT_RDWR));
    R(shutdown(fd, SHUT_WR));
    R(shutdown(fd, SHUT_WR));
    peer_reads_to_end();
    tell('c', 0);
    R(take(fd, 10, 0));
    R(shutdown(fd, SHUT_RD));
    R(shutdown(fd, SHUT_RDWR));
    R(shutdown(0, SHUT_RDWR));
}

CASE(ends_names_after)
{
    int fd = fresh(), v = -1;
    struct sockaddr_storage ss;
    socklen_t len = sizeof ss, vl = sizeof v;
    R(getpeername(fd, (struct sockaddr *)&ss, &len));
    tell('s', SHUT_WR);
    len = sizeof ss;
    R(getpeername(fd, (struct sockaddr *)&ss, &len));
    R(shutdown(fd, SHUT_WR));
    peer_reads_to_end();
    tell('c', 0);
    len = sizeof ss;
    R(getsockname(fd, (struct sockaddr *)&ss, &len));
    R(getsockopt(fd, SOL_SOCKET, SO_ERROR, &v, &vl));
    say("SO_ERROR %d", v);
    R(take(fd, 10, 0));
}

CASE(ends_peername_after_reset)
{
    int fd = fresh();
    struct sockaddr_storage ss;
    socklen_t len = sizeof ss;
    tell('l', 0);
    R(getpeername(fd, (struct sockaddr *)&ss, &len));
    R(take(fd, 10, 0));
    len = sizeof ss;
    R(getpeername(fd, (struct sockaddr *)&ss, &len));
    R(shutdown(fd, SHUT_WR));
    R(put(fd, 5, MSG_NOSIGNAL));
    R(close(fd));
    R(close(fd));
}

/* The peer's end is behind more than one buffer holds. */
CASE(ends_behind_much)
{
    int fd = fresh();
    when_asleep('w', 700000, 0);
    long total = 0;
    for (int n; total < 700000 && (n = take(fd, 30000, 0)) > 0;)
        total += n;
    tell('s', SHUT_WR);
    say("received %ld, then %s", total, result(take(fd, 10, 0)));
    R(put(fd, 500, 0));
    R(shutdown(fd, SHUT_WR));
    peer_reads_to_end();
}

/* Both ends close at once with bytes for each other. */
CASE(ends_crossing)
{
    int fd = fresh();
    R(put(fd, 500, 0));
    ask('w', 300, 0);
    R(shutdown(fd, SHUT_WR));
    tell('s', SHUT_WR);
    R(take(fd, 1000, MSG_WAITALL));
    R(take(fd, 10, 0));
    look(fd, "both ended");
    peer_reads_to_end();
    R(close(fd));
}
