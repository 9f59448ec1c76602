/* epoll sets among several threads, descriptors and connections, and over the switch. */
#include "frame.h"
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
CASE(sets_second_number)
{
    int fd = fresh(), first = MUST(epoll_create1(0)), set = MUST(dup(first));
    close(first);
    add(set, fd, EPOLLIN, 1);
    tell('w', 5);
    say("data %s", wait_for(set, 1000));
    drain(fd);
    say("drained %s", wait_for(set, 0));
    when_asleep('w', 3, 0);
    say("woken %s", wait_for(set, 5000));
    close(set);
    close(fd);
}

/* A oneshot event was given out on TCP: it stays off when the connection leaves TCP. */
CASE(sets_off_over_the_switch)
{
    int fd = cold(), set = set_with(fd, EPOLLIN | EPOLLONESHOT);
    tell('w', 5);
    say("first %s", wait_for(set, 1000));
    drain(fd);
    warm_slot(0);
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

CASE(sets_oneshot_pool)
{
    enum { THREADS = 3, ROUNDS = 600 };
    pthread_t t[THREADS];
    int answered = 0;
    pool.fd = cold();
    pool.set = set_with(pool.fd, EPOLLIN | EPOLLONESHOT);
    sem_init(&pool.done, 0, 0);
    for (int i = 0; i < THREADS; i++)
        pthread_create(&t[i], NULL, pool_thread, NULL);
    peer_echoes(ROUNDS);
    for (int i = 0; i < ROUNDS; i++) {
        put(pool.fd, 8, 0);
        answered += waited(&pool.done, 3000);
    }
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

CASE(sets_busy_beside_asleep)
{
    pthread_t t[2];
    crew.fds[0] = fresh_slot(0);
    crew.fds[1] = fresh_slot(1);
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
        slot = 0;
        tell('w', 5);
        int first = waited(&crew.got, 3000);
        slot = 1;
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
CASE(sets_silent_beside_busy)
{
    struct epoll_event e[4];
    int silent = fresh_slot(0), busy = fresh_slot(1), set = MUST(epoll_create1(0));
    add(set, silent, EPOLLIN, 1);
    add(set, busy, EPOLLIN, 2);
    slot = 1;
    for (int i = 0; i < 120; i++) {
        ask('w', 5, 0);
        if (epoll_wait(set, e, 4, 3000) != 1 || e[0].data.u64 != 2)
            die("round %d", i);
        drain(busy);
    }
    slot = 0;
    tell('w', 5);
    slot = 1;
    tell('w', 5);
    int n = epoll_wait(set, e, 4, 0);
    say("%d events, %d in sum", n, (int)(e[0].data.u64 + (n > 1 ? e[1].data.u64 : 0)));
    close(set);
    close(busy);
    close(silent);
}

/* A registration outlives its number, which another connection takes. */
CASE(sets_number_taken_over)
{
    int a = fresh_slot(0), set = MUST(epoll_create1(0)), copy = MUST(dup(a));
    add(set, a, EPOLLIN, 1);
    close(a);
    int b = fresh_slot(slot = 1);
    say("same number %d", a == b);
    add(set, b, EPOLLIN, 0x1234567890abcdefull);
    /* Writes nothing, but the library must give the connection back to the kernel for it. */
    dprintf(copy, "%s", "");
    say("idle %s", wait_for(set, 0));
    tell('w', 5);
    say("data for the second %s", wait_for(set, 1000));
    drain(b);
    say("drained %s", wait_for(set, 0));
    when_asleep('w', 3, 0);
    say("woken %s", wait_for(set, 5000));
    drain(b);
    slot = 0;
    known_as(0, copy);
    when_asleep('w', 3, 0);
    say("woken by the first %s", wait_for(set, 5000));
    drain(copy);
    say("drained %s", wait_for(set, 0));
    close(set);
    close(b);
    close(copy);
}

/* The peer has shut its writing and reads on: nothing tells of space but a look. */
CASE(sets_space_in_silence)
{
    int fd = fresh(), set = set_with(fd, EPOLLOUT);
    long total = 0;
    nonblocking(fd);
    tell('s', SHUT_WR);
    for (int n; (n = put(fd, 50000, 0)) > 0;)
        total += n;
    say("full %s", ename(errno));
    when_asleep('r', total, 0);
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
CASE(sets_closed_under_a_wait)
{
    int fd = fresh();
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
        when_asleep('w', 2, 0);
        say("woken %s", wait_for(set, 5000));
        drain(fd);
        close(set);
    }
    close(fd);
}

/* Several threads asleep on one level-triggered set: each message is read, nobody is left asleep over it. */
static void *reader(void *arg)
{
    struct epoll_event e;
    char buf[100];
    long got = 0;
    while (!atomic_load(&pool.leave))
        if (epoll_wait(*(int *)arg, &e, 1, 100) == 1)
            for (int n; (n = recv(pool.fd, buf, sizeof buf, MSG_DONTWAIT)) > 0;)
                got += n;
    return (void *)got;
}

static void many_readers(unsigned events)
{
    struct thread t[3];
    long total = 0;
    pool.fd = fresh();
    int set = set_with(pool.fd, events);
    for (int i = 0; i < 3; i++)
        spawn_thread(&t[i], reader, &set);
    for (int i = 0; i < 40; i++)
        ask('w', 8, 0);
    /* The peer knows when all of it was read. */
    say("unread at the end %ld", (long)ask('q', 0, 0).value);
    int left = 1;
    for (int i = 0; i < 1000 && left; i++, nap(2))
        MUST(ioctl(pool.fd, FIONREAD, &left));
    atomic_store(&pool.leave, 1);
    for (int i = 0; i < 3; i++)
        total += (long)join(&t[i]);
    say("read %ld, left %d", total, left);
}

CASE(sets_three_readers_level) { many_readers(EPOLLIN); }
CASE(sets_three_readers_edge) { many_readers(EPOLLIN | EPOLLET); }

/* A registration that comes and goes while another thread waits and the peer writes. */
static void *change(void *arg)
{
    struct epoll_event e = { .events = EPOLLIN };
    for (int i = 0; i < 300; i++) {
        epoll_ctl(*(int *)arg, i % 3 == 0 ? EPOLL_CTL_DEL : i % 3 == 1 ? EPOLL_CTL_ADD : EPOLL_CTL_MOD, pool.fd, &e);
        if (i % 16 == 0)
            nap(1);
    }
    return NULL;
}

CASE(sets_changed_in_a_race)
{
    struct thread t;
    struct epoll_event e;
    long total = 0;
    pool.fd = fresh();
    int set = set_with(pool.fd, EPOLLIN);
    spawn_thread(&t, change, &set);
    for (int i = 0; i < 30; i++) {
        ask('w', 8, 0);
        for (long got = 0; got < 8;)
            if (epoll_wait(set, &e, 1, 1000) == 1)
                for (int n; (n = take(pool.fd, 100, MSG_DONTWAIT)) > 0;)
                    got += n, total += n;
    }
    join(&t);
    say("read %ld", total);
    tell('w', 5);
    say("registered in the end: %s", result(epoll_wait(set, &e, 1, 1000)));
}

/* Closed and opened again under the same number while a thread waits on the set. */
CASE(sets_number_reused_in_a_race)
{
    struct epoll_event e;
    int set = MUST(epoll_create1(0));
    for (int i = 0; i < 5; i++) {
        int fd = i ? cold() : fresh();
        struct epoll_event add = { .events = EPOLLIN, .data.u32 = i };
        MUST(epoll_ctl(set, EPOLL_CTL_ADD, fd, &add));
        when_asleep('w', 4, 0);
        int n = epoll_wait(set, &e, 1, 5000);
        say("round %d: %d for %d", i, n, n == 1 ? (int)e.data.u32 : -1);
        say("recv %s", result(take(fd, 10, 0)));
        ask('c', 0, 0);
        close(fd);
        say("gone %s", result(epoll_wait(set, &e, 1, 0)));
    }
}

static void in_child(unsigned events)
{
    int fd = fresh(), set = set_with(fd, events), go[2];
    char c;
    MUST(pipe(go));
    pid_t child = fork();
    if (child == 0) {
        say("child, idle %s", wait_for(set, 0));
        tell('w', 5);
        say("child, data %s", wait_for(set, 5000));
        say("child, recv %s", result(take(fd, 3, 0)));
        (void)!write(go[1], "x", 1);
        _exit(0);
    }
    (void)!read(go[0], &c, 1);
    from_peer[0] += 3;
    reap(child, "child");
    say("parent, the rest %s", events & EPOLLET ? "as an edge" : wait_for(set, 1000));
    say("parent, recv %s", result(take(fd, 10, 0)));
    tell('w', 4);
    say("parent, more %s", wait_for(set, 5000));
    drain(fd);
    say("parent, drained %s", wait_for(set, 0));
}

CASE(sets_inherited_level) { in_child(EPOLLIN); }
CASE(sets_inherited_edge) { in_child(EPOLLIN | EPOLLET); }

/* Made and watched before the fork, used by the child alone. */
CASE(sets_inherited_and_left)
{
    int fd = fresh(), set = set_with(fd, EPOLLIN);
    pid_t child = fork();
    if (child == 0) {
        nap(20);
        when_asleep('w', 5, 0);
        say("child %s", wait_for(set, 5000));
        say("child, recv %s", result(take(fd, 10, 0)));
        when_asleep('s', SHUT_WR, 0);
        say("child %s", wait_for(set, 5000));
        _exit(0);
    }
    close(fd);
    close(set);
    reap(child, "child");
}
