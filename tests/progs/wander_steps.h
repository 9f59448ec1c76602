/* Steps of `wander` that either side can take by itself. */
#ifndef WANDER_STEPS_H
#define WANDER_STEPS_H
#include "wander.h"

static void step_send(void)
{
    size_t len = 1 + pick(pick(3) ? 400 : 3000);
    int way = pick(7), flags = MSG_NOSIGNAL | (pick(3) ? 0 : MSG_DONTWAIT), to = any_fd(), file;
    ssize_t n = 0;
    off_t at = 0;
    /* What a socket shows that gave up reading, and is sent to all the same, is TCP's own oddity. */
    if (unread(!side) + len > MOST || (board->shut_rd[!side] && !board->gone[!side]))
        return;
    put_stream(scratch, len);
    struct iovec v[2] = { { scratch, len / 3 }, { scratch + len / 3, len - len / 3 } };
    struct msghdr m = { .msg_iov = v, .msg_iovlen = 2 };
    switch (way) {
    case 0: case 1: n = send(to, scratch, len, flags); break;
    case 2: n = write(to, scratch, len); break;
    case 3: n = writev(to, v, 2); break;
    case 4: n = sendmsg(to, &m, flags); break;
    case 5: n = sendto(to, scratch, len, flags, NULL, 0); break;
    case 6:
        file = MUST(memfd_create("wander", MFD_CLOEXEC));
        MUST(pwrite(file, scratch, len, 0));
        n = sendfile(to, file, &at, len);
        int e = errno;
        close(file);
        errno = e;
        break;
    }
    note("send %zu way %d = %s", len, way, result(n));
    if (n <= 0)
        return;
    if (board->gone[!side])
        board->reset = 1;
    else
        board->sent[side] += n;
}

static void step_recv(void)
{
    size_t len = 1 + pick(pick(3) ? 500 : 4000);
    int way = pick(5), flags = 0, from = any_fd();
    ssize_t n = 0;
    if (pick(4) == 0)
        flags |= MSG_PEEK;
    if (pick(3) == 0)
        flags |= MSG_DONTWAIT;
    if (pick(4) == 0)
        flags |= MSG_WAITALL;
    struct iovec v[2] = { { scratch, len / 3 }, { scratch + len / 3, len - len / 3 } };
    struct msghdr m = { .msg_iov = v, .msg_iovlen = 2 };
    switch (way) {
    case 0: case 1: n = recv(from, scratch, len, flags); break;
    case 2: n = read(from, scratch, len); flags = 0; break;
    case 3: n = readv(from, v, 2); flags = 0; break;
    case 4: n = recvmsg(from, &m, flags); break;
    }
    note("recv %zu way %d flags %x = %s", len, way, flags, result(n));
    took_stream(scratch, n, flags & MSG_PEEK);
}

/* Of what was sent to a killed peer the error itself may have been told by then. */
static int seen(int events)
{
    return board->reset && board->gone[!side] ? events & ~EPOLLERR : events;
}

static void step_look(void)
{
    struct pollfd p = { .fd = any_fd(), .events = POLLIN | POLLOUT | POLLRDHUP };
    struct epoll_event e = { 0 };
    struct timeval tv = { 0, 0 };
    fd_set in, out, ex;
    int n;
    switch (pick(5)) {
    case 0:
        n = poll(&p, 1, 0);
        note("poll = %s %x", result(n), seen(p.revents));
        break;
    case 1:
        n = epoll_wait(level, &e, 1, 0);
        note("level = %s %x", result(n), n > 0 ? seen(e.events) : 0);
        break;
    case 2:
        e = (struct epoll_event){ .events = EPOLLIN | EPOLLRDHUP | EPOLLONESHOT, .data.u64 = 7 };
        MUST(epoll_ctl(once, EPOLL_CTL_MOD, fd, &e));
        n = epoll_wait(once, &e, 1, 0);
        note("oneshot = %s %x", result(n), n > 0 ? seen(e.events) : 0);
        if (n == 1)
            note("oneshot, spent = %s", result(epoll_wait(once, &e, 1, 0)));
        break;
    case 3:
        FD_ZERO(&in);
        FD_ZERO(&out);
        FD_ZERO(&ex);
        FD_SET(p.fd, &in);
        FD_SET(p.fd, &out);
        FD_SET(p.fd, &ex);
        n = select(p.fd + 1, &in, &out, &ex, &tv);
        note("select = %s %d%d%d", result(n), !!FD_ISSET(p.fd, &in), !!FD_ISSET(p.fd, &out), !!FD_ISSET(p.fd, &ex));
        break;
    case 4:
        n = in_hand();
        note("FIONREAD = %s", result(n));
        break;
    }
}

