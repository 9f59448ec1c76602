// Threads that add, change and remove the same connections of epoll sets, beside closes, dup2, forks, sets inside sets and signal
// handlers that do it too. What each call may answer, and what the sets tell when all is quiet again, is the same as on TCP.
#include "t.h"

enum { CONNS = 3, THREADS = 4 };

static int strange, lost, extra;
/* A number came to be another connection's while it was added: that one goes back to TCP under Shortwire, and a doorbell that is under way
 * then is told as data, once or more. No data may be lost. */
static int astray;
static volatile int over;

static int one_of(int r, int a, int b)
{
    int e = r < 0 ? errno : 0;
    if (e && e != a && e != b) {
        fprintf(stderr, "# errno %d\n", e);
        __sync_fetch_and_add(&strange, 1);
    }
    return e;
}

static int op(int set, int what, int fd, unsigned long long data)
{
    struct epoll_event e = {.events = EPOLLIN, .data.u64 = data};
    return epoll_ctl(set, what, fd, &e);
}

/* Whether a set tells of this within ten seconds, of which a busy machine may give this program none for some. */
static int tells(int set, unsigned long long data)
{
    struct epoll_event out[16];
    for (double end = now() + 10; now() < end;) {
        int n = epoll_wait(set, out, 16, 100);
        for (int i = 0; i < n; i++)
            if (out[i].data.u64 == data)
                return 1;
    }
    return 0;
}

/* What the set tells at once. */
static int told(int set)
{
    struct epoll_event out[16];
    return epoll_wait(set, out, 16, 0);
}

