/*
 * walk PORT SEED STEPS WARM
 *
 * Two processes take random steps in turn on a few connections between them: every call is chosen by SEED, so that the
 * transcript of its results must not depend on how the bytes travel. WARM round trips precede on each connection.
 */
#include "common.h"
#include "walk.h"

static void step_send(int n)
{
    static const int flags[] = { 0, 0, MSG_DONTWAIT, MSG_NOSIGNAL };
    char *buf = scratch;
    size_t len = pick(6) == 0 ? 0 : 1 + pick(pick(3) ? 300 : 3000);
    int way = pick(8), fl = flags[pick(4)], fd = fd_of(n);
    fill(buf, side, sent[side][n], len);
    struct iovec v[3] = { { buf, len / 3 }, { buf + len / 3, len / 4 }, { buf + len / 3 + len / 4, len - len / 3 - len / 4 } };
    struct mmsghdr mm[2] = { { .msg_hdr = { .msg_iov = v, .msg_iovlen = 1 } }, { .msg_hdr = { .msg_iov = v + 1, .msg_iovlen = 2 } } };
    struct msghdr m = { .msg_iov = v, .msg_iovlen = 3 };
    ssize_t r = 0, more = 0;
    off_t at = 0;
    if (unread(n) + len > 12000)
        return;
    switch (way) {
    case 0: case 1: r = send(fd, buf, len, fl); break;
    case 2: r = write(fd, buf, len); break;
    case 3: r = writev(fd, v, 3); break;
    case 4: r = sendmsg(fd, &m, fl); break;
    case 5:
        more = sendmmsg(fd, mm, 2, fl);
        r = more < 0 ? more : (ssize_t)mm[0].msg_len + (more > 1 ? mm[1].msg_len : 0);
        break;
    case 6:
        MUST(ftruncate(file, 0));
        MUST(pwrite(file, buf, len, 0));
        r = sendfile(fd, file, &at, len);
        break;
    case 7:
        if (len && write(pipes[1], buf, len) != (ssize_t)len)
            die("pipe");
        r = len ? splice(pipes[0], NULL, fd, NULL, len, 0) : 0;
        if (r < (ssize_t)len && len) {
            int e = errno;
            drain_pipe();
            errno = e;
        }
        break;
    }
    note("send %d way %d %zu fl %x%s = %s, %zd", n, way, len, fl, dups[n] == fd ? " dup" : "", result(r), more);
    if (r > 0) {
        sent[side][n] += r;
        board->answered[side][n] |= board->closed[!side][n];
    }
}

