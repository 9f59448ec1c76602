/* Connections and descriptors: dup, dup2 over a live one, passing to another process, stdio. */
#include "proc.h"
#include <pthread.h>
#include <sys/socket.h>

static void dups(int listener)
{
    pid_t peer = client(ROUNDS, listener);
    int fd = answer(listener), at = 0;
    for (int i = 0; i < 5; i++, at += 30) {
        serve(fd, at, at + 30);
        int next = i == 0   ? dup(fd)
                   : i == 1 ? dup2(fd, 100)
                   : i == 2 ? dup3(fd, 101, O_CLOEXEC)
                   : i == 3 ? fcntl(fd, F_DUPFD, 200)
                            : fcntl(fd, F_DUPFD_CLOEXEC, 300);
        MUST(next);
        serve(next, at + 30, at + 31);
        serve(fd, at + 31, at + 32);
        at += 2;
        close(fd);
        fd = next;
    }
    report("dup2 onto itself %d", dup2(fd, fd) == fd);
    serve(fd, at, ROUNDS);
    finish(fd);
    reap(peer, "client");
}

/* One connection takes the number of another: that one ends for its peer, the first goes on. */
static void dup2_over(int listener)
{
    pid_t first = client(WARM, listener);
    MUST(pipe(gate));
    pid_t second = client(ROUNDS, listener);
    int a = answer(listener);
    MUST(write(gate[1], "x", 1));
    int b = answer(listener);
    serve(a, 0, WARM);
    serve(b, 0, WARM);
    char c;
    report("first ended %d", recv(a, &c, 1, 0) == 0);
    MUST(dup2(b, a));
    reap(first, "first client");
    serve(a, WARM, WARM + 20);
    close(b);
    serve(a, WARM + 20, ROUNDS);
    int null = MUST(open("/dev/null", O_RDONLY));
    char extra;
    report("second ended %d", recv(a, &extra, 1, 0) == 0);
    MUST(dup2(null, a));
    reap(second, "second client");
    report("now a file %d", read(a, &c, 1) == 0);
    close(a);
    close(null);
}

static int blocked_fd;
static volatile pid_t reader;

static void ignore(int s) { (void)s; }

static void *blocked_read(void *arg)
{
    static char text[2][40];
    char c;
    (void)arg;
    reader = gettid();
    for (int i = 0; i < 2; i++) {
        ssize_t n = read(blocked_fd, &c, 1);
        snprintf(text[i], 40, "%s", n == 0 ? "end" : n < 0 && errno == EINTR ? "EINTR" : "something else");
    }
    return text;
}

/* Until the reader has been seen asleep three times in a row: then it is in its read, however late it got there. */
static void until_it_reads(void)
{
    for (int seen = 0; seen < 3;) {
        char name[64], line[512] = "";
        nap(20);
        if (!reader)
            continue;
        snprintf(name, sizeof name, "/proc/self/task/%d/stat", (int)reader);
        FILE *stat = fopen(name, "r");
        if (!stat || !fgets(line, sizeof line, stat))
            die("the reader has ended");
        fclose(stat);
        char *end = strrchr(line, ')');
        seen = end && end[2] == 'S' ? seen + 1 : 0;
    }
}

/* Java's close: a half-closed socket is put over the number while another thread is blocked reading it. */
static void preclose(int listener)
{
    pid_t peer = MUST(fork());
    if (peer == 0) {
        int fd = dial(port);
        char c;
        talk(fd, 0, WARM);
        _exit(recv(fd, &c, 1, 0) == 0 ? 0 : 6);
    }
    struct sigaction a = { .sa_handler = ignore };
    int marker[2];
    pthread_t t;
    void *said;
    sigaction(SIGUSR1, &a, NULL);
    MUST(socketpair(AF_UNIX, SOCK_STREAM, 0, marker));
    close(marker[1]);
    MUST(shutdown(marker[0], SHUT_RDWR));
    blocked_fd = answer(listener);
    serve(blocked_fd, 0, WARM);
    pthread_create(&t, NULL, blocked_read, NULL);
    until_it_reads();
    MUST(dup2(marker[0], blocked_fd));
    pthread_kill(t, SIGUSR1);
    pthread_join(t, &said);
    report("blocked read: %s, then %s", (char *)said, (char *)said + 40);
    reap(peer, "client");
    close(blocked_fd);
    close(marker[0]);
}

static void pass(int over, int fd)
{
    char c = 'f', space[CMSG_SPACE(sizeof(int))];
    struct iovec v = { &c, 1 };
    struct msghdr m = { .msg_iov = &v, .msg_iovlen = 1, .msg_control = space, .msg_controllen = sizeof space };
    struct cmsghdr *h = CMSG_FIRSTHDR(&m);
    h->cmsg_level = SOL_SOCKET;
    h->cmsg_type = SCM_RIGHTS;
    h->cmsg_len = CMSG_LEN(sizeof(int));
    memcpy(CMSG_DATA(h), &fd, sizeof fd);
    MUST(sendmsg(over, &m, 0));
}