/* As pairup, and a second byte does not wait for the first to be acknowledged. */
static void meet(int *a, int *b)
{
    int on = 1;
    pairup(a, b);
    setsockopt(*a, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
    setsockopt(*b, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
}

static void say(int fd) { if (send(fd, "m", 1, 0) != 1) perror("send"); }
static void hear(int fd) { char c; if (recv(fd, &c, 1, 0) != 1) perror("recv"); }

/* Brings the registration into a known state and looks whether it is what the set goes by, and gone when it is removed. */
static void check(int set, int fd, int peer, unsigned long long data)
{
    one_of(op(set, EPOLL_CTL_ADD, fd, data - 1), EEXIST, 0);
    if (op(set, EPOLL_CTL_MOD, fd, data))
        __sync_fetch_and_add(&strange, 1);
    say(peer);
    lost += !tells(set, data);
    hear(fd);
    extra += told(set) != 0 && !astray;
    say(peer);
    lost += !tells(set, data);
    if (op(set, EPOLL_CTL_DEL, fd, 0))
        __sync_fetch_and_add(&strange, 1);
    extra += told(set) != 0 && !astray;
    hear(fd);
}

static void result(const char *what)
{
    printf("%s: strange %d lost %d extra %d\n", what, strange, lost, extra);
    strange = lost = extra = 0;
}

static struct pair { int a, b; } pairs[CONNS];
static int sets[2];

static void *changes(void *seed)
{
    unsigned state = (unsigned)(long)seed;
    while (!over) {
        int r = rand_r(&state), set = sets[r & 1], fd = pairs[r / 2 % CONNS].b;
        switch (r / 16 % 4) {
        case 0:
        case 1: one_of(op(set, EPOLL_CTL_ADD, fd, 7), EEXIST, 0); break;
        case 2: one_of(op(set, EPOLL_CTL_DEL, fd, 7), ENOENT, 0); break;
        default: one_of(op(set, EPOLL_CTL_MOD, fd, 7), ENOENT, 0);
        }
    }
    return NULL;
}

static void run(void *(*body)(void *), int threads, int for_ms, void (*beside)(void))
{
    pthread_t ids[THREADS];
    over = 0;
    for (int i = 0; i < threads; i++)
        pthread_create(&ids[i], NULL, body, (void *)(long)(i + 1));
    for (double end = now() + for_ms / 1e3; now() < end;)
        if (beside)
            beside();
        else
            ms(1);
    over = 1;
    for (int i = 0; i < threads; i++)
        pthread_join(ids[i], NULL);
}

static void check_all(void)
{
    for (int s = 0; s < 2; s++)
        for (int i = 0; i < CONNS; i++)
            check(sets[s], pairs[i].b, pairs[i].a, 100 + 10 * s + 2 * i);
}

/* A child has sets and connections of its own, and those of its parent to leave alone. */
static void forks(void)
{
    pid_t child = fork();
    if (child == 0) {
        int a, b, own = epoll_create1(0);
        meet(&a, &b);
        check(own, b, a, 3);
        check(sets[0], b, a, 5);
        _exit(strange + lost);
    }
    int status = 1;
    waitpid(child, &status, 0);
    strange += status != 0;
    ms(2);
}

/* The number that one thread changes and another one closes. */
static volatile int number = -1, asked, done;

static void *by_number(void *seed)
{
    unsigned state = (unsigned)(long)seed;
    while (!over) {
        int fd = number, r = rand_r(&state) / 16 % 3;
        if (fd < 0)
            continue;
        int what = r == 0 ? EPOLL_CTL_ADD : r == 1 ? EPOLL_CTL_MOD : EPOLL_CTL_DEL;
        int e = op(sets[0], what, fd, 9) < 0 ? errno : 0;
        if (e && e != EBADF && e != (r == 0 ? EEXIST : ENOENT)) {
            fprintf(stderr, "# errno %d of %d\n", e, what);
            __sync_fetch_and_add(&strange, 1);
        }
    }
    return NULL;
}

static int quiet(pthread_t *ids)
{
    over = 1;
    for (int i = 0; i < 2; i++)
        pthread_join(ids[i], NULL);
    return over = 0;
}

static void closes(int rounds, int by_dup)
{
    for (int i = 0; i < rounds; i++) {
        int a, b, c, d, copy = -1;
        pthread_t ids[2];
        meet(&a, &b);
        meet(&c, &d);
        for (int k = 0; k < i % 20; k++) {
            say(a), hear(b), say(b), hear(a);
            say(c), hear(d), say(d), hear(c);
        }
        number = b;
        for (int t = 0; t < 2; t++)
            pthread_create(&ids[t], NULL, by_number, (void *)(long)(i + t));
        for (volatile int spin = i % 50 * 2000; spin > 0; spin--)
            ;
        if (by_dup) {
            if (i % 3 == 0)
                copy = dup(b);
            dup2(d, b);
        } else {
            close(b);
        }
        for (volatile int spin = i % 7 * 2000; spin > 0; spin--)
            ;
        quiet(ids);
        number = -1;
        astray = by_dup;
        if (by_dup) {
            // Both numbers name it now.
            check(sets[0], b, c, 21);
            check(sets[0], d, c, 23);
            close(b);
        } else {
            check(sets[0], d, c, 25);
        }
        close(d), close(c), close(a);
        if (copy >= 0)
            close(copy);
        astray = 0;
        extra += told(sets[0]) != 0;
    }
}

/* A set comes to lie in another one while connections are added to it. */
static int inner;
static void *adds(void *peer)
{
    (void)peer;
    while (!over)
        for (int i = 0; i < CONNS; i++) {
            one_of(op(inner, EPOLL_CTL_ADD, pairs[i].b, 30 + i), EEXIST, 0);
            if (i)
                one_of(op(inner, EPOLL_CTL_DEL, pairs[i].b, 0), ENOENT, 0);
        }
    return NULL;
}

static int outer;
static void nest(void)
{
    op(outer, EPOLL_CTL_DEL, inner, 0);
    if (op(outer, EPOLL_CTL_ADD, inner, 40))
        strange++;
}

/* A handler of every thread, on sets and a connection that it shares with them. */
static int hers, herb;
static void handler(int sig)
{
    int kept = errno, r = op(sets[1], EPOLL_CTL_ADD, herb, 9);
    // In the middle of a change of the same it may not get through.
    if (r < 0 && errno != EEXIST && errno != ENOMEM)
        __sync_fetch_and_add(&strange, 1);
    r = op(sets[sig & 1], EPOLL_CTL_DEL, herb, 9);
    if (r < 0 && errno != ENOENT && errno != ENOMEM)
        __sync_fetch_and_add(&strange, 1);
    int s = socket(AF_INET, SOCK_STREAM, 0);
    op(sets[0], EPOLL_CTL_ADD, s, 9);
    close(s);
    errno = kept;
}

static void signals(void)
{
    for (int i = 0; i < 20; i++) {
        kill(getpid(), i & 1 ? SIGUSR1 : SIGUSR2);
        usleep(100);
    }
}

int main(void)
{
    rescue();
    setvbuf(stdout, NULL, _IOLBF, 0);
    for (int i = 0; i < CONNS; i++)
        meet(&pairs[i].a, &pairs[i].b);
    sets[0] = epoll_create1(0), sets[1] = epoll_create1(0);
    // From the beginning on TCP, and then in shared memory.
    for (int warm = 0; warm < 2; warm++) {
        run(changes, THREADS, 200, NULL);
        check_all();
        result(warm ? "warm" : "cold");
        for (int i = 0; i < CONNS; i++)
            warmup(pairs[i].a, pairs[i].b);
    }
    fprintf(stderr, "# on ring: %d\n", onring(pairs[0].a, pairs[0].b));
    closes(150, 0);
    result("close");
    closes(150, 1);
    result("dup2");
    meet(&hers, &herb);
    warmup(hers, herb);
    signal(SIGUSR1, handler), signal(SIGUSR2, handler);
    run(changes, THREADS, 300, signals);
    signal(SIGUSR1, SIG_IGN), signal(SIGUSR2, SIG_IGN);
    check_all();
    check(sets[0], herb, hers, 51);
    check(sets[1], herb, hers, 53);
    result("handlers");
    inner = epoll_create1(0), outer = epoll_create1(0);
    run(adds, 2, 100, nest);
    say(pairs[0].a);
    lost += !tells(outer, 40);
    lost += !tells(inner, 30);
    hear(pairs[0].b);
    close(outer), close(inner);
    result("nested");
    run(changes, 2, 300, forks);
    check_all();
    result("forks");
    return 0;
}
