/* The frame of `wander`: two programs, what both know of the connection between them, and how they wait for the kernel. */
#ifndef WANDER_H
#define WANDER_H
#include "common.h"
#include <pthread.h>
#include <sys/epoll.h>
#include <sys/mman.h>
#include <sys/select.h>
#include <sys/sendfile.h>

#define TEXT (4 << 20)
#define MOST 12000      /* unread bytes at which nobody waits for room yet, whatever the buffers */
#define PATIENCE 5000   /* ms in which the kernel does what it always does in the end */
#define BRIEF 30        /* ms of a time limit that runs out */

/* In memory of both programs. Sides: 0 leads, 1 does what it is told. */
static struct board {
    uint64_t sent[2], got[2];
    int shut_wr[2], shut_rd[2];
    int gone[2];  /* closed, or its process killed */
    int reset;    /* the kernel has answered something by a reset, which ends the connection */
    int turn;
    size_t len;
    char text[TEXT];
} *board;

static int side, fd = -1, dup_fd = -1, level, edge, once;
static uint64_t luck;
static char scratch[1 << 16];

static int pick(int n) { return next_random(&luck) % n; }
static size_t unread(int at) { return board->sent[!at] - board->got[at]; }

static const char *result(ssize_t n)
{
    static char text[4][40];
    static int at;
    char *t = text[at++ % 4];
    if (n < 0)
        snprintf(t, 40, "-1 %s", strerrorname_np(errno));
    else
        snprintf(t, 40, "%zd", n);
    return t;
}

__attribute__((format(printf, 1, 2))) static void note(const char *fmt, ...)
{
    va_list ap;
    if (board->len > TEXT - 1000)
        die("transcript too long");
    board->len += sprintf(board->text + board->len, "%d %c ", board->turn, "AB"[side]);
    va_start(ap, fmt);
    board->len += vsprintf(board->text + board->len, fmt, ap);
    va_end(ap);
    board->text[board->len++] = '\n';
}

static int state(void)
{
    struct tcp_info t;
    socklen_t len = sizeof t;
    return getsockopt(fd, IPPROTO_TCP, TCP_INFO, &t, &len) < 0 ? TCP_CLOSE : t.tcpi_state;
}

static int has_ended(void)
{
    int s = state();
    return s == TCP_CLOSE || s == TCP_CLOSE_WAIT || s == TCP_CLOSING || s == TCP_TIME_WAIT || s == TCP_LAST_ACK;
}

static int in_hand(void)
{
    int n = -1;
    return ioctl(fd, FIONREAD, &n) < 0 ? -1 : n;
}

/* What the other side did has arrived here. A reset takes what was unread with it, so bytes are not waited for then. */
static void settle(void)
{
    int ended = board->shut_wr[!side] || board->gone[!side];
    int closed = board->reset || (board->shut_wr[0] && board->shut_wr[1]);
    for (long limit = now_ms() + (closed ? 1000 : PATIENCE); now_ms() < limit; nap(1)) {
        if ((!ended || has_ended()) && (!closed || state() == TCP_CLOSE)
            && (board->reset || in_hand() == (int)unread(side)))
            return;
    }
    if (!closed)
        note("never settled: state %d, %d of %zu bytes", state(), in_hand(), unread(side));
}

static int limit(int option, int ms)
{
    struct timeval tv = { ms / 1000, ms % 1000 * 1000 };
    return setsockopt(fd, SOL_SOCKET, option, &tv, sizeof tv);
}

static int watch(int events)
{
    struct epoll_event e = { .events = events, .data.u64 = 7 };
    int set = MUST(epoll_create1(EPOLL_CLOEXEC));
    MUST(epoll_ctl(set, EPOLL_CTL_ADD, fd, &e));
    return set;
}

/* A connection that has just begun. */
static void adopt(int s)
{
    int one = 1;
    fd = s;
    dup_fd = -1;
    MUST(setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one));
    MUST(limit(SO_RCVTIMEO, BRIEF));
    level = watch(EPOLLIN | EPOLLRDHUP);
    edge = watch(EPOLLIN | EPOLLRDHUP | EPOLLET);
    once = watch(EPOLLIN | EPOLLRDHUP | EPOLLONESHOT);
}

/* All that holds it, but nothing that would be heard on the other side. */
static void forget(void)
{
    close(level);
    close(edge);
    close(once);
    fd = dup_fd = -1;
}

/* Round trips whose bytes are nobody's stream, whatever time limits and modes there are. */
static void echo(int rounds, int first)
{
    for (int i = 0; i < 2 * rounds; i++) {
        char text[16] = "warm the path up";
        for (size_t at = 0; at < sizeof text;) {
            int out = (i + first) % 2 == 0;
            ssize_t n = out ? send(fd, text + at, sizeof text - at, MSG_NOSIGNAL) : recv(fd, text + at, sizeof text - at, 0);
            if (n > 0)
                at += n;
            else if (n == 0 || (errno != EAGAIN && errno != EINTR))
                die("a round trip ends with %zd", n);
        }
        if (memcmp(text, "warm the path up", sizeof text))
            die("wrong data in a round trip: %.16s", text);
    }
}

static int any_fd(void) { return dup_fd >= 0 && pick(2) ? dup_fd : fd; }

/* The bytes of one direction, which any receiver can check. */
static void put_stream(char *buf, size_t len) { fill(buf, side, board->sent[side], len); }
static void took_stream(const char *buf, ssize_t n, int keep)
{
    if (n <= 0)
        return;
    check(buf, !side, board->got[side], n, "wander");
    if (!keep)
        board->got[side] += n;
}
#endif
