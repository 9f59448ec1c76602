/* Connections, orders to the peer, and the words of the transcript. */
#include "frame.h"
#include "run.h"

int case_port, listener = -1, slot, control = -1, transcript = -1;
struct settings settings;
uint64_t from_subject[SLOTS], from_peer[SLOTS];
static int fd_of[SLOTS] = { -1, -1, -1, -1 };
static uint64_t warm_bytes[SLOTS];
static char bulk[1 << 20];

void say(const char *fmt, ...)
{
    char line[2048];
    va_list ap;
    va_start(ap, fmt);
    int n = vsnprintf(line, sizeof line - 1, fmt, ap);
    va_end(ap);
    n = n < (int)sizeof line - 2 ? n : (int)sizeof line - 2;
    line[n++] = '\n';
    (void)!write(transcript, line, n);
}

void skip_rest(const char *why, ...)
{
    char line[500];
    va_list ap;
    va_start(ap, why);
    vsnprintf(line, sizeof line, why, ap);
    va_end(ap);
    say("skipped: %s", line);
    _exit(0);
}

volatile sig_atomic_t hits;

void count_hit(int sig)
{
    (void)sig;
    hits++;
}

const char *ename(int e) { return e ? strerrorname_np(e) : "0"; }

const char *result(long n)
{
    static __thread char text[4][40];
    static __thread int turn;
    char *t = text[turn++ % 4];
    if (n < 0)
        snprintf(t, 40, "%ld %s", n, ename(errno));
    else
        snprintf(t, 40, "%ld", n);
    return t;
}

const char *mask_names(int mask)
{
    static const struct { int bit; const char *name; } names[] = {
        { EPOLLIN, "IN" }, { EPOLLPRI, "PRI" }, { EPOLLOUT, "OUT" }, { EPOLLERR, "ERR" }, { EPOLLHUP, "HUP" },
        { EPOLLRDNORM, "RDNORM" }, { EPOLLRDBAND, "RDBAND" }, { EPOLLWRNORM, "WRNORM" }, { EPOLLWRBAND, "WRBAND" },
        { EPOLLRDHUP, "RDHUP" }, { POLLNVAL, "NVAL" } };
    static __thread char text[4][120];
    static __thread int turn;
    char *t = text[turn++ % 4];
    t[0] = 0;
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        if (mask & names[i].bit) {
            strcat(t, t[0] ? "|" : "");
            strcat(t, names[i].name);
        }
    return t[0] ? t : "none";
}

static void order(struct order *o, struct reply *r)
{
    ssize_t n;
    o->pid = getpid();
    if (!o->tid)
        o->tid = gettid();
    if (write(control, o, sizeof *o) != sizeof *o)
        die("order %c", o->op);
    do
        n = read(control, r, sizeof *r);
    while (n < 0 && errno == EINTR);
    if (n != sizeof *r)
        die("reply to %c", o->op);
}

struct reply ask(int op, int a, int b)
{
    struct order o = { op, slot, NOW, a, b, 0, 0 };
    struct reply r;
    order(&o, &r);
    return r;
}

void when_thread_sleeps(pid_t tid, int op, int a, int b)
{
    struct order o = { op, slot, WHEN_ASLEEP, a, b, 0, tid };
    struct reply r;
    order(&o, &r);
    (void)!write(control, &o, sizeof o);
}

void when_asleep(int op, int a, int b) { when_thread_sleeps(gettid(), op, a, b); }

/* Whether some of what came and went so far was not TCP's. */
static void compare_with_kernel(int s)
{
    struct counts c;
    int e = errno;
    if (kernel_counts(fd_of[s], &c) == 0)
        facts->switched |= c.received < warm_bytes[s] + from_peer[s] || c.sent < warm_bytes[s] + from_subject[s];
    errno = e;
}

/* What the peer's kernel was given has arrived at ours, and an end too. */
static void arrived(int fd, int op, uint64_t sent)
{
    struct counts c;
    for (long end = now_ms() + 3000; now_ms() < end; nap(1)) {
        if (kernel_counts(fd, &c) < 0)
            return;
        int ended = c.state == TCP_CLOSE || c.state == TCP_CLOSE_WAIT || c.state == TCP_CLOSING
                    || c.state == TCP_TIME_WAIT || c.state == TCP_LAST_ACK;
        if (op == 's' || op == 'c' || op == 'l' ? ended : ended || c.received >= sent)
            return;
    }
}

void reset_arrives(int fd)
{
    struct counts c = { 0 };
    for (long end = now_ms() + 3000; now_ms() < end && kernel_counts(fd, &c) == 0 && c.state != TCP_CLOSE; nap(1))
        ;
}

void until_acknowledged(int fd)
{
    int left = 1;
    for (long end = now_ms() + 10000; left && now_ms() < end; nap(2))
        MUST(ioctl(fd, TIOCOUTQ, &left));
}

void until_delivered(int fd)
{
    struct counts c;
    for (long end = now_ms() + 10000; now_ms() < end && kernel_counts(fd, &c) == 0 && (c.unacked || c.unsent); nap(1))
        ;
}

