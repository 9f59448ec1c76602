/* Every way to ask for readiness, in every state of a connection. */
#include "frame.h"
#include <sys/syscall.h>

int __poll(struct pollfd *, nfds_t, int);
int __poll_chk(struct pollfd *, nfds_t, int, size_t);
int __ppoll_chk(struct pollfd *, nfds_t, const struct timespec *, const sigset_t *, size_t);
int __select(int, fd_set *, fd_set *, fd_set *, struct timeval *);

/* What was asked for, and what came of it. */
struct question { int fd, events, ms; const sigset_t *mask; int revents; };
typedef int ask_fn(struct question *q);

#define WAY(name, ...) static int name(struct question *q) { __VA_ARGS__ }
#define ONE struct pollfd p = { .fd = q->fd, .events = q->events }
#define LIMIT struct timespec t = { q->ms / 1000, q->ms % 1000 * 1000000L }, *limit = q->ms < 0 ? NULL : &t
#define POLLED(call) int r = call; q->revents = p.revents; return r;

WAY(by_poll, ONE; POLLED(poll(&p, 1, q->ms)))
WAY(by___poll, ONE; POLLED(__poll(&p, 1, q->ms)))
WAY(by___poll_chk, ONE; POLLED(__poll_chk(&p, 1, q->ms, sizeof p)))
WAY(by_ppoll, ONE; LIMIT; POLLED(ppoll(&p, 1, limit, q->mask)))
WAY(by___ppoll_chk, ONE; LIMIT; POLLED(__ppoll_chk(&p, 1, limit, q->mask, sizeof p)))
#ifdef SYS_poll /* arm64 has none of the calls that have a later form. */
WAY(by_SYS_poll, ONE; POLLED(syscall(SYS_poll, &p, 1L, q->ms)))
#endif
WAY(by_SYS_ppoll, ONE; LIMIT; POLLED(syscall(SYS_ppoll, &p, 1L, limit, q->mask, 8L)))

/* The three sets of select stand for IN, OUT and PRI. */
struct sets { fd_set in, out, ex; };

static void ask_sets(struct question *q, struct sets *s)
{
    FD_ZERO(&s->in);
    FD_ZERO(&s->out);
    FD_ZERO(&s->ex);
    if (q->events & POLLIN)
        FD_SET(q->fd, &s->in);
    if (q->events & POLLOUT)
        FD_SET(q->fd, &s->out);
    if (q->events & POLLPRI)
        FD_SET(q->fd, &s->ex);
}

static int selected(struct question *q, struct sets *s, int r)
{
    q->revents = (FD_ISSET(q->fd, &s->in) ? POLLIN : 0) | (FD_ISSET(q->fd, &s->out) ? POLLOUT : 0)
                 | (FD_ISSET(q->fd, &s->ex) ? POLLPRI : 0);
    return r;
}

#define SETS struct sets s; ask_sets(q, &s)
#define VAL struct timeval t = { q->ms / 1000, q->ms % 1000 * 1000 }, *limit = q->ms < 0 ? NULL : &t
struct sixth { const sigset_t *mask; size_t len; };

WAY(by_select, SETS; VAL; return selected(q, &s, select(q->fd + 1, &s.in, &s.out, &s.ex, limit));)
WAY(by___select, SETS; VAL; return selected(q, &s, __select(q->fd + 1, &s.in, &s.out, &s.ex, limit));)
WAY(by_pselect, SETS; LIMIT; return selected(q, &s, pselect(q->fd + 1, &s.in, &s.out, &s.ex, limit, q->mask));)
#ifdef SYS_select
WAY(by_SYS_select, SETS; VAL; return selected(q, &s, syscall(SYS_select, q->fd + 1, &s.in, &s.out, &s.ex, limit));)
#endif
WAY(by_SYS_pselect6, SETS; LIMIT; struct sixth x = { q->mask, 8 };
    return selected(q, &s, syscall(SYS_pselect6, q->fd + 1, &s.in, &s.out, &s.ex, limit, &x));)

/* One set for each question, or one for all of a case. */
static int the_set = -1;

