/* The frame of `walk`: two processes, the connections between them, and whose turn it is. */
#ifndef WALK_H
#define WALK_H
#include "common.h"
#include <sys/epoll.h>
#include <sys/mman.h>
#include <sys/select.h>
#include <sys/sendfile.h>

#define SLOTS 3
#define SETS 2
#define TEXT (16 << 20)

static struct board {
    uint64_t sent[2][SLOTS], got[2][SLOTS]; /* stream bytes, by side */
    int open[2][SLOTS], ended[SLOTS];
    /* By side: it has said that nothing follows; it has closed; it has sent to one that had closed. */
    int shut[2][SLOTS], closed[2][SLOTS], answered[2][SLOTS];
    size_t len;
    char text[TEXT];
} *board;
#define sent board->sent
#define got board->got

static int port, side, warm, listener, control[2][2], file, pipes[2], turn, mine;
static int fds[SLOTS], dups[SLOTS], sets[SETS], unsettled[SLOTS];
static uint64_t shared_random, own_random;
static pid_t other;
static char scratch[1 << 16];

/* A choice of the side whose turn it is; no other side follows it. */
static int pick(int n) { return next_random(&own_random) % n; }

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
    board->len += sprintf(board->text + board->len, "%d %c ", turn, "AB"[side]);
    va_start(ap, fmt);
    board->len += vsprintf(board->text + board->len, fmt, ap);
    va_end(ap);
    board->text[board->len++] = '\n';
}

static int fd_of(int n) { return dups[n] >= 0 && (fds[n] < 0 || pick(2)) ? dups[n] : fds[n]; }
static size_t unread(int n) { return sent[side][n] - got[!side][n]; }
static size_t unread_here(int n) { return sent[!side][n] - got[side][n]; }

static int has_arrived(int n)
{
    int fd = fds[n] >= 0 ? fds[n] : dups[n], there = -1, s;
    struct tcp_info t;
    socklen_t len = sizeof t;
    if (fd < 0)
        return 1;
    s = getsockopt(fd, IPPROTO_TCP, TCP_INFO, &t, &len) < 0 ? TCP_CLOSE : t.tcpi_state;
    if (board->answered[side][n])
        return s == TCP_CLOSE;
    if (board->shut[!side][n] && s != TCP_CLOSE && s != TCP_CLOSE_WAIT && s != TCP_CLOSING && s != TCP_TIME_WAIT && s != TCP_LAST_ACK)
        return 0;
    return s == TCP_CLOSE || (ioctl(fd, FIONREAD, &there) == 0 && there == (int)unread_here(n));
}

/* What the other side did has arrived here: on a busy machine the kernel's own thread may have to bring it, later. What
 * never comes, because a reset took it, is waited for once. */
static void settle(void)
{
    long limit = now_ms() + 300;
    for (int n = 0; n < SLOTS; n++) {
        while (!unsettled[n] && !has_arrived(n)) {
            unsettled[n] = now_ms() > limit;
            nap(1);
        }
    }
}

static void drain_pipe(void)
{
    struct pollfd p = { .fd = pipes[0], .events = POLLIN };
    while (poll(&p, 1, 0) > 0)
        if (read(pipes[0], scratch, sizeof scratch) <= 0)
            die("pipe");
}

static void begin(uint64_t seed, int rounds)
{
    warm = rounds;
    limit_life(900);
    signal(SIGPIPE, SIG_IGN);
    board = mmap(NULL, sizeof *board, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    listener = listen_on(port);
    for (int i = 0; i < 2; i++)
        MUST(pipe(control[i]));
    memset(fds, -1, sizeof fds);
    memset(dups, -1, sizeof dups);
    other = MUST(fork());
    side = other == 0;
    /* Whoever dies is missed. */
    close(control[side][1]);
    close(control[!side][0]);
    shared_random = mix(seed);
    own_random = mix(seed * 2 + side);
    file = MUST(memfd_create("walk", MFD_CLOEXEC));
    MUST(pipe2(pipes, O_NONBLOCK));
    for (int i = 0; i < SETS; i++)
        sets[i] = MUST(epoll_create1(0));
}

static void take_over(void);
static void end(void);

static void hand_over(void)
{
    char c = 0;
    if (write(control[!side][1], &c, 1) != 1)
        take_over();
}

static void take_over(void)
{
    char c;
    if (read(control[side][0], &c, 1) == 1)
        return;
    if (side)
        _exit(1);
    end();
    exit(1);
}

/* A connection that both sides have closed makes room for another. */
static void renew(void)
{
    for (int n = 0; n < SLOTS; n++)
        board->open[side][n] = fds[n] >= 0 || dups[n] >= 0;
    hand_over();
    take_over();
    for (int n = 0; n < SLOTS; n++) {
        if (board->open[0][n] || board->open[1][n])
            continue;
        int one = 1;
        char c[16] = "warm";
        fds[n] = side ? dial(port) : answer(listener);
        MUST(setsockopt(fds[n], IPPROTO_TCP, TCP_NODELAY, &one, sizeof one));
        sent[side][n] = got[side][n] = board->ended[n] = unsettled[n] = 0;
        board->shut[side][n] = board->closed[side][n] = board->answered[side][n] = 0;
        for (int i = 0; i < warm; i++) {
            if (side)
                send_all(fds[n], c, sizeof c);
            recv_all(fds[n], c, sizeof c);
            if (!side)
                send_all(fds[n], c, sizeof c);
        }
        struct timeval tv = { 0, 3000 };
        MUST(setsockopt(fds[n], SOL_SOCKET, SO_RCVTIMEO, &tv, sizeof tv));
    }
    /* Nobody goes on before both are there. */
    hand_over();
    take_over();
}

static int my_turn(void)
{
    turn++;
    mine = (int)(next_random(&shared_random) % 2) == side;
    return mine;
}

static void pass(void)
{
    if (mine)
        hand_over();
    else
        take_over();
}

static void end(void)
{
    int status;
    if (side)
        _exit(0);
    MUST(waitpid(other, &status, 0));
    fwrite(board->text, 1, board->len, stdout);
    if (status)
        die("the other side ends with status %x", status);
}
#endif
