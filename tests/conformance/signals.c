/* Signals in the middle of calls, handlers that use the connection, cancellation. */
#include "frame.h"
#include <setjmp.h>
#include <sys/signalfd.h>
#include <sys/syscall.h>

/* A part was sent when the signal comes. */
CASE(signals_partial_send)
{
    static char big[64 << 20];
    int fd = fresh();
    on(SIGUSR1, count_hit, 0);
    when_asleep('k', SIGUSR1, 0);
    ssize_t n = send(fd, big, sizeof big, 0);
    say("a part %d, not all %d, hits %d", n > 0, n < (ssize_t)sizeof big, (int)hits);
}

CASE(signals_partial_sendmsg)
{
    static char big[64 << 20];
    int fd = fresh();
    struct iovec v[3] = { { big, 10 }, { big, sizeof big - 20 }, { big, 10 } };
    struct msghdr m = { .msg_iov = v, .msg_iovlen = 3 };
    on(SIGUSR1, count_hit, SA_RESTART);
    when_asleep('k', SIGUSR1, 0);
    ssize_t n = sendmsg(fd, &m, 0);
    say("a part %d, not all %d, hits %d", n > 0, n < (ssize_t)sizeof big, (int)hits);
}

/* A handler that uses the same connection must never wait for a lock its own thread holds. */
static int shared_fd;

static void look_inside(int s)
{
    int e = errno;
    char c[8];
    (void)s;
    hits++;
    recv(shared_fd, c, sizeof c, MSG_DONTWAIT | MSG_PEEK);
    errno = e;
}

CASE(signals_handler_reads)
{
    int fd = shared_fd = fresh();
    timer_t timer;
    struct sigevent ev = { .sigev_notify = SIGEV_SIGNAL, .sigev_signo = SIGVTALRM };
    struct itimerspec every = { { 0, 200000 }, { 0, 200000 } }, off = { { 0, 0 }, { 0, 0 } };
    int wrong = 0;
    on(SIGVTALRM, look_inside, SA_RESTART);
    MUST(timer_create(CLOCK_MONOTONIC, &ev, &timer));
    MUST(timer_settime(timer, 0, &every, NULL));
    peer_echoes(2000);
    for (int i = 0; i < 2000; i++) {
        char out[8], in[8];
        fill(out, 7, i * 8, 8);
        send_all(fd, out, 8);
        recv_all(fd, in, 8);
        wrong += memcmp(in, out, 8) != 0;
    }
    MUST(timer_settime(timer, 0, &off, NULL));
    say("wrong answers %d, the handler ran %d", wrong, hits > 0);
}

static void answer_inside(int s)
{
    int e = errno;
    (void)s;
    hits++;
    sent(send(shared_fd, to_send(5), 5, MSG_DONTWAIT));
    errno = e;
}

CASE(signals_handler_sends)
{
    int fd = shared_fd = fresh();
    on(SIGUSR1, answer_inside, SA_RESTART);
    when_asleep('K', SIGUSR1, 0);
    R(take(fd, 10, 0));
    say("hits %d, the peer reads %ld", (int)hits, tell('r', 5));
}

static sigjmp_buf back;
static void leave(int s) { (void)s; siglongjmp(back, 1); }

/* Old programs leave a blocked call by a jump out of the handler. */
CASE(signals_jump_out)
{
    int fd = fresh();
    on(SIGUSR1, leave, 0);
    for (int i = 0; i < 3; i++) {
        if (sigsetjmp(back, 1) == 0) {
            when_asleep('k', SIGUSR1, 0);
            struct pollfd p = { .fd = fd, .events = POLLIN };
            struct epoll_event e;
            say("%s", result(i == 0 ? take(fd, 10, 0) : i == 1 ? poll(&p, 1, -1) : epoll_wait(set_with(fd, EPOLLIN), &e, 1, -1)));
        } else {
            say("left");
        }
        tell('w', 3);
        R(take(fd, 10, 0));
        R(put(fd, 3, 0));
        say("the peer reads %ld", tell('r', 3));
    }
}

CASE(signals_signalfd_in_the_set)
{
    int fd = fresh(), set = set_with(fd, EPOLLIN);
    sigset_t usr1;
    struct epoll_event e = { .events = EPOLLIN, .data.u32 = 5 };
    struct signalfd_siginfo info;
    sigemptyset(&usr1);
    sigaddset(&usr1, SIGUSR1);
    sigprocmask(SIG_BLOCK, &usr1, NULL);
    int s = MUST(signalfd(-1, &usr1, SFD_NONBLOCK));
    MUST(epoll_ctl(set, EPOLL_CTL_ADD, s, &e));
    when_asleep('k', SIGUSR1, 0);
    int n = epoll_wait(set, &e, 1, -1);
    say("woken %d for %d", n, n == 1 ? (int)e.data.u32 : 0);
    say("signal %d", read(s, &info, sizeof info) == sizeof info && info.ssi_signo == SIGUSR1);
    when_asleep('w', 3, 0);
    say("woken %s", wait_for(set, -1));
}

static void on_io(int s, siginfo_t *i, void *c)
{
    (void)s, (void)i, (void)c;
    hits++;
}

/* SIGIO for what arrives: the connection must ring the kernel for every message. Asked for late, in front of the first byte, or
 * by an instruction, which nobody sees. */