static void step_recv(int n)
{
    char *buf = scratch;
    size_t len = pick(8) == 0 ? 0 : 1 + pick(pick(3) ? 400 : 4000), there = unread_here(n);
    int way = pick(9), fl = 0, fd = fd_of(n), peek = 0;
    if (pick(4) == 0)
        fl |= MSG_PEEK;
    if (pick(3) == 0)
        fl |= MSG_DONTWAIT;
    if (pick(4) == 0 && (len <= there || fl & MSG_DONTWAIT))
        fl |= MSG_WAITALL;
    if (pick(12) == 0)
        fl |= MSG_TRUNC;
    struct iovec v[3] = { { buf, len / 5 }, { buf + len / 5, len / 3 }, { buf + len / 5 + len / 3, len - len / 5 - len / 3 } };
    struct mmsghdr mm[2] = { { .msg_hdr = { .msg_iov = v, .msg_iovlen = 1 } }, { .msg_hdr = { .msg_iov = v + 1, .msg_iovlen = 2 } } };
    struct sockaddr_storage ss;
    struct msghdr m = { .msg_iov = v, .msg_iovlen = 3, .msg_name = &ss, .msg_namelen = sizeof ss };
    socklen_t ssl = sizeof ss;
    ssize_t r = 0, more = 0;
    /* What waits for bytes that nobody sends has the receive timeout; a mark above what is there is waited out. */
    memset(buf, 0xee, len);
    switch (way) {
    case 0: case 1: r = recv(fd, buf, len, fl); break;
    case 2: r = read(fd, buf, len); fl = 0; break;
    case 3: r = readv(fd, v, 3); fl = 0; break;
    case 4: r = recvmsg(fd, &m, fl); more = r < 0 ? 0 : m.msg_namelen * 100 + (m.msg_flags & ~MSG_CMSG_CLOEXEC); break;
    case 5:
        fl &= ~(MSG_PEEK | MSG_WAITALL);
        fl |= MSG_DONTWAIT;
        more = recvmmsg(fd, mm, 2, fl, NULL);
        r = more < 0 ? more : (ssize_t)mm[0].msg_len + (more > 1 ? mm[1].msg_len : 0);
        break;
    case 6: ssl = sizeof ss; r = recvfrom(fd, buf, len, fl, (struct sockaddr *)&ss, &ssl); more = r < 0 ? 0 : ssl; break;
    case 7: case 8:
        fl = 0;
        if (len == 0)
            return;
        r = splice(fd, NULL, pipes[1], NULL, len, SPLICE_F_NONBLOCK);
        if (r > 0 && read(pipes[0], buf, r) != r)
            die("pipe");
        break;
    }
    peek = fl & MSG_PEEK;
    int e = errno;
    if (r > 0 && way != 5 && !(fl & MSG_TRUNC))
        check(buf, !side, got[side][n], r, "walk");
    errno = e;
    note("recv %d way %d %zu fl %x%s = %s, %zd", n, way, len, fl, dups[n] == fd ? " dup" : "", result(r), more);
    if (r > 0 && !peek)
        got[side][n] += r;
}

static void step_poll(void)
{
    struct pollfd p[SLOTS];
    static const short events[] = { POLLIN, POLLOUT, POLLIN | POLLOUT, POLLIN | POLLRDHUP, POLLRDHUP, POLLPRI, 0,
                                    POLLIN | POLLOUT | POLLRDHUP | POLLPRI, POLLRDNORM | POLLWRNORM };
    char text[200] = "";
    for (int i = 0; i < SLOTS; i++)
        p[i] = (struct pollfd){ .fd = fd_of(i), .events = events[pick(9)] };
    int r = pick(2) ? poll(p, SLOTS, pick(4) ? 0 : 2) : ppoll(p, SLOTS, &(struct timespec){ 0, 1000 }, NULL);
    for (int i = 0; i < SLOTS; i++)
        sprintf(text + strlen(text), " %x:%x", p[i].events, p[i].revents);
    note("poll%s = %s", text, result(r));
}

static void step_select(void)
{
    fd_set in, out, ex;
    struct timeval tv = { 0, pick(4) ? 0 : 1000 };
    char text[100] = "";
    FD_ZERO(&in);
    FD_ZERO(&out);
    FD_ZERO(&ex);
    for (int i = 0; i < SLOTS; i++) {
        int fd = fd_of(i);
        if (fd < 0)
            continue;
        if (pick(3))
            FD_SET(fd, &in);
        if (pick(3))
            FD_SET(fd, &out);
        if (pick(3))
            FD_SET(fd, &ex);
    }
    int r = select(1024, &in, &out, &ex, &tv);
    for (int i = 0; i < SLOTS && r >= 0; i++) {
        int fd = fd_of(i);
        if (fd >= 0)
            sprintf(text + strlen(text), " %d%d%d", !!FD_ISSET(fd, &in), !!FD_ISSET(fd, &out), !!FD_ISSET(fd, &ex));
    }
    note("select%s = %s", text, result(r));
}

