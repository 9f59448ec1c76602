/*
 * The frame of the semantics programs: PROGRAM PORT WARM.
 * The subject prints one line per observation; a helper process on the other end of the connection does what it is told
 * and acknowledges it, so that the transcript does not depend on timing. WARM round trips come first on each connection:
 * the transcript must be the same however many there were.
 */
#ifndef SEM_H
#define SEM_H
#include "common.h"

static int control = -1, listener = -1, warm, port, paused;
static pid_t helper;
static uint64_t from_subject, from_helper; /* stream positions of the current connection */
static uint64_t other_subject, other_helper; /* and of the one put aside */

struct order { char op; int a, b; };
struct reply { int value, error; };

static const char *ename(int e)
{
    static char other[32];
    switch (e) {
#define E(x) case x: return #x
    E(EAGAIN); E(EINTR); E(EPIPE); E(ECONNRESET); E(EINVAL); E(EBADF); E(ENOTCONN); E(ENOTSOCK); E(EISCONN); E(ESPIPE);
    E(EEXIST); E(ENOENT); E(EPERM); E(EOPNOTSUPP); E(ETIMEDOUT); E(EFAULT); E(ENOTTY); E(EMSGSIZE);
#undef E
    }
    snprintf(other, sizeof other, "errno %d", e);
    return other;
}

static const char *result(ssize_t n)
{
    static char text[4][40];
    static int turn;
    char *t = text[turn++ % 4];
    if (n < 0)
        snprintf(t, 40, "-1 %s", ename(errno));
    else
        snprintf(t, 40, "%zd", n);
    return t;
}

static void say(const char *fmt, ...)
{
    va_list ap;
    va_start(ap, fmt);
    vprintf(fmt, ap);
    va_end(ap);
    putchar('\n');
    fflush(stdout);
}

static void settle(void) { nap(30); }

static struct reply ask(char op, int a, int b)
{
    struct order o = { op, a, b };
    struct reply r;
    if (write(control, &o, sizeof o) != sizeof o)
        die("order %c", op);
    ssize_t n;
    do
        n = read(control, &r, sizeof r);
    while (n < 0 && errno == EINTR);
    if (n != sizeof r)
        die("reply to %c", op);
    return r;
}

/* An order whose bytes or state change must have arrived here before the next observation. */
static int tell(char op, int a)
{
    struct reply r = ask(op, a, 0);
    settle();
    return r.value;
}

UNUSED static int put(int fd, int len, int flags)
{
    static char buf[1 << 20];
    fill(buf, 1, from_subject, len);
    ssize_t n = send(fd, buf, len, flags);
    if (n > 0)
        from_subject += n;
    return n;
}

static ssize_t take(int fd, int len, int flags)
{
    static char buf[1 << 20];
    ssize_t n = recv(fd, buf, len, flags);
    if (n > 0 && !(flags & (MSG_OOB | MSG_TRUNC)))
        check(buf, 2, from_helper, n, "subject");
    if (n > 0 && !(flags & (MSG_PEEK | MSG_OOB)))
        from_helper += n;
    return n;
}

static void swap(uint64_t *a, uint64_t *b)
{
    uint64_t t = *a;
    *a = *b;
    *b = t;
}