static int ask_set(struct question *q, struct epoll_event *e)
{
    if (the_set < 0)
        the_set = MUST(epoll_create1(EPOLL_CLOEXEC));
    *e = (struct epoll_event){ .events = q->events, .data.u64 = 77 };
    if (epoll_ctl(the_set, EPOLL_CTL_MOD, q->fd, e) < 0 && errno == ENOENT)
        epoll_ctl(the_set, EPOLL_CTL_ADD, q->fd, e);
    *e = (struct epoll_event){ .events = 0, .data.u64 = 77 };
    return the_set;
}

#define EVENT struct epoll_event e; int set = ask_set(q, &e)
#define TOLD(call) int r = call; q->revents = r > 0 && e.data.u64 == 77 ? e.events : 0; return r;

WAY(by_epoll_wait, EVENT; TOLD(epoll_wait(set, &e, 1, q->ms)))
WAY(by_epoll_pwait, EVENT; TOLD(epoll_pwait(set, &e, 1, q->ms, q->mask)))
WAY(by_epoll_pwait2, EVENT; LIMIT; TOLD(epoll_pwait2(set, &e, 1, limit, q->mask)))
#ifdef SYS_epoll_wait
WAY(by_SYS_epoll_wait, EVENT; TOLD(syscall(SYS_epoll_wait, set, &e, 1, q->ms)))
#endif
WAY(by_SYS_epoll_pwait, EVENT; TOLD(syscall(SYS_epoll_pwait, set, &e, 1, q->ms, q->mask, 8L)))
WAY(by_SYS_epoll_pwait2, EVENT; LIMIT; TOLD(syscall(SYS_epoll_pwait2, set, &e, 1, limit, q->mask, 8L)))

static const struct { const char *name; ask_fn *call; } ways[] = {
#define W(name) { #name, by_##name }
    W(ppoll), W(__ppoll_chk), W(SYS_ppoll), W(pselect), W(SYS_pselect6), W(epoll_pwait), W(epoll_pwait2),
    W(SYS_epoll_pwait), W(SYS_epoll_pwait2), W(poll), W(__poll), W(__poll_chk), W(select), W(__select), W(epoll_wait),
#ifdef SYS_poll
    W(SYS_poll), W(SYS_select), W(SYS_epoll_wait),
#endif
};
enum { WITH_MASK = 9, ALL = sizeof ways / sizeof *ways };

static const char *name_of(const char *id, int way)
{
    static char text[80];
    snprintf(text, sizeof text, "%s %s", id, ways[way].name);
    return text;
}

static const char *asked(int way, struct question q)
{
    static char text[4][160];
    static int turn;
    char *t = text[turn++ % 4];
    errno = 0;
    int r = ways[way].call(&q);
    snprintf(t, 160, "%s %s", result(r), r > 0 ? mask_names(q.revents) : "");
    return t;
}

#define ASK(...) asked(arg, (struct question){ fd, __VA_ARGS__, 0 })
enum { BOTH = POLLIN | POLLOUT, EVERY = POLLIN | POLLOUT | POLLPRI | POLLRDHUP };

static void all_of(int arg, int fd, const char *when)
{
    say("%s: in %s", when, ASK(POLLIN, 0, NULL));
    say("%s: out %s", when, ASK(POLLOUT, 0, NULL));
    say("%s: both %s", when, ASK(BOTH, 0, NULL));
    say("%s: every %s", when, ASK(EVERY, 0, NULL));
    say("%s: none %s", when, ASK(0, 0, NULL));
}

CASES(ready_at_once, ALL, name_of, UPGRADES)
{
    int fd = fresh();
    all_of(arg, fd, "idle");
    tell('w', 10);
    all_of(arg, fd, "data");
    say("recv %s", result(take(fd, 4, 0)));
    all_of(arg, fd, "some left");
    drain(fd);
    all_of(arg, fd, "drained");
    long total = fill_up(fd);
    all_of(arg, fd, "full");
    tell('w', 10);
    all_of(arg, fd, "full, and data");
    say("the peer reads all: %d", tell('r', total) == total);
    say("it becomes writable %s", ASK(POLLOUT, 5000, NULL));
    all_of(arg, fd, "space again");
}

