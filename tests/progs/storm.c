/*
 * storm server PORT                    a thread for each connection answers until its end
 * storm client PORT THREADS SECONDS    each thread connects, has a random number of requests answered, and ends the connection
 *                                      in one of several ways, over and over
 * Both know every byte that must come. With STORM_FILES=N in the environment a client may have only N open files.
 */
#include "common.h"
#include <pthread.h>
#include <sys/resource.h>

enum { MOST = 1 << 20, ACCEPTORS = 4, CLIENTS = 64, PATIENCE_MS = 30000 };

/* What a client's thread waits for, and since when; of an answer, how much has come. */
static struct work {
    int fd;
    long since;
    const char *what;
    uint32_t got, back;
} at_work[CLIENTS];

struct request {
    uint64_t seed;
    uint32_t there, back;
};

static int port, seconds;
static unsigned long connections, requests;

/* Fewer than len where the connection ended, in whatever way. */
static size_t take(int fd, void *buf, size_t len)
{
    size_t got = 0;
    while (got < len) {
        ssize_t n = recv(fd, (char *)buf + got, len - got, 0);
        if (n < 0 && errno == EINTR)
            continue;
        if (n <= 0)
            break;
        got += n;
    }
    return got;
}

static void *serve(void *arg)
{
    int fd = (int)(intptr_t)arg;
    char *buf = malloc(MOST);
    struct request r;
    while (take(fd, &r, sizeof r) == sizeof r) {
        if (r.there > MOST || r.back > MOST)
            die("a request of %u and %u bytes", r.there, r.back);
        if (take(fd, buf, r.there) != r.there)
            break;
        check(buf, r.seed, 0, r.there, "server");
        fill(buf, ~r.seed, 0, r.back);
        size_t at = 0;
        while (at < r.back) {
            ssize_t n = send(fd, buf + at, r.back - at, MSG_NOSIGNAL);
            if (n < 0 && errno != EINTR)
                break;
            at += n > 0 ? n : 0;
        }
        if (at < r.back)
            break;
    }
    close(fd);
    free(buf);
    return NULL;
}

static void *accept_all(void *arg)
{
    int listener = (int)(intptr_t)arg;
    pthread_attr_t detached;
    pthread_attr_init(&detached);
    pthread_attr_setdetachstate(&detached, PTHREAD_CREATE_DETACHED);
    for (;;) {
        int fd = accept(listener, NULL, NULL);
        pthread_t thread;
        if (fd >= 0 && pthread_create(&thread, &detached, serve, (void *)(intptr_t)fd) != 0)
            die("pthread_create");
    }
    return NULL;
}

static uint32_t size(uint64_t *random)
{
    switch (next_random(random) % 20) {
    case 0: return next_random(random) % MOST;
    case 1: case 2: case 3: case 4: return next_random(random) % 20000;
    default: return next_random(random) % 200;
    }
}

static void end(int fd, uint64_t *random)
{
    struct linger hard = { 1, 0 };
    struct request unanswered = { 1, 0, 500 };
    char c;
    switch (next_random(random) % 6) {
    case 0:
        MUST(setsockopt(fd, SOL_SOCKET, SO_LINGER, &hard, sizeof hard));
        break;
    case 1:
        MUST(shutdown(fd, SHUT_WR));
        if (recv(fd, &c, 1, 0) != 0)
            die("no end of the stream");
        break;
    case 2:
        MUST(shutdown(fd, SHUT_RDWR));
        break;
    case 3:
        send_all(fd, &unanswered, sizeof unanswered);
        break;
    }
    close(fd);
}

/*
 * Nothing may sleep for long: the other end answers at once. Where the watch itself comes much too late the machine has stood
 * still, and nobody was hung.
 */
static void *watch(void *arg)
{
    for (long last = now_ms(), late = 0;; sleep(1), late = now_ms() - last - 1000, last = now_ms())
        for (struct work *w = at_work; w < at_work + CLIENTS; w++) {
            long since = __atomic_load_n(&w->since, __ATOMIC_ACQUIRE);
            if (since == 0 || now_ms() - since < PATIENCE_MS)
                continue;
            int here = -1, sent = -1;
            ioctl(w->fd, FIONREAD, &here);
            ioctl(w->fd, TIOCOUTQ, &sent);
            die("%s for %ld ms, %u of %u bytes have come, %d are at hand and %d unsent; the watch is %ld ms late", w->what,
                now_ms() - since, w->got, w->back, here, sent, late);
        }
    return NULL;
}