/* A look at what is there, so that a switch may come at any moment of a case. */
static void nudge(int fd)
{
    char c;
    int e = errno;
    for (int i = 0; settings.nudge && i < 3; i++) {
        (void)!recv(fd, &c, 1, MSG_PEEK | MSG_DONTWAIT);
        ask('p', 0, 0);
    }
    errno = e;
}

long tell(int op, int a)
{
    struct reply r = ask(op, a, 0);
    arrived(fd_of[slot], op, r.sent);
    compare_with_kernel(slot);
    if (op == 'w')
        nudge(fd_of[slot]);
    return r.value;
}

void peer_reads_to_end(void)
{
    struct reply r = ask('R', 0, 0);
    say("the peer reads %ld up to %s", r.value, r.error ? ename(r.error) : "the end");
}

void peer_echoes(int n)
{
    struct order o = { 'e', slot, NOW, n, 0, 0, 0 };
    struct reply r;
    order(&o, &r);
}

/* n round trips; whether neither direction's bytes were TCP's. */
static int rounds(int s, int n)
{
    struct counts before, after;
    char buf[8] = "warm up";
    int was = slot;
    slot = s;
    kernel_counts(fd_of[s], &before);
    peer_echoes(n);
    slot = was;
    for (int i = 0; i < n; i++) {
        send_all(fd_of[s], buf, sizeof buf);
        recv_all(fd_of[s], buf, sizeof buf);
    }
    kernel_counts(fd_of[s], &after);
    warm_bytes[s] += n * sizeof buf;
    return after.received - before.received < 4u * n && after.sent - before.sent < 4u * n;
}

void need_listener(void)
{
    if (listener >= 0)
        return;
    for (int i = 0;; i++) {
        uint64_t at = mix(getpid() * 1000 + i);
        /* Below or above what connect gets from the kernel. */
        case_port = settings.high ? 61000 + at % 4500 : 12000 + at % 20000;
        struct sockaddr_storage ss;
        socklen_t len = address(&ss, case_port, 1);
        int one = 1, fd = MUST(socket(ss.ss_family, SOCK_STREAM, 0));
        MUST(setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &one, sizeof one));
        if (bind(fd, (struct sockaddr *)&ss, len) == 0 && listen(fd, 100) == 0) {
            listener = fd;
            return;
        }
        close(fd);
        if (i == 100)
            die("no free port");
    }
}

int cold_slot(int s)
{
    int one = 1, was = slot;
    slot = s;
    if (settings.dials) {
        struct reply r = ask('L', 0, 0);
        fd_of[s] = dial(r.value);
        ask('A', 0, 0);
    } else {
        need_listener();
        ask('n', case_port, 0);
        fd_of[s] = answer(listener);
    }
    /* Nagle's 40 ms would make what was sent when depend on time. */
    MUST(setsockopt(fd_of[s], IPPROTO_TCP, TCP_NODELAY, &one, sizeof one));
    from_subject[s] = from_peer[s] = warm_bytes[s] = 0;
    slot = was;
    return fd_of[s];
}

void warm_slot(int s)
{
    int up = 0;
    if (settings.warm == WARM_UP)
        for (int i = 0; !up && i < 60; i++)
            up = rounds(s, 8);
    else
        up = settings.warm && rounds(s, settings.warm);
    facts->warmed++;
    facts->upgraded += up;
}

int fresh_slot(int s)
{
    cold_slot(s);
    warm_slot(s);
    return fd_of[s];
}

void known_as(int s, int fd) { fd_of[s] = fd; }

ssize_t put(int fd, int len, int flags)
{
    fill(bulk, 1, from_subject[slot], len);
    ssize_t n = send(fd, bulk, len, flags);
    if (n > 0)
        from_subject[slot] += n;
    return n;
}

ssize_t take(int fd, int len, int flags)
{
    ssize_t n = recv(fd, bulk, len, flags);
    int e = errno;
    if (n > 0 && !(flags & (MSG_OOB | MSG_TRUNC)))
        check(bulk, 2, from_peer[slot], n, "subject");
    if (n > 0 && !(flags & (MSG_PEEK | MSG_OOB)))
        from_peer[slot] += n;
    errno = e;
    return n;
}

void took(const void *p, ssize_t n)
{
    if (n <= 0)
        return;
    check(p, 2, from_peer[slot], n, "subject");
    from_peer[slot] += n;
    compare_with_kernel(slot);
}

void *to_send(int n)
{
    fill(bulk, 1, from_subject[slot], n);
    return bulk;
}

void sent(ssize_t n)
{
    from_subject[slot] += n > 0 ? n : 0;
    compare_with_kernel(slot);
}

void drain(int fd)
{
    while (take(fd, 1000, MSG_DONTWAIT) > 0)
        ;
}

