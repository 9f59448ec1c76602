/* The other end of the connections: does what it is told, each case in a process of its own. */
#include "frame.h"
#include <sys/un.h>

#define BULK (1 << 20)

static int fds[SLOTS], waiting = -1;
static uint64_t tx[SLOTS], rx[SLOTS];
static char buf[BULK];

/* As /proc has it, with how often it has gone to sleep; 0 of a thread that has ended. */
static char state_of(pid_t pid, pid_t tid, long *switches)
{
    char path[64], text[4096];
    snprintf(path, sizeof path, "/proc/%d/task/%d/status", pid, tid);
    int fd = open(path, O_RDONLY);
    if (fd < 0)
        return 0;
    ssize_t n = read(fd, text, sizeof text - 1);
    close(fd);
    if (n <= 0)
        return 0;
    text[n] = 0;
    char *state = strstr(text, "State:\t"), *count = strstr(text, "\nvoluntary_ctxt_switches:");
    if (!state || !count)
        return '?';
    *switches = atol(count + 25);
    return state[7] == 'Z' ? 0 : state[7];
}

/* Asleep, and not woken for a while: it waits for us. */
int sleeping(pid_t pid, pid_t tid)
{
    long before = 0, switches = 0;
    for (int i = 0; i < 3; i++) {
        if (i)
            nap(3);
        char state = state_of(pid, tid, &switches);
        if (state == 0)
            return 1;
        if (state != 'S' || (i && switches != before))
            return 0;
        before = switches;
    }
    return 1;
}

void await_sleep(pid_t pid, pid_t tid)
{
    /* One that has not slept at all waits for a processor; one that never settles has a second from its first sleep on. */
    long switches, last = now_ms() + 20000;
    for (int settles = 0; !sleeping(pid, tid) && now_ms() < last; nap(1))
        if (!settles && state_of(pid, tid, &switches) == 'S') {
            settles = 1;
            last = now_ms() + 1000;
        }
}

static void write_stream(int s, int n)
{
    while (n > 0) {
        int part = n < BULK ? n : BULK;
        fill(buf, 2, tx[s], part);
        send_all(fds[s], buf, part);
        tx[s] += part;
        n -= part;
    }
}

/* One warm-up round trip; its bytes are not those of the case. */
static void echo(int s, int rounds)
{
    for (int i = 0; i < rounds; i++) {
        recv_all(fds[s], buf, 8);
        send_all(fds[s], buf, 8);
    }
}

static void read_stream(int s, long want, struct reply *r)
{
    while (want != 0) {
        ssize_t n = recv(fds[s], buf, want < 0 || want > BULK ? BULK : want, 0);
        if (n < 0 && errno == EINTR)
            continue;
        r->error = n < 0 ? errno : 0;
        if (n <= 0)
            return;
        check(buf, 1, rx[s], n, "peer");
        rx[s] += n;
        r->value += n;
        if (want > 0)
            want -= n;
    }
}

static void act(struct order *o, struct reply *r)
{
    struct linger now = { 1, 0 };
    int one = 1, s = o->slot;
    switch (o->op) {
    case 'n': fds[s] = dial(o->a); break;
    case 'L':
        waiting = listen_on(0);
        r->value = port_of(waiting);
        break;
    case 'A': fds[s] = answer(waiting); close(waiting); break;
    case 'e': echo(s, o->a); break;
    case 'w': write_stream(s, o->a); break;
    case 'V':
        write_stream(s, o->a);
        await_sleep(o->pid, o->tid);
        write_stream(s, o->b);
        break;
    case 'r': read_stream(s, o->a, r); break;
    case 'R': read_stream(s, -1, r); break;
    case 's': r->value = shutdown(fds[s], o->a); break;
    case 't':
        /* Bytes out, and the same back. */
        write_stream(s, o->a);
        r->value = recv_upto(fds[s], buf, o->a);
        break;
    case 'T':
        shutdown(fds[s], SHUT_WR);
        r->value = recv(fds[s], buf, BULK, 0);
        break;
    case 'E': {
        int n = 0;
        while (n == 0 || buf[n - 1] != '\n')
            n += MUST(recv(fds[s], buf + n, 1, 0));
        send_all(fds[s], buf, n);
        break;
    }
    case 'o': MUST(send(fds[s], "!", 1, MSG_OOB)); break;
    case 'O': MUST(send(fds[s], "abc!", 4, MSG_OOB)); break;
    case 'p': r->value = recv(fds[s], buf, BULK, MSG_PEEK | MSG_DONTWAIT); r->error = r->value < 0 ? errno : 0; break;
    case 'u': MUST(ioctl(fds[s], FIONREAD, &one)); r->value = one; break;
    case 'k': case 'K':
        kill(o->pid, o->a);
        if (o->op == 'K') {
            await_sleep(o->pid, o->tid);
            write_stream(s, 1);
        }
        break;
    case 'l': MUST(setsockopt(fds[s], SOL_SOCKET, SO_LINGER, &now, sizeof now)); close(fds[s]); break;
    case 'c': close(fds[s]); break;
    case 'q': {
        /* Everything of ours has been read there, as far as TCP knows. */
        int left = 1;
        for (long end = now_ms() + 3000; left && now_ms() < end; nap(1))
            MUST(ioctl(fds[s], TIOCOUTQ, &left));
        r->value = left;
        break;
    }
    default: die("no order %c", o->op);
    }
    if (o->op == 'n' || o->op == 'A') {
        MUST(setsockopt(fds[s], IPPROTO_TCP, TCP_NODELAY, &one, sizeof one));
        tx[s] = rx[s] = 0;
    }
}

static void serve(int control)
{
    struct order o;
    struct counts c;
    signal(SIGPIPE, SIG_IGN);
    limit_life(60);
    while (read(control, &o, sizeof o) == sizeof o) {
        struct reply r = { 0, 0, 0 };
        if (o.when == WHEN_ASLEEP || o.op == 'e') {
            (void)!write(control, &r, sizeof r);
            /* It has our answer and goes on to what it will sleep in. */
            if (o.when == WHEN_ASLEEP && read(control, &o, sizeof o) != sizeof o)
                break;
            if (o.when == WHEN_ASLEEP)
                await_sleep(o.pid, o.tid);
            act(&o, &r);
            continue;
        }
        act(&o, &r);
        kernel_counts(fds[o.slot], &c);
        r.sent = c.sent;
        (void)!write(control, &r, sizeof r);
    }
    _exit(0);
}

/* Goes on until standard input ends. */
void peer_main(const char *name)
{
    struct sockaddr_un a = { .sun_family = AF_UNIX };
    int fd = MUST(socket(AF_UNIX, SOCK_SEQPACKET, 0));
    snprintf(a.sun_path + 1, sizeof a.sun_path - 1, "%s", name);
    MUST(bind(fd, (struct sockaddr *)&a, sizeof a));
    MUST(listen(fd, 100));
    signal(SIGCHLD, SIG_IGN);
    fprintf(stderr, "ready\n");
    for (;;) {
        struct pollfd p[2] = { { .fd = 0, .events = POLLIN }, { .fd = fd, .events = POLLIN } };
        if (poll(p, 2, -1) < 0)
            continue;
        if (p[0].revents)
            exit(0);
        int control = answer(fd);
        if (MUST(fork()) == 0) {
            signal(SIGCHLD, SIG_DFL);
            close(fd);
            close(0);
            MUST(open("/dev/null", O_RDONLY));
            serve(control);
        }
        close(control);
    }
}