enum { BY_FCNTL, BY_IOCTL, EARLY, EARLY_BY_IOCTL, UNSEEN };
static void async(int way)
{
    int fd = way < EARLY ? fresh() : cold(), one = 1, by_ioctl = way == BY_IOCTL || way == EARLY_BY_IOCTL;
    struct sigaction a = { .sa_sigaction = on_io, .sa_flags = SA_SIGINFO | SA_RESTART };
    sigaction(SIGIO, &a, NULL);
    R(fcntl(fd, F_SETOWN, getpid()));
    say("owner is right %d", fcntl(fd, F_GETOWN) == getpid());
    if (way == UNSEEN) {
        say("set %ld", unseen(SYS_fcntl, fd, F_SETFL, O_ASYNC, 0));
    } else if (by_ioctl) {
        R(ioctl(fd, FIOASYNC, &one));
    } else {
        R(fcntl(fd, F_SETFL, O_ASYNC | (way == EARLY ? 0 : O_NONBLOCK)));
    }
    if (way >= EARLY)
        warm_slot(0);
    say("flag %d", (fcntl(fd, F_GETFL) & O_ASYNC) != 0);
    for (int i = 0; i < 4; i++) {
        int before = hits;
        tell('w', 5);
        for (int t = 0; t < 500 && hits == before; t++)
            nap(2);
        say("signalled %d, recv %s", hits > before, result(take(fd, 10, MSG_DONTWAIT)));
    }
    int before = hits;
    tell('s', SHUT_WR);
    for (int t = 0; t < 500 && hits == before; t++)
        nap(2);
    say("signalled at the end %d", hits > before);
}

CASE(signals_async_fcntl) { async(BY_FCNTL); }
CASE(signals_async_ioctl) { async(BY_IOCTL); }
CASE_PLAN(signals_async_early, STAYS_TCP) { async(EARLY); }
CASE_PLAN(signals_async_early_ioctl, STAYS_TCP) { async(EARLY_BY_IOCTL); }
CASE_PLAN(signals_async_unseen, STAYS_TCP) { async(UNSEEN); }

/* What is switched off was not on. */
CASE(signals_async_off)
{
    int fd = fresh(), zero = 0;
    R(ioctl(fd, FIOASYNC, &zero));
    R(ioctl(fd, FIOASYNC, (int *)8));
    tell('w', 5);
    R(take(fd, 10, 0));
}

/* Cancellation of each blocking call; the connection must be whole afterwards. */
static int blocked_fd;

static void *blocks_in(void *arg)
{
    char c[8] = "";
    struct pollfd p = { .fd = blocked_fd, .events = POLLIN };
    struct iovec v = { c, 8 };
    struct msghdr m = { .msg_iov = &v, .msg_iovlen = 1 };
    struct epoll_event e;
    fd_set in;
    FD_ZERO(&in);
    FD_SET(blocked_fd, &in);
    switch ((long)arg) {
    case 0: (void)!read(blocked_fd, c, 8); break;
    case 1: recv(blocked_fd, c, 8, 0); break;
    case 2: recvmsg(blocked_fd, &m, 0); break;
    case 3: (void)!readv(blocked_fd, &v, 1); break;
    case 4: poll(&p, 1, -1); break;
    case 5: select(blocked_fd + 1, &in, NULL, NULL, NULL); break;
    case 6: epoll_wait(set_with(blocked_fd, EPOLLIN), &e, 1, -1); break;
    case 7: recv(blocked_fd, c, 8, MSG_WAITALL); break;
    case 8: ppoll(&p, 1, NULL, NULL); break;
    case 9: send(blocked_fd, c, 8, 0); break;
    case 10: (void)!write(blocked_fd, c, 8); break;
    }
    return NULL;
}

static const char *blocked_name(const char *id, int n)
{
    static const char *names[] = { "read", "recv", "recvmsg", "readv", "poll", "select", "epoll_wait", "waitall", "ppoll", "send", "write" };
    static char text[80];
    snprintf(text, sizeof text, "%s %s", id, names[n]);
    return text;
}

CASES(signals_cancelled, 11, blocked_name, UPGRADES)
{
    struct thread t;
    int fd = blocked_fd = fresh();
    long total = arg >= 9 ? fill_up(fd) : 0;
    spawn_thread(&t, blocks_in, (void *)(long)arg);
    until_asleep(t.tid);
    pthread_cancel(t.id);
    say("cancelled %d", join(&t) == PTHREAD_CANCELED);
    say("the peer reads all: %d", tell('r', total) == total);
    tell('w', 3);
    R(take(fd, 10, 0));
    R(put(fd, 4, 0));
    say("the peer reads %ld", tell('r', 4));
    when_asleep('w', 3, 0);
    R(take(fd, 10, 0));
}

/* Another thread closes the number under a blocked call; then data comes, which ends a wait that outlives its number. */
CASES(signals_closed_under, 9, blocked_name, UPGRADES)
{
    struct thread t;
    int copy;
    blocked_fd = fresh();
    copy = MUST(dup(blocked_fd));
    known_as(0, copy);
    spawn_thread(&t, blocks_in, (void *)(long)arg);
    until_asleep(t.tid);
    R(close(blocked_fd));
    ask('w', 8, 0);
    join(&t);
    if (arg == 6 || arg == 4 || arg == 5 || arg == 8)
        R(take(copy, 10, 0));
    tell('s', SHUT_WR);
    R(put(copy, 4, 0));
    say("the peer reads %ld", tell('r', 4));
}