long fill_up(int fd)
{
    long total = 0;
    /* The kernel goes on taking for a moment, while what is under way arrives, and takes a byte where it refuses many. */
    struct counts c;
    int room;
    socklen_t len = sizeof room;
    /* A switch would bring new room, and so would a buffer that grows: set once, it does not. */
    settings.nudge = 0;
    MUST(getsockopt(fd, SOL_SOCKET, SO_SNDBUF, &room, &len));
    /* What the program leaves larger than a ring bounds nothing there, and a full ring that nobody reads for some seconds
       goes back to TCP: on a machine that stands still a case that waits in front of it would find room. The kernel for pages
       of 64 KiB gives as much by itself. */
    enum { SMALLER_THAN_A_RING = 1 << 20 };
    room = room / 2 < SMALLER_THAN_A_RING ? room / 2 : SMALLER_THAN_A_RING;
    MUST(setsockopt(fd, SOL_SOCKET, SO_SNDBUF, &room, sizeof room));
    for (int n, quiet = 0; quiet < 5; quiet++) {
        for (int size = 50000; size > 0; size /= 50)
            while ((n = put(fd, size, MSG_DONTWAIT | MSG_NOSIGNAL)) > 0)
                total += n, quiet = 0;
        /* A window of less than a segment is left alone until a timer of some 200 ms fills it: there would be room then. */
        long end = now_ms() + 5000;
        do
            nap(2);
        while (kernel_counts(fd, &c) == 0 && (c.unacked || (c.unsent && c.window && now_ms() < end)));
    }
    return total;
}

void outcome(const char *what, long n)
{
    say("%s: %s, signals %d", what, result(n), (int)hits);
}

int set_with(int fd, unsigned events)
{
    int set = MUST(epoll_create1(EPOLL_CLOEXEC));
    struct epoll_event e = { .events = events, .data.u64 = 0x1234567890abcdefull };
    MUST(epoll_ctl(set, EPOLL_CTL_ADD, fd, &e));
    return set;
}

const char *wait_for(int set, int ms)
{
    static __thread char text[4][160];
    static __thread int turn;
    char *t = text[turn++ % 4];
    struct epoll_event e[4];
    memset(e, 0, sizeof e);
    int n = epoll_wait(set, e, 4, ms);
    if (n > 0)
        snprintf(t, 160, "%d %s%s", n, mask_names(e[0].events),
                 e[0].data.u64 == 0x1234567890abcdefull ? "" : " with other data");
    else
        snprintf(t, 160, "%s", result(n));
    return t;
}

void look(int fd, const char *when)
{
    struct pollfd p = { .fd = fd, .events = POLLIN | POLLOUT | POLLPRI | POLLRDHUP };
    int n = poll(&p, 1, 0), set = MUST(epoll_create1(0));
    struct epoll_event e = { .events = EPOLLIN | EPOLLOUT | EPOLLPRI | EPOLLRDHUP };
    MUST(epoll_ctl(set, EPOLL_CTL_ADD, fd, &e));
    e.events = 0;
    int m = epoll_wait(set, &e, 1, 0);
    say("%s: poll %d %s, epoll %d %s", when, n, mask_names(n > 0 ? p.revents : 0), m, mask_names(m > 0 ? (int)e.events : 0));
    p.events = 0;
    n = poll(&p, 1, 0);
    fd_set in, out, ex;
    struct timeval t = { 0, 0 };
    FD_ZERO(&in);
    FD_ZERO(&out);
    FD_ZERO(&ex);
    if (fd < FD_SETSIZE) {
        FD_SET(fd, &in);
        FD_SET(fd, &out);
        FD_SET(fd, &ex);
        m = select(fd + 1, &in, &out, &ex, &t);
        say("%s: asked for nothing %d %s, select %d%s%s%s", when, n, mask_names(n > 0 ? p.revents : 0), m,
            FD_ISSET(fd, &in) ? " in" : "", FD_ISSET(fd, &out) ? " out" : "", FD_ISSET(fd, &ex) ? " ex" : "");
    }
    close(set);
}

void on(int sig, void (*handler)(int), int flags)
{
    struct sigaction a = { .sa_handler = handler, .sa_flags = flags };
    sigemptyset(&a.sa_mask);
    MUST(sigaction(sig, &a, NULL));
}

void until_asleep(pid_t tid) { await_sleep(getpid(), tid); }

static void *thread_main(void *arg)
{
    struct thread *t = arg;
    __atomic_store_n(&t->tid, gettid(), __ATOMIC_RELEASE);
    return t->run(t->arg);
}

void spawn_thread(struct thread *t, void *(*run)(void *), void *arg)
{
    t->run = run;
    t->arg = arg;
    t->tid = 0;
    if (pthread_create(&t->id, NULL, thread_main, t))
        die("pthread_create");
    while (!__atomic_load_n(&t->tid, __ATOMIC_ACQUIRE))
        sched_yield();
}

void *join(struct thread *t)
{
    void *end;
    pthread_join(t->id, &end);
    return end;
}

void reap(pid_t pid, const char *who)
{
    int status;
    while (waitpid(pid, &status, 0) < 0)
        if (errno != EINTR)
            die("waitpid of %s", who);
    if (WIFEXITED(status))
        say("%s: exit %d", who, WEXITSTATUS(status));
    else
        say("%s: signal %d", who, WTERMSIG(status));
}