static void helper_main(int ctl)
{
    int fd = -1, aside = -1;
    uint64_t tx = 0, rx = 0, aside_tx = 0, aside_rx = 0;
    struct order o;
    struct linger now = { 1, 0 };
    int one = 1;
    static char buf[1 << 20];
    signal(SIGPIPE, SIG_IGN);
    while (read(ctl, &o, sizeof o) == sizeof o) {
        struct reply r = { 0, 0 };
        int early = strchr("WVKDX", o.op) != NULL;
        if (early)
            (void)!write(ctl, &r, sizeof r);
        if (o.op == 'X') {
            nap(o.a);
            o.op = o.b;
        }
        switch (o.op) {
        case 'n':
            if (fd >= 0)
                close(fd);
            fd = dial(port);
            MUST(setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one));
            tx = rx = 0;
            break;
        case 'x':
            swap(&tx, &aside_tx);
            swap(&rx, &aside_rx);
            fd ^= aside, aside ^= fd, fd ^= aside;
            break;
        case 'e':
            for (int i = 0; i < o.a; i++) {
                recv_all(fd, buf, 8);
                check(buf, 1, rx, 8, "helper");
                rx += 8;
                fill(buf, 2, tx, 8);
                send_all(fd, buf, 8);
                tx += 8;
            }
            break;
        case 'V':
            nap(o.a);
            fill(buf, 2, tx, 20);
            send_all(fd, buf, 20);
            tx += 20;
            /* fall through */
        case 'W':
            nap(o.a);
            o.a = o.b;
            /* fall through */
        case 'w':
            fill(buf, 2, tx, o.a);
            send_all(fd, buf, o.a);
            tx += o.a;
            break;
        case 'D':
            nap(o.a);
            o.a = o.b;
            /* fall through */
        case 'r':
            for (int n; o.a > 0; o.a -= n, r.value += n) {
                n = recv_upto(fd, buf, o.a < (int)sizeof buf ? o.a : (int)sizeof buf);
                if (n == 0)
                    break;
                check(buf, 1, rx, n, "helper");
                rx += n;
            }
            break;
        case 'R': {
            ssize_t n;
            while ((n = recv(fd, buf, sizeof buf, 0)) > 0) {
                check(buf, 1, rx, n, "helper");
                rx += n;
                r.value += n;
            }
            r.error = n < 0 ? errno : 0;
            break;
        }
        case 'K':
            nap(o.a);
            kill(getppid(), SIGUSR1);
            if (o.b) {
                nap(o.b);
                fill(buf, 2, tx, 1);
                send_all(fd, buf, 1);
                tx += 1;
            }
            break;
        case 's': shutdown(fd, SHUT_WR); break;
        case 'o': MUST(send(fd, "!", 1, MSG_OOB)); break;
        case 'l':
            MUST(setsockopt(fd, SOL_SOCKET, SO_LINGER, &now, sizeof now));
            /* fall through */
        case 'c': close(fd); fd = -1; break;
        }
        if (!early)
            (void)!write(ctl, &r, sizeof r);
    }
    _exit(0);
}

/* Round trips of 8 bytes, begun here. */
static void rounds(int fd, int n)
{
    struct order o = { 'e', n, 0 };
    struct reply r;
    (void)!write(control, &o, sizeof o);
    for (int i = 0; i < n; i++) {
        char buf[8];
        fill(buf, 1, from_subject, 8);
        send_all(fd, buf, 8);
        from_subject += 8;
        recv_all(fd, buf, 8);
        check(buf, 2, from_helper, 8, "round trips");
        from_helper += 8;
    }
    (void)!read(control, &r, sizeof r);
}

/* A second connection: the current one is put aside, with the helper too. */
UNUSED static void other_connection(void)
{
    ask('x', 0, 0);
    swap(&from_subject, &other_subject);
    swap(&from_helper, &other_helper);
}

static int cold(const char *name)
{
    say("== %s", name);
    ask('n', 0, 0);
    int one = 1, fd = answer(listener);
    /* Nagle's 40 ms would make the plain transcript depend on timing. */
    MUST(setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one));
    from_subject = from_helper = 0;
    return fd;
}

/* A fresh connection, warmed. */
static int fresh(const char *name)
{
    int fd = cold(name);
    if (warm)
        rounds(fd, warm);
    /* The harness looks at the connection's mode while it is held still. */
    if (!paused && getenv("SWT_PAUSE")) {
        char line[16];
        paused = 1;
        fprintf(stderr, "warm\n");
        (void)!read(0, line, sizeof line);
    }
    return fd;
}

static void cases(void);

int main(int argc, char **argv)
{
    if (argc < 3)
        die("usage: %s PORT WARM", argv[0]);
    port = atoi(argv[1]);
    warm = atoi(argv[2]);
    int pair[2];
    limit_life(120);
    listener = listen_on(port);
    MUST(socketpair(AF_UNIX, SOCK_SEQPACKET, 0, pair));
    helper = MUST(fork());
    if (helper == 0) {
        close(pair[0]);
        close(listener);
        helper_main(pair[1]);
    }
    close(pair[1]);
    control = pair[0];
    cases();
    close(control);
    int status;
    MUST(waitpid(helper, &status, 0));
    say("== helper exit %d", status);
    return 0;
}
#endif
