/*
 * The frame of the process programs: PROGRAM PORT CASE.
 * A client in its own process sends rounds of known bytes and wants each back; who answers, and how it got the
 * connection, is what the case is about. Round i is a function of i, so that any process can take over at any round.
 */
#ifndef PROC_H
#define PROC_H
#include "common.h"
#include <sys/mman.h>

#define WARM 60   /* rounds before the interesting thing happens: both directions have switched by then */
#define ROUNDS 200

static int port;
static volatile int *holds;

static size_t round_bytes(int i, unsigned char *buf)
{
    size_t len = 1 + mix(i) % 1500;
    fill(buf, mix(i + 1000), 0, len);
    return len;
}

/* Whether the harness still waits for this connection to be upgraded: it looks at the first client to come here. */
static int held(void)
{
    static int first;
    char c;
    if (!first && getenv("SWT_PAUSE") && __sync_fetch_and_add(holds, 1) == 0) {
        fprintf(stderr, "warm\n");
        first = 1;
    }
    if (!first)
        return 0;
    if (poll(&(struct pollfd){ .fd = 0, .events = POLLIN }, 1, 1) == 0)
        return 1;
    (void)!read(0, &c, 1);
    first = 0;
    return 0;
}

/* The last warm round is said over and over while the harness waits: how many rounds an upgrade takes is up to the machine,
 * and a connection on which nothing is said is never upgraded. A first byte turned over tells that it will come again. */
static void talk(int fd, int from, int to)
{
    unsigned char want[2048], have[2048];
    int slowly = getenv("SWT_PAUSE") != NULL;
    for (int i = from; i < to; i++) {
        size_t len = round_bytes(i, want);
        int again = i == WARM - 1 && held();
        /* A parent on a busy machine needs its turn to close what it shares with the child that serves us. */
        if (slowly && i < WARM)
            nap(1);
        if (again)
            want[0] ^= 0xff;
        send_all(fd, want, len);
        recv_all(fd, have, len);
        if (memcmp(want, have, len) != 0) {
            errno = 0;
            die("round %d came back wrong", i);
        }
        i -= again;
    }
}

UNUSED static void serve(int fd, int from, int to)
{
    unsigned char want[2048], have[2048];
    for (int i = from; i < to; i++) {
        size_t len = round_bytes(i, want);
        recv_all(fd, have, len);
        int again = i == WARM - 1 && have[0] == (want[0] ^ 0xff);
        if (again)
            want[0] ^= 0xff;
        if (memcmp(want, have, len) != 0) {
            size_t at = 0;
            while (have[at] == want[at])
                at++;
            errno = 0;
            die("round %d arrived wrong: byte %zu of %zu is %02x %02x, not %02x %02x", i, at, len, have[at], have[at + 1],
                want[at], want[at + 1]);
        }
        send_all(fd, have, len);
        i -= again;
    }
}

UNUSED static void echo_until_end(int in, int out)
{
    char buf[4096];
    ssize_t n;
    while ((n = MUST(read(in, buf, sizeof buf))) > 0)
        for (ssize_t at = 0; at < n;)
            at += MUST(write(out, buf + at, n - at));
}

/* A pipe: clients that are made while there is one connect each at a byte from it. */
static int gate[2] = { -1, -1 };

/* A client process: its exit status says whether all rounds and the end were right. */
static pid_t client(int rounds, int listener)
{
    pid_t pid = MUST(fork());
    if (pid)
        return pid;
    if (listener >= 0)
        close(listener);
    char turn;
    if (gate[0] >= 0 && read(gate[0], &turn, 1) != 1)
        die("the turn of a client");
    int one = 1, fd = dial(port);
    MUST(setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one));
    talk(fd, 0, rounds);
    MUST(shutdown(fd, SHUT_WR));
    char extra;
    ssize_t n = recv(fd, &extra, 1, 0);
    if (n != 0)
        die("after the last round: %zd", n);
    close(fd);
    _exit(0);
}

static void reap(pid_t pid, const char *who)
{
    int status;
    while (waitpid(pid, &status, 0) < 0)
        if (errno != EINTR)
            die("waitpid of %s", who);
    if (WIFEXITED(status))
        report("%s: exit %d", who, WEXITSTATUS(status));
    else
        report("%s: signal %d", who, WTERMSIG(status));
}

/* Reads the end that the client's shutdown causes, then closes. */
UNUSED static void finish(int fd)
{
    char extra;
    ssize_t n = recv(fd, &extra, 1, 0);
    if (n != 0)
        die("expected the end, got %zd", n);
    close(fd);
}

struct scene { const char *name; void (*play)(int listener); };

UNUSED static int play(int argc, char **argv, const struct scene *scenes)
{
    if (argc < 3)
        die("usage: %s PORT CASE", argv[0]);
    port = atoi(argv[1]);
    limit_life(600);
    holds = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (holds == MAP_FAILED)
        die("mmap");
    for (; scenes->name; scenes++)
        if (strcmp(scenes->name, argv[2]) == 0) {
            int listener = listen_on(port);
            MUST(fcntl(listener, F_SETFD, FD_CLOEXEC));
            scenes->play(listener);
            report("done");
            return 0;
        }
    die("no case %s", argv[2]);
    return 1;
}
#endif