static void step_epoll_ctl(int n)
{
    static const uint32_t masks[] = { EPOLLIN, EPOLLOUT, EPOLLIN | EPOLLOUT, EPOLLIN | EPOLLRDHUP, 0,
                                      EPOLLIN | EPOLLOUT | EPOLLRDHUP | EPOLLPRI };
    static const uint32_t modes[] = { 0, 0, EPOLLONESHOT };
    int which = pick(SETS), op = 1 + pick(3), fd = fd_of(n);
    struct epoll_event e = { .events = masks[pick(6)] | modes[pick(3)], .data.u64 = n * 10 + (fd == dups[n]) };
    int r = epoll_ctl(sets[which], op, fd, op == EPOLL_CTL_DEL && pick(2) ? NULL : &e);
    note("epoll_ctl set %d op %d slot %d%s events %x = %s", which, op, n, fd == dups[n] ? " dup" : "", e.events, result(r));
}

static int by_data(const void *a, const void *b)
{
    const struct epoll_event *x = a, *y = b;
    return x->data.u64 < y->data.u64 ? -1 : x->data.u64 > y->data.u64;
}

static void step_epoll_wait(void)
{
    struct epoll_event e[16];
    char text[400] = "";
    int which = pick(SETS), ms = pick(5) ? 0 : 2;
    /* A set with rings asks the kernel for the rest every 20 us. */
    nanosleep(&(struct timespec){ 0, 100000 }, NULL);
    int r = epoll_wait(sets[which], e, 16, ms);
    if (r > 0)
        qsort(e, r, sizeof *e, by_data);
    for (int i = 0; i < r; i++)
        sprintf(text + strlen(text), " %d:%x", (int)e[i].data.u64, e[i].events);
    note("epoll_wait set %d = %s%s", which, result(r), text);
}

static void step_option(int n)
{
    int fd = fd_of(n), v = -1;
    socklen_t l = sizeof v;
    struct sockaddr_storage ss;
    socklen_t ssl = sizeof ss;
    struct linger lg = { pick(2), 0 };
    switch (pick(10)) {
    case 0: { int r = getsockopt(fd, SOL_SOCKET, SO_ERROR, &v, &l); note("SO_ERROR %d = %s %d", n, result(r), v); break; }
    case 1: { int r = ioctl(fd, FIONREAD, &v); note("FIONREAD %d = %s %d", n, result(r), r ? 0 : v); break; }
    case 2:
        v = 1; /* above it the kernel goes by segments and windows, which a ring has not */
        note("SO_RCVLOWAT %d %d = %s", n, v, result(setsockopt(fd, SOL_SOCKET, SO_RCVLOWAT, &v, sizeof v)));
        break;
    case 3: { int r = getsockopt(fd, SOL_SOCKET, SO_RCVLOWAT, &v, &l); note("SO_RCVLOWAT %d = %s %d", n, result(r), v); break; }
    case 4: v = pick(2); note("FIONBIO %d %d = %s", n, v, result(ioctl(fd, FIONBIO, &v))); break;
    case 5: {
        int flags = fcntl(fd, F_GETFL);
        note("F_GETFL %d = %s", n, result(flags));
        if (flags >= 0)
            note("F_SETFL %d = %s", n, result(fcntl(fd, F_SETFL, flags ^ O_NONBLOCK)));
        break;
    }
    case 6: { int r = getpeername(fd, (struct sockaddr *)&ss, &ssl); note("getpeername %d = %s", n, result(r)); break; }
    case 7: note("linger %d %d = %s", n, lg.l_onoff, result(setsockopt(fd, SOL_SOCKET, SO_LINGER, &lg, sizeof lg))); break;
    case 8: { int r = getsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &v, &l); note("TCP_NODELAY %d = %s %d", n, result(r), v); break; }
    case 9: { int r = getsockopt(fd, SOL_SOCKET, SO_TYPE, &v, &l); note("SO_TYPE %d = %s %d", n, result(r), v); break; }
    }
}