static void nothing(int sig)
{
    (void)sig;
}

CASE(ready_limits)
{
    int fd = fresh();
    fd_set none;
    FD_ZERO(&none);
    struct pollfd p = { .fd = fd, .events = POLLIN };
    R(select(fd + 1, &none, NULL, NULL, &(struct timeval){ -1, 0 }));
    R(select(fd + 1, &none, NULL, NULL, &(struct timeval){ 0, -5 }));
    FD_SET(fd, &none);
    R(select(fd + 1, &none, NULL, NULL, &(struct timeval){ 0, -5 }));
#ifdef SYS_select
    R(syscall(SYS_select, fd + 1, &none, NULL, NULL, &(struct timeval){ -1, 0 }));
#endif
    R(ppoll(&p, 1, &(struct timespec){ -1, 0 }, NULL));
    R(ppoll(&p, 1, &(struct timespec){ 0, 1000000000 }, NULL));
    static const struct timespec constant = { 0, 20000000 };
    struct sixth x = { NULL, 8 };
    R(syscall(SYS_ppoll, &p, 1L, &constant, NULL, 8L));
    FD_SET(fd, &none);
    R(syscall(SYS_pselect6, fd + 1, &none, NULL, NULL, &constant, &x));
    struct timespec left = { 1000, 0 };
    on(SIGUSR1, nothing, 0);
    when_asleep('k', SIGUSR1, 0);
    R(syscall(SYS_ppoll, &p, 1L, &left, NULL, 8L));
    say("some is left: %d", left.tv_sec > 500 && left.tv_sec < 1000);
    left = (struct timespec){ 0, 20000000 };
    R(ppoll(&p, 1, &left, NULL));
    say("left %ld %ld", (long)left.tv_sec, left.tv_nsec);
}

CASES(ready_at_ends, ALL, name_of, UPGRADES)
{
    int fd = fresh();
    tell('w', 10);
    tell('s', SHUT_WR);
    all_of(arg, fd, "data and the peer's end");
    drain(fd);
    all_of(arg, fd, "the peer's end");
    R(shutdown(fd, SHUT_WR));
    peer_reads_to_end();
    all_of(arg, fd, "both ends");
}

CASES(ready_at_own_end, ALL, name_of, UPGRADES)
{
    int fd = fresh();
    R(shutdown(fd, SHUT_WR));
    all_of(arg, fd, "own end");
    tell('w', 5);
    all_of(arg, fd, "own end and data");
    drain(fd);
    R(shutdown(fd, SHUT_RD));
    all_of(arg, fd, "both shut here");
}

CASES(ready_after_close, ALL, name_of, UPGRADES)
{
    int fd = fresh();
    tell('c', 0);
    all_of(arg, fd, "closed by the peer");
    say("send %s", result(put(fd, 5, MSG_NOSIGNAL)));
    reset_arrives(fd);
    all_of(arg, fd, "sent to it");
    say("recv %s", result(take(fd, 5, 0)));
    all_of(arg, fd, "end read");
}

CASES(ready_after_reset, ALL, name_of, UPGRADES)
{
    int fd = fresh();
    tell('w', 5);
    tell('l', 0);
    all_of(arg, fd, "reset");
    say("recv %s", result(take(fd, 5, 0)));
    all_of(arg, fd, "told");
    say("recv %s", result(take(fd, 5, 0)));
}

CASES(ready_urgent, ALL, name_of, STAYS_TCP)
{
    int fd = cold();
    char c;
    tell('o', 0);
    all_of(arg, fd, "urgent byte");
    say("recv oob %s", result(recv(fd, &c, 1, MSG_OOB)));
    all_of(arg, fd, "read");
    tell('w', 3);
    all_of(arg, fd, "data behind it");
}

/* The connection is upgraded when the first urgent byte comes. */
CASES(ready_urgent_late, ALL, name_of, UPGRADES)
{
    int fd = fresh();
    char c = 0;
    tell('o', 0);
    say("every %s", ASK(EVERY, 1000, NULL));
    say("recv oob %s", result(recv(fd, &c, 1, MSG_OOB)));
    say("it is %c", c);
    say("every %s", ASK(EVERY, 0, NULL));
}