static int passed(int over)
{
    char c, space[CMSG_SPACE(sizeof(int))];
    int fd = -1;
    struct iovec v = { &c, 1 };
    struct msghdr m = { .msg_iov = &v, .msg_iovlen = 1, .msg_control = space, .msg_controllen = sizeof space };
    if (MUST(recvmsg(over, &m, 0)) != 1 || !CMSG_FIRSTHDR(&m))
        die("no descriptor came");
    memcpy(&fd, CMSG_DATA(CMSG_FIRSTHDR(&m)), sizeof fd);
    return fd;
}

enum { BEFORE, AFTER, UNREAD };

static void rights(int listener, int when)
{
    int pair[2];
    MUST(socketpair(AF_UNIX, SOCK_STREAM, 0, pair));
    pid_t worker = MUST(fork());
    if (worker == 0) {
        close(pair[0]);
        close(listener);
        int fd = passed(pair[1]);
        serve(fd, when == BEFORE ? 0 : WARM, ROUNDS);
        finish(fd);
        _exit(0);
    }
    close(pair[1]);
    pid_t peer = client(ROUNDS, listener);
    int fd = answer(listener);
    if (when != BEFORE)
        serve(fd, 0, WARM);
    if (when == UNREAD) {
        struct pollfd p = { .fd = fd, .events = POLLIN };
        report("unread %d", poll(&p, 1, 5000));
    }
    pass(pair[0], fd);
    close(fd);
    reap(peer, "client");
    reap(worker, "worker");
}

static void rights_before(int listener) { rights(listener, BEFORE); }
static void rights_after(int listener) { rights(listener, AFTER); }
static void rights_unread(int listener) { rights(listener, UNREAD); }

/* A text conversation, so that stdio can take part; lines first as plain calls, then as a stream. */
static pid_t text_client(int lines)
{
    pid_t pid = MUST(fork());
    if (pid)
        return pid;
    int fd = dial(port), one = 1;
    MUST(setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one));
    for (int i = 0; i < lines; i++) {
        char out[64], in[64] = "", want[64];
        int n = snprintf(out, sizeof out, "question %d\n", i), m = snprintf(want, sizeof want, "answer %d\n", i);
        send_all(fd, out, n);
        recv_all(fd, in, m);
        if (strcmp(in, want) != 0)
            die("line %d: %s", i, in);
    }
    MUST(shutdown(fd, SHUT_WR));
    finish(fd);
    _exit(0);
}

static void text_serve(int fd, int from, int to)
{
    for (int i = from; i < to; i++) {
        char in[64] = "", want[64], out[64];
        int m = snprintf(want, sizeof want, "question %d\n", i), n = snprintf(out, sizeof out, "answer %d\n", i);
        recv_all(fd, in, m);
        if (strcmp(in, want) != 0)
            die("line %d: %s", i, in);
        send_all(fd, out, n);
    }
}

static void stdio(int listener, int from)
{
    pid_t peer = text_client(ROUNDS);
    int fd = answer(listener);
    text_serve(fd, 0, from);
    FILE *in = fdopen(fd, "r"), *out = fdopen(dup(fd), "w");
    if (!in || !out)
        die("fdopen");
    report("fileno is the same %d", fileno(in) == fd);
    char line[64], want[64];
    for (int i = from; i < ROUNDS; i++) {
        snprintf(want, sizeof want, "question %d\n", i);
        if (!fgets(line, sizeof line, in) || strcmp(line, want) != 0)
            die("line %d as a stream", i);
        fprintf(out, "answer %d\n", i);
        fflush(out);
    }
    report("end of the stream %d", fgetc(in) == EOF && feof(in));
    fclose(in);
    fclose(out);
    reap(peer, "client");
}

static void stdio_before(int listener) { stdio(listener, 0); }
static void stdio_after(int listener) { stdio(listener, WARM); }

static void dprintf_after(int listener)
{
    pid_t peer = text_client(ROUNDS);
    int fd = answer(listener);
    text_serve(fd, 0, WARM);
    for (int i = WARM; i < ROUNDS; i++) {
        char line[64] = "";
        recv_all(fd, line, snprintf(NULL, 0, "question %d\n", i));
        dprintf(fd, "answer %d\n", i);
    }
    finish(fd);
    reap(peer, "client");
}

int main(int argc, char **argv)
{
    static const struct scene scenes[] = {
        { "dups", dups }, { "dup2-over", dup2_over }, { "preclose", preclose }, { "rights-before", rights_before },
        { "rights-after", rights_after }, { "rights-unread", rights_unread }, { "stdio-before", stdio_before },
        { "stdio-after", stdio_after }, { "dprintf-after", dprintf_after }, { NULL, NULL } };
    return play(argc, argv, scenes);
}
