/* epoll sets among several threads, descriptors and connections, and over the switch. */
#include "sem_epoll.h"
#include <pthread.h>
#include <semaphore.h>
#include <stdatomic.h>

static void add(int set, int fd, unsigned events, uint64_t data)
{
    struct epoll_event e = { .events = events, .data.u64 = data };
    MUST(epoll_ctl(set, EPOLL_CTL_ADD, fd, &e));
}

static void rearm(int set, int fd)
{
    struct epoll_event e = { .events = EPOLLIN | EPOLLONESHOT };
    MUST(epoll_ctl(set, EPOLL_CTL_MOD, fd, &e));
}

static int waited(sem_t *s, int ms)
{
    struct timespec t;
    clock_gettime(CLOCK_REALTIME, &t);
    t.tv_sec += ms / 1000;
    t.tv_nsec += ms % 1000 * 1000000L;
    if (t.tv_nsec >= 1000000000L)
        t.tv_sec++, t.tv_nsec -= 1000000000L;
    while (sem_timedwait(s, &t) < 0)
        if (errno != EINTR)
            return 0;
    return 1;
}

/* The number that a set was made under is closed, a second one lives. */
static void second_number(void)
{
    int fd = fresh("a set by its second number"), first = MUST(epoll_create1(0)), set = MUST(dup(first));
    close(first);
    add(set, fd, EPOLLIN, 1);
    tell('w', 5);
    say("data %s", wait_for(set, 1000));
    drain(fd);
    say("drained %s", wait_for(set, 0));
    ask('W', 40, 3);
    say("woken %s", wait_for(set, 5000));
    close(set);
    close(fd);
}

/* A oneshot event was given out on TCP: it stays off when the connection leaves TCP. */
static void off_over_the_switch(void)
{
    int fd = cold("oneshot over the switch"), set = set_with(fd, EPOLLIN | EPOLLONESHOT);
    tell('w', 5);
    say("first %s", wait_for(set, 1000));
    drain(fd);
    rounds(fd, 64);
    tell('w', 5);
    say("off %s", wait_for(set, 0));
    drain(fd);
    rearm(set, fd);
    say("armed and empty %s", wait_for(set, 0));
    tell('w', 5);
    say("once %s", wait_for(set, 1000));
    say("off again %s", wait_for(set, 0));
    close(set);
    close(fd);
}

/* Threads on one set with oneshot: each message is one thread's, and none is overlooked. */
static struct pool {
    int set, fd;
    atomic_int inside, together, empty, leave;
    sem_t done;
} pool;

static void *pool_thread(void *arg)
{
    struct epoll_event e;
    char buf[8];
    (void)arg;
    while (!atomic_load(&pool.leave)) {
        if (epoll_wait(pool.set, &e, 1, 200) != 1)
            continue;
        if (atomic_fetch_add(&pool.inside, 1) != 0)
            atomic_fetch_add(&pool.together, 1);
        int got = recv(pool.fd, buf, 8, MSG_DONTWAIT);
        if (got != 8)
            atomic_fetch_add(&pool.empty, 1);
        atomic_fetch_sub(&pool.inside, 1);
        if (got == 8)
            sem_post(&pool.done);
        rearm(pool.set, pool.fd);
    }
    return NULL;
}

static void oneshot_pool(void)
{
    enum { THREADS = 3, ROUNDS = 600 };
    pthread_t t[THREADS];
    struct order o = { 'e', ROUNDS, 0 };
    struct reply r;
    int answered = 0;
    pool.fd = cold("threads on one set, oneshot");
    pool.set = set_with(pool.fd, EPOLLIN | EPOLLONESHOT);
    sem_init(&pool.done, 0, 0);
    for (int i = 0; i < THREADS; i++)
        pthread_create(&t[i], NULL, pool_thread, NULL);
    (void)!write(control, &o, sizeof o);
    for (int i = 0; i < ROUNDS; i++) {
        put(pool.fd, 8, 0);
        answered += waited(&pool.done, 3000);
    }
    (void)!read(control, &r, sizeof r);
    atomic_store(&pool.leave, 1);
    for (int i = 0; i < THREADS; i++)
        pthread_join(t[i], NULL);
    say("answered %d, by two at once %d, for nothing %d", answered, pool.together, pool.empty);
    close(pool.set);
    close(pool.fd);
}

/* A thread that is busy with one event leaves the next one to the thread that still sleeps. */
static struct crew {
    int set, fds[2];
    atomic_int who[2];
    sem_t got, go_on;
} crew;

static void *crew_thread(void *arg)
{
    struct epoll_event e;
    char buf[100];
    (void)arg;
    if (epoll_wait(crew.set, &e, 1, 5000) == 1) {
        atomic_fetch_add(&crew.who[e.data.u32 & 1], 1);
        (void)!recv(crew.fds[e.data.u32 & 1], buf, sizeof buf, MSG_DONTWAIT);
    }
    sem_post(&crew.got);
    sem_wait(&crew.go_on);
    return NULL;
}

