/* Signals: what interrupts, what restarts, what a signal mask holds back. */
#include "sem.h"
#include <pthread.h>
#include <sys/epoll.h>
#include <sys/select.h>

static volatile sig_atomic_t hits;

static void on_signal(int s) { (void)s; hits++; }

static void handle(int flags)
{
    struct sigaction a = { .sa_handler = on_signal, .sa_flags = flags };
    sigemptyset(&a.sa_mask);
    MUST(sigaction(SIGUSR1, &a, NULL));
    hits = 0;
}

static void receives(int flags, const char *name)
{
    struct iovec v;
    char c[4];
    int fd = fresh(name);
    handle(flags);
    /* A byte follows the signal, so that a restarted call ends. */
    ask('K', 40, 40);
    say("recv %s", result(take(fd, 10, 0)));
    say("hits %d", (int)hits);
    nap(100);
    say("left over %s", result(take(fd, 10, MSG_DONTWAIT)));
    ask('K', 40, 40);
    ssize_t n = read(fd, c, 4);
    say("read %s", result(n));
    from_helper += n > 0 ? n : 0;
    say("hits %d", (int)hits);
    nap(100);
    say("left over %s", result(take(fd, 10, MSG_DONTWAIT)));
    ask('K', 40, 40);
    v = (struct iovec){ c, 4 };
    n = readv(fd, &v, 1);
    say("readv %s", result(n));
    from_helper += n > 0 ? n : 0;
    nap(100);
    say("left over %s", result(take(fd, 10, MSG_DONTWAIT)));
    tell('w', 3);
    ask('K', 40, 40);
    say("waitall with 3 of 4 there %s", result(take(fd, 4, MSG_WAITALL)));
    nap(100);
    say("left over %s", result(take(fd, 10, MSG_DONTWAIT)));
    struct timeval t = { 1, 0 };
    MUST(setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &t, sizeof t));
    ask('K', 40, 40);
    say("recv under SO_RCVTIMEO %s", result(take(fd, 10, 0)));
    nap(100);
    say("left over %s", result(take(fd, 10, MSG_DONTWAIT)));
    say("hits %d", (int)hits);
    close(fd);
}

static void waits(int flags, const char *name)
{
    int fd = fresh(name), set = MUST(epoll_create1(0));
    struct epoll_event e = { .events = EPOLLIN };
    struct pollfd p = { .fd = fd, .events = POLLIN };
    MUST(epoll_ctl(set, EPOLL_CTL_ADD, fd, &e));
    handle(flags);
    ask('K', 40, 0);
    int n = poll(&p, 1, 2000);
    say("poll %s", result(n));
    ask('K', 40, 0);
    n = epoll_wait(set, &e, 1, 2000);
    say("epoll_wait %s", result(n));
    ask('K', 40, 0);
    n = epoll_wait(set, &e, 1, -1);
    say("epoll_wait without a limit %s", result(n));
    ask('K', 40, 0);
    fd_set in;
    FD_ZERO(&in);
    FD_SET(fd, &in);
    struct timeval t = { 2, 0 };
    n = select(fd + 1, &in, NULL, NULL, &t);
    say("select %s, time left %d", result(n), t.tv_sec == 1);
    say("hits %d", (int)hits);
    tell('w', 1);
    n = poll(&p, 1, -1);
    say("poll %s", result(n));
    n = epoll_wait(set, &e, 1, -1);
    say("epoll_wait %s", result(n));
    close(set);
    close(fd);
}