/* Calls that must fail, or do nothing. */
static void step_wrong(int n)
{
    int fd = fd_of(n);
    struct sockaddr_storage ss;
    static struct iovec v[1025] = { { scratch, (size_t)-1 } };
    socklen_t len = address(&ss, port, 0);
    char *volatile bad = (char *)8;
    switch (pick(14)) {
    case 0: note("lseek %d = %s", n, result(lseek(fd, 0, SEEK_CUR))); break;
    case 1: note("pread %d = %s", n, result(pread(fd, scratch, 1, 0))); break;
    case 2: note("connect %d = %s", n, result(connect(fd, (struct sockaddr *)&ss, len))); break;
    case 3: note("bind %d = %s", n, result(bind(fd, (struct sockaddr *)&ss, len))); break;
    case 4: note("accept %d = %s", n, result(accept(fd, NULL, NULL))); break;
    case 5: note("send EFAULT %d = %s", n, result(send(fd, bad, 10, MSG_DONTWAIT))); break;
    case 6: if (unread_here(n)) note("recv EFAULT %d = %s", n, result(recv(fd, bad, 10, MSG_DONTWAIT))); break;
    case 7: note("recv NULL 0 %d = %s", n, result(recv(fd, NULL, 0, MSG_DONTWAIT))); break;
    case 8: note("send NULL 0 %d = %s", n, result(send(fd, NULL, 0, MSG_DONTWAIT))); break;
    case 9: note("readv -1 %d = %s", n, result(readv(fd, v, 1))); break;
    case 10: note("writev count %d = %s", n, result(writev(fd, v, 1025))); break;
    case 11: note("poll EFAULT = %s", result(poll((struct pollfd *)bad, 3, 0))); break;
    case 12: note("recv MSG_ERRQUEUE %d = %s", n, result(recv(fd, scratch, 1, MSG_ERRQUEUE | MSG_DONTWAIT))); break;
    case 13: note("ftruncate %d = %s", n, result(ftruncate(fd, 0))); break;
    }
}

static void step_life(int n)
{
    switch (pick(7)) {
    case 0: case 1: {
        int how = SHUT_WR; /* what comes in after SHUT_RD is an error in some states only */
        board->ended[n] = 1;
        note("shutdown %d %d = %s", n, how, result(shutdown(fd_of(n), how)));
        board->shut[side][n] = 1;
        break;
    }
    case 2:
        board->ended[n] = 1;
        if (fds[n] >= 0) {
            note("close %d = %s", n, result(close(fds[n])));
            fds[n] = -1;
        }
        break;
    case 3: case 4:
        if (dups[n] < 0 && fds[n] >= 0) {
            dups[n] = pick(2) ? dup(fds[n]) : fcntl(fds[n], F_DUPFD_CLOEXEC, 0);
            note("dup %d = %d", n, dups[n] >= 0);
        }
        break;
    case 5: case 6:
        board->ended[n] = 1;
        if (dups[n] >= 0) {
            note("close dup %d = %s", n, result(close(dups[n])));
            dups[n] = -1;
        }
        break;
    }
    board->closed[side][n] = fds[n] < 0 && dups[n] < 0;
    board->shut[side][n] |= board->closed[side][n];
}

static void step(void)
{
    int n = pick(SLOTS), what = pick(100);
    settle();
    if (what < 24)
        step_send(n);
    else if (what < 48)
        step_recv(n);
    else if (what < 56)
        step_poll();
    else if (what < 60)
        step_select();
    else if (what < 70)
        step_epoll_ctl(n);
    else if (what < 82)
        step_epoll_wait();
    else if (what < 90)
        step_option(n);
    else if (what < 95)
        step_wrong(n);
    else
        step_life(n);
}

int main(int argc, char **argv)
{
    if (argc != 5)
        die("usage: walk PORT SEED STEPS WARM");
    port = atoi(argv[1]);
    begin(strtoull(argv[2], NULL, 10), atoi(argv[4]));
    for (int i = 0, steps = atoi(argv[3]); i < steps; i++) {
        renew();
        if (my_turn())
            step();
        pass();
    }
    end();
    return 0;
}