static void busy_beside_asleep(void)
{
    pthread_t t[2];
    crew.fds[0] = fresh("one thread busy, one asleep");
    other_connection();
    crew.fds[1] = fresh("and a second connection");
    crew.set = MUST(epoll_create1(0));
    sem_init(&crew.got, 0, 0);
    sem_init(&crew.go_on, 0, 0);
    for (int i = 0; i < 2; i++)
        add(crew.set, crew.fds[i], EPOLLIN | EPOLLET, i);
    for (int round = 0; round < 5; round++) {
        crew.who[0] = crew.who[1] = 0;
        for (int i = 0; i < 2; i++)
            pthread_create(&t[i], NULL, crew_thread, NULL);
        nap(60);
        tell('w', 5);
        int first = waited(&crew.got, 3000);
        other_connection();
        tell('w', 5);
        int second = waited(&crew.got, 3000);
        say("round %d: %d %d, events %d %d", round, first, second, crew.who[0], crew.who[1]);
        sem_post(&crew.go_on);
        sem_post(&crew.go_on);
        pthread_join(t[0], NULL);
        pthread_join(t[1], NULL);
    }
    close(crew.set);
    close(crew.fds[0]);
    close(crew.fds[1]);
}

/* One connection has been silent for long, the other is busy: what comes on both is told at once. */
static void silent_beside_busy(void)
{
    struct epoll_event e[4];
    int silent = fresh("a silent connection beside a busy one");
    other_connection();
    int busy = fresh("the busy one"), set = MUST(epoll_create1(0));
    add(set, silent, EPOLLIN, 1);
    add(set, busy, EPOLLIN, 2);
    for (int i = 0; i < 120; i++) {
        ask('w', 5, 0);
        if (epoll_wait(set, e, 4, 3000) != 1 || e[0].data.u64 != 2)
            die("round %d", i);
        drain(busy);
    }
    other_connection();
    ask('w', 5, 0);
    other_connection();
    tell('w', 5);
    int n = epoll_wait(set, e, 4, 0);
    say("%d events, %d in sum", n, (int)(e[0].data.u64 + (n > 1 ? e[1].data.u64 : 0)));
    close(set);
    close(busy);
    close(silent);
}

/* A registration outlives its number, which another connection takes. */
static void number_taken_over(void)
{
    int a = fresh("a number taken over"), set = MUST(epoll_create1(0)), copy = MUST(dup(a));
    add(set, a, EPOLLIN, 1);
    close(a);
    other_connection();
    int b = fresh("the second one");
    say("same number %d", a == b);
    add(set, b, EPOLLIN, 0x1234567890abcdefull);
    /* Writes nothing, but the library must give the connection back to the kernel for it. */
    dprintf(copy, "%s", "");
    say("idle %s", wait_for(set, 0));
    tell('w', 5);
    say("data for the second %s", wait_for(set, 1000));
    drain(b);
    say("drained %s", wait_for(set, 0));
    ask('W', 40, 3);
    say("woken %s", wait_for(set, 5000));
    drain(b);
    other_connection();
    ask('W', 40, 3);
    say("woken by the first %s", wait_for(set, 5000));
    drain(copy);
    say("drained %s", wait_for(set, 0));
    close(set);
    close(b);
    close(copy);
}

/* The peer has shut its writing and reads on: nothing tells of space but a look. */
static void space_in_silence(void)
{
    int fd = fresh("space from a peer that writes no more"), set = set_with(fd, EPOLLOUT);
    long total = 0;
    nonblocking(fd);
    tell('s', 0);
    for (int n; (n = put(fd, 50000, 0)) > 0;)
        total += n;
    say("full %s", ename(errno));
    ask('D', 600, total);
    say("writable after the peer read %s", wait_for(set, 5000));
    close(set);
    close(fd);
}

static void *long_wait(void *set)
{
    struct epoll_event e;
    epoll_wait(*(int *)set, &e, 1, 300);
    return NULL;
}

/* What the waiting thread gets is its own affair; the next set under the number must not suffer. */
static void closed_under_a_wait(void)
{
    int fd = fresh("a set closed while a thread waits on it");
    for (int round = 0; round < 4; round++) {
        pthread_t t;
        int set = set_with(fd, EPOLLIN), old = set;
        pthread_create(&t, NULL, long_wait, &old);
        nap(30);
        close(set);
        set = set_with(fd, EPOLLIN);
        tell('w', 5);
        say("round %d, the next set %s", round, wait_for(set, 1000));
        drain(fd);
        say("drained %s", wait_for(set, 0));
        pthread_join(t, NULL);
        ask('W', 40, 2);
        say("woken %s", wait_for(set, 5000));
        drain(fd);
        close(set);
    }
    close(fd);
}

static void cases(void)
{
    second_number();
    off_over_the_switch();
    oneshot_pool();
    busy_beside_asleep();
    silent_beside_busy();
    number_taken_over();
    space_in_silence();
    closed_under_a_wait();
}