static void masks(void)
{
    int fd = fresh("masks"), set = MUST(epoll_create1(0));
    struct epoll_event e = { .events = EPOLLIN };
    struct pollfd p = { .fd = fd, .events = POLLIN };
    struct timespec t = { 2, 0 };
    sigset_t block, none;
    fd_set in;
    MUST(epoll_ctl(set, EPOLL_CTL_ADD, fd, &e));
    handle(0);
    sigemptyset(&none);
    sigemptyset(&block);
    sigaddset(&block, SIGUSR1);
    MUST(sigprocmask(SIG_BLOCK, &block, NULL));
    ask('K', 30, 20);
    say("blocked: recv %s", result(take(fd, 10, 0)));
    say("hits %d", (int)hits);
    int n = ppoll(&p, 1, &t, &none);
    say("ppoll lets it in %s", result(n));
    say("hits %d", (int)hits);
    kill(getpid(), SIGUSR1);
    n = epoll_pwait(set, &e, 1, 2000, &none);
    say("epoll_pwait lets it in %s", result(n));
    kill(getpid(), SIGUSR1);
    FD_ZERO(&in);
    FD_SET(fd, &in);
    n = pselect(fd + 1, &in, NULL, NULL, &t, &none);
    say("pselect lets it in %s", result(n));
    kill(getpid(), SIGUSR1);
    n = epoll_wait(set, &e, 1, 20);
    say("epoll_wait does not %s", result(n));
    n = poll(&p, 1, 20);
    say("poll does not %s", result(n));
    tell('w', 1);
    n = epoll_pwait(set, &e, 1, 2000, &block);
    say("epoll_pwait with a mask that blocks it %s", result(n));
    say("hits %d", (int)hits);
    MUST(sigprocmask(SIG_UNBLOCK, &block, NULL));
    say("hits %d", (int)hits);
    close(set);
    close(fd);
}

static void sends(void)
{
    static char big[64 << 20];
    int fd = fresh("a blocked send");
    handle(0);
    ask('K', 150, 0);
    ssize_t n = send(fd, big, sizeof big, 0);
    say("interrupted with something sent %d, not all %d", n > 0, n < (ssize_t)sizeof big);
    ask('K', 50, 0);
    n = send(fd, big, sizeof big, 0);
    /* The buffers may have grown meanwhile: then a part is sent instead. */
    say("again %d", n < 0 ? errno == EINTR : n < (ssize_t)sizeof big);
    say("hits %d", (int)hits);
    close(fd);
}

/* A handler that uses the same connection must never wait for a lock its own thread holds. */
static int shared_fd;

static void on_alarm(int s)
{
    int e = errno;
    char c[8];
    (void)s;
    hits++;
    recv(shared_fd, c, sizeof c, MSG_DONTWAIT | MSG_PEEK);
    errno = e;
}

static void handler_does_io(void)
{
    int fd = fresh("a handler that reads while the program does");
    struct sigaction a = { .sa_handler = on_alarm, .sa_flags = SA_RESTART };
    sigemptyset(&a.sa_mask);
    MUST(sigaction(SIGVTALRM, &a, NULL));
    shared_fd = fd;
    hits = 0;
    timer_t timer;
    struct sigevent ev = { .sigev_notify = SIGEV_SIGNAL, .sigev_signo = SIGVTALRM };
    struct itimerspec every = { { 0, 200000 }, { 0, 200000 } }, off = { { 0, 0 }, { 0, 0 } };
    MUST(timer_create(CLOCK_MONOTONIC, &ev, &timer));
    MUST(timer_settime(timer, 0, &every, NULL));
    struct order o = { 'e', 3000, 0 };
    struct reply r;
    (void)!write(control, &o, sizeof o);
    for (int i = 0; i < 3000; i++) {
        char buf[8];
        fill(buf, 1, from_subject, 8);
        send_all(fd, buf, 8);
        from_subject += 8;
        recv_all(fd, buf, 8);
        check(buf, 2, from_helper, 8, "under a storm of signals");
        from_helper += 8;
    }
    MUST(timer_settime(timer, 0, &off, NULL));
    MUST(timer_delete(timer));
    (void)!read(control, &r, sizeof r);
    say("3000 round trips, handler ran %d", hits > 0);
    close(fd);
}

/* Cancellation unwinds through the library's frames. */
static void *cancelled(void *arg)
{
    char c[8];
    recv(*(int *)arg, c, sizeof c, 0);
    return NULL;
}

static void cancels(void)
{
    int fd = fresh("a receive that is cancelled");
    pthread_t thread;
    void *end;
    if (pthread_create(&thread, NULL, cancelled, &fd))
        die("pthread_create");
    nap(100);
    pthread_cancel(thread);
    pthread_join(thread, &end);
    say("cancelled %d", end == PTHREAD_CANCELED);
    tell('w', 3);
    say("recv afterwards %s", result(take(fd, 10, 0)));
    close(fd);
}

static void cases(void)
{
    receives(0, "receives, no SA_RESTART");
    receives(SA_RESTART, "receives, SA_RESTART");
    waits(0, "waits, no SA_RESTART");
    waits(SA_RESTART, "waits, SA_RESTART");
    masks();
    sends();
    handler_does_io();
    cancels();
}