CASES(ready_timeouts, ALL, name_of, UPGRADES)
{
    int fd = fresh();
    long start = now_ms();
    say("30 ms %s", ASK(POLLIN, 30, NULL));
    say("waited %d", now_ms() - start >= 29);
    tell('w', 5);
    say("for ever with data %s", ASK(POLLIN, -1, NULL));
    say("an hour with data %s", ASK(POLLIN, 3600000, NULL));
    drain(fd);
    start = now_ms();
    say("nothing asked, 20 ms %s", ASK(0, 20, NULL));
    say("waited %d", now_ms() - start >= 19);
}

CASES(ready_woken, ALL, name_of, UPGRADES)
{
    int fd = fresh();
    for (int i = 0; i < 3; i++) {
        when_asleep('w', 5, 0);
        say("by data %s", ASK(POLLIN, i == 1 ? 10000 : -1, NULL));
        drain(fd);
    }
    long total = fill_up(fd);
    when_asleep('r', total, 0);
    say("by space %s", ASK(POLLOUT, 10000, NULL));
    when_asleep('s', SHUT_WR, 0);
    say("by the end %s", ASK(POLLIN, -1, NULL));
    say("recv %s", result(take(fd, 10, 0)));
}

CASES(ready_woken_by_reset, ALL, name_of, UPGRADES)
{
    int fd = fresh();
    when_asleep('l', 0, 0);
    say("in %s", ASK(POLLIN, -1, NULL));
    say("recv %s", result(take(fd, 10, 0)));
}

/* select tells of no reset to who asks for nothing: it would sleep on. */
CASES(ready_nothing_asked_reset, ALL, name_of, UPGRADES)
{
    int fd = fresh();
    if (strstr(ways[arg].name, "select"))
        return;
    when_asleep('l', 0, 0);
    say("nothing asked %s", ASK(0, 10000, NULL));
    say("recv %s", result(take(fd, 10, 0)));
}

CASES(ready_interrupted, ALL, name_of, UPGRADES)
{
    int fd = fresh();
    on(SIGUSR1, count_hit, 0);
    when_asleep('k', SIGUSR1, 0);
    say("no SA_RESTART %s", ASK(POLLIN, -1, NULL));
    on(SIGUSR1, count_hit, SA_RESTART);
    when_asleep('k', SIGUSR1, 0);
    say("SA_RESTART %s", ASK(POLLIN, 10000, NULL));
    say("hits %d", (int)hits);
    signal(SIGUSR1, SIG_IGN);
    when_asleep('K', SIGUSR1, 0);
    say("ignored, then data %s", ASK(POLLIN, -1, NULL));
}

CASES(ready_masks, WITH_MASK, name_of, UPGRADES)
{
    int fd = fresh();
    sigset_t none, usr1;
    sigemptyset(&none);
    sigemptyset(&usr1);
    sigaddset(&usr1, SIGUSR1);
    on(SIGUSR1, count_hit, 0);
    sigprocmask(SIG_BLOCK, &usr1, NULL);
    kill(getpid(), SIGUSR1);
    say("pending and blocked %s", ASK(POLLIN, 10, NULL));
    say("hits %d", (int)hits);
    say("let in %s", ASK(POLLIN, 5000, &none));
    say("hits %d", (int)hits);
    when_asleep('k', SIGUSR1, 0);
    say("let in while asleep %s", ASK(POLLIN, -1, &none));
    say("hits %d", (int)hits);
    sigprocmask(SIG_UNBLOCK, &usr1, NULL);
    when_asleep('K', SIGUSR1, 0);
    say("blocked while asleep, then data %s", ASK(POLLIN, -1, &usr1));
    say("hits %d", (int)hits);
    sigprocmask(SIG_BLOCK, &usr1, NULL);
    kill(getpid(), SIGUSR1);
    /* What is ready goes first, and the signal stays pending, except for those that look at it first. */
    say("ready, and a signal let in %s", ASK(POLLIN, 0, &none));
    say("in the end %s", ASK(POLLIN, 0, &usr1));
}