/* What a program may do with a connection in between: all of it leaves the bytes as they are. */
static int disturb(int fd, uint64_t *random)
{
    int on = 1, bytes = 32768 << next_random(random) % 6;
    switch (next_random(random) % 64) {
    case 0:
        MUST(setsockopt(fd, SOL_SOCKET, SO_SNDBUF, &bytes, sizeof bytes));
        break;
    case 1:
        MUST(setsockopt(fd, SOL_SOCKET, SO_RCVBUF, &bytes, sizeof bytes));
        break;
    case 2: case 3:
        MUST(setsockopt(fd, IPPROTO_TCP, TCP_CORK, &on, sizeof on));
        break;
    case 4: {
        int other = MUST(dup(fd));
        close(fd);
        return other;
    }
    case 5:
        /* Back to TCP for good. */
        if (next_random(random) % 4 == 0)
            MUST(setsockopt(fd, SOL_SOCKET, SO_TIMESTAMP, &on, sizeof on));
        break;
    case 6:
        if (next_random(random) % 8 == 0) {
            pid_t child = fork();
            if (child == 0)
                _exit(0);
            while (child > 0 && waitpid(child, NULL, 0) < 0 && errno == EINTR)
                ;
        }
        break;
    }
    return fd;
}

static void begins(struct work *work, const char *what)
{
    work->what = what;
    __atomic_store_n(&work->since, now_ms(), __ATOMIC_RELEASE);
}

static void *call(void *arg)
{
    struct work *work = &at_work[(intptr_t)arg];
    uint64_t random = mix((intptr_t)arg + 64 * (uint64_t)getpid());
    char *buf = malloc(MOST);
    long until = now_ms() + seconds * 1000;
    while (now_ms() < until) {
        work->fd = -1;
        begins(work, "connects");
        int fd = dial(port);
        int count = next_random(&random) % (next_random(&random) % 4 ? 16 : 200);
        for (int i = 0; i < count; i++) {
            struct request r = { next_random(&random), size(&random), size(&random) };
            int pull = 0;
            begins(work, "changes the connection");
            work->fd = fd = disturb(fd, &random);
            begins(work, "sends");
            send_all(fd, &r, sizeof r);
            fill(buf, r.seed, 0, r.there);
            send_all(fd, buf, r.there);
            MUST(setsockopt(fd, IPPROTO_TCP, TCP_CORK, &pull, sizeof pull));
            begins(work, "receives");
            for (work->got = 0, work->back = r.back; work->got < r.back;) {
                ssize_t n = recv(fd, buf + work->got, r.back - work->got, 0);
                if (n == 0)
                    die("the end behind %u of %u bytes", work->got, r.back);
                if (n > 0 || errno != EINTR)
                    work->got += MUST(n);
            }
            check(buf, ~r.seed, 0, r.back, "client");
        }
        begins(work, "ends");
        end(fd, &random);
        __atomic_store_n(&work->since, 0, __ATOMIC_RELEASE);
        __atomic_fetch_add(&connections, 1, __ATOMIC_RELAXED);
        __atomic_fetch_add(&requests, count, __ATOMIC_RELAXED);
    }
    free(buf);
    return NULL;
}

int main(int argc, char **argv)
{
    const char *life = getenv("SHORTWIRE_TEST_LIFE");
    limit_life(life ? atoi(life) : 900);
    if (argc == 3 && strcmp(argv[1], "server") == 0) {
        intptr_t listener = listen_on(atoi(argv[2]));
        pthread_t thread;
        for (int i = 1; i < ACCEPTORS; i++)
            pthread_create(&thread, NULL, accept_all, (void *)listener);
        accept_all((void *)listener);
    }
    if (argc != 5 || strcmp(argv[1], "client") != 0) {
        fprintf(stderr, "see the head of storm.c\n");
        return 1;
    }
    port = atoi(argv[2]);
    seconds = atoi(argv[4]);
    int count = atoi(argv[3]);
    if (count > CLIENTS)
        die("at most %d threads", CLIENTS);
    if (getenv("STORM_FILES")) {
        rlim_t most = atoi(getenv("STORM_FILES"));
        MUST(setrlimit(RLIMIT_NOFILE, &(struct rlimit){ most, most }));
    }
    pthread_t threads[count], watcher;
    pthread_create(&watcher, NULL, watch, NULL);
    for (intptr_t i = 0; i < count; i++)
        pthread_create(&threads[i], NULL, call, (void *)i);
    for (int i = 0; i < count; i++)
        pthread_join(threads[i], NULL);
    printf("%lu connections, %lu requests\n", connections, requests);
    return 0;
}