static void step_option(void)
{
    struct epoll_event e = { .events = EPOLLIN | EPOLLRDHUP, .data.u64 = 7 };
    int v = -1, size = 65536 << pick(3);
    socklen_t l = sizeof v;
    switch (pick(7)) {
    case 0: {
        int r = getsockopt(fd, SOL_SOCKET, SO_ERROR, &v, &l);
        if (!board->reset)
            note("SO_ERROR = %s %d", result(r), v);
        break;
    }
    case 1:
        if (dup_fd >= 0) {
            note("close a descriptor = %s", result(close(fd)));
            /* Epoll goes by the number: what was registered under it is out of reach now. */
            close(level);
            close(edge);
            close(once);
            fd = dup_fd;
            dup_fd = -1;
            level = watch(EPOLLIN | EPOLLRDHUP);
            edge = watch(EPOLLIN | EPOLLRDHUP | EPOLLET);
            once = watch(EPOLLIN | EPOLLRDHUP | EPOLLONESHOT);
        } else {
            dup_fd = MUST(dup(fd));
        }
        break;
    case 2:
        MUST(epoll_ctl(level, EPOLL_CTL_DEL, fd, NULL));
        MUST(epoll_ctl(level, EPOLL_CTL_ADD, fd, &e));
        break;
    case 3: {
        int flags = MUST(fcntl(fd, F_GETFL));
        note("O_NONBLOCK %d = %s", flags & O_NONBLOCK, result(fcntl(fd, F_SETFL, flags ^ O_NONBLOCK)));
        break;
    }
    case 4: note("SO_SNDBUF = %s", result(setsockopt(fd, SOL_SOCKET, SO_SNDBUF, &size, sizeof size))); break;
    case 5: note("SO_RCVBUF = %s", result(setsockopt(fd, SOL_SOCKET, SO_RCVBUF, &size, sizeof size))); break;
    case 6: {
        int r = getsockopt(fd, SOL_SOCKET, SO_RCVLOWAT, &v, &l);
        note("SO_RCVLOWAT = %s %d", result(r), v);
        break;
    }
    }
}

static void step_shutdown(int how)
{
    note("shutdown %d = %s", how, result(shutdown(fd, how)));
    board->shut_rd[side] |= how != SHUT_WR;
    board->shut_wr[side] |= how != SHUT_RD;
}

/* Closes the connection; hard: by a reset. */
static void let_go(int hard)
{
    struct linger now = { 1, 0 };
    if (hard)
        MUST(setsockopt(fd, SOL_SOCKET, SO_LINGER, &now, sizeof now));
    board->reset |= hard || unread(side) > 0;
    if (dup_fd >= 0)
        close(dup_fd);
    close(fd);
    board->gone[side] = 1;
    forget();
}

static void step_close(int hard)
{
    note("close%s", hard ? " hard" : "");
    let_go(hard);
}

/* Reads up to the end, for at most as long as anybody would wait. */
static void read_out(void)
{
    ssize_t n;
    fcntl(fd, F_SETFL, fcntl(fd, F_GETFL) & ~O_NONBLOCK);
    MUST(limit(SO_RCVTIMEO, PATIENCE));
    while ((n = recv(fd, scratch, sizeof scratch, 0)) > 0)
        took_stream(scratch, n, 0);
    note("reads to the end: %s, %s", result(n), unread(side) ? "bytes are missing" : "all is there");
}

/* One step that concerns nobody else. */
static void step_alone(void)
{
    int what = pick(100);
    if (what < 35)
        step_send();
    else if (what < 70)
        step_recv();
    else if (what < 90)
        step_look();
    else
        step_option();
}
#endif
