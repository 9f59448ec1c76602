/*
 * fault server PORT CONNS [survive|handler]    serves that many connections, one after the other
 * fault client PORT CONNS [survive|handler]    makes them
 *
 * Each connection carries checked bytes both ways: single exchanges, then bulk, then an orderly end. After the last one
 * the program says what it holds. With "survive" an end of the connection as TCP shows it is no error. With "handler"
 * SIGUSR1 may come at any time: its handler uses the connection, too, and sends a mark, which the other end leaves out.
 */
#include "common.h"
#include <dirent.h>
#include <poll.h>
#include <setjmp.h>
#include <sys/epoll.h>
#include <sys/stat.h>

enum { ROUNDS = 30, BULK = 200000 };
enum { MARK = 0xff };
static int survive, handler, set = -1, listener = -1;
static volatile int current = -1;
static jmp_buf lost;

static void gone(const char *what)
{
    if (survive && (errno == 0 || errno == ECONNRESET || errno == EPIPE))
        longjmp(lost, 1);
    die("%s", what);
}

/* The server waits in epoll, the client in its calls. */
static void await(int fd, uint32_t events)
{
    struct epoll_event e = { .events = events, .data.fd = fd };
    MUST(epoll_ctl(set, EPOLL_CTL_MOD, fd, &e));
    int n;
    while ((n = epoll_wait(set, &e, 1, 20000)) < 0 && errno == EINTR)
        ;
    if (n == 0)
        die("nothing comes");
}

/* With a handler no byte of the stream is a mark. */
static void plain_bytes(unsigned char *buf, size_t len)
{
    for (size_t i = 0; handler && i < len; i++)
        buf[i] &= 0x7f;
}

/* Leaves the marks out; how much is left. */
static size_t unmarked(unsigned char *buf, size_t len)
{
    size_t to = 0;
    for (size_t i = 0; i < len; i++)
        if (!handler || buf[i] != MARK)
            buf[to++] = buf[i];
    return to;
}

static void on_signal(int signal)
{
    (void)signal;
    int fd = current, before = errno;
    unsigned char mark = MARK, next;
    if (fd >= 0) {
        (void)!send(fd, &mark, 1, MSG_NOSIGNAL | MSG_DONTWAIT);
        (void)!recv(fd, &next, 1, MSG_PEEK | MSG_DONTWAIT);
        struct pollfd p = { .fd = fd, .events = POLLIN | POLLOUT };
        poll(&p, 1, 0);
    }
    errno = before;
}

static void put(int fd, uint64_t seed, uint64_t from, size_t len)
{
    static unsigned char buf[BULK];
    fill(buf, seed, from, len);
    plain_bytes(buf, len);
    for (size_t at = 0; at < len;) {
        ssize_t n = send(fd, buf + at, len - at, MSG_NOSIGNAL);
        if (n < 0 && errno == EAGAIN && set >= 0)
            await(fd, EPOLLOUT);
        else if (n < 0)
            gone("send");
        else
            at += n;
    }
}

static void get(int fd, uint64_t seed, size_t len)
{
    static unsigned char buf[BULK], wanted[BULK];
    for (size_t at = 0; at < len;) {
        ssize_t n = recv(fd, buf, len - at, 0);
        if (n < 0 && errno == EAGAIN && set >= 0) {
            await(fd, EPOLLIN);
            continue;
        }
        if (n <= 0) {
            if (n == 0)
                errno = 0;
            gone("recv");
        }
        n = unmarked(buf, n);
        fill(wanted, seed, at, n);
        plain_bytes(wanted, n);
        if (memcmp(buf, wanted, n) != 0)
            die("wrong bytes within %zd behind offset %zu of %zu", n, at, len);
        at += n;
    }
}

static void the_end(int fd)
{
    unsigned char extra;
    ssize_t n;
    while (((n = recv(fd, &extra, 1, 0)) == 1 && unmarked(&extra, 1) == 0) || (n < 0 && errno == EAGAIN && set >= 0))
        if (n < 0)
            await(fd, EPOLLIN);
    if (n > 0)
        die("bytes behind the end");
    if (n < 0)
        gone("the end");
}

static void session(int fd, int number, int is_server)
{
    uint64_t to = mix(number * 2 + is_server), from = mix(number * 2 + !is_server);
    for (int i = 0; i < ROUNDS; i++) {
        size_t len = 1 + mix(i) % 900;
        if (is_server)
            get(fd, from + i, len), put(fd, to + i, 0, len);
        else
            put(fd, to + i, 0, len), get(fd, from + i, len);
    }
    if (is_server)
        get(fd, from, BULK), put(fd, to, 0, BULK);
    else
        put(fd, to, 0, BULK), get(fd, from, BULK);
    if (!is_server && shutdown(fd, SHUT_WR) < 0)
        gone("shutdown");
    the_end(fd);
}

static int count(const char *file, const char *word)
{
    char line[512];
    int n = 0;
    FILE *f = fopen(file, "r");
    if (!f)
        die("%s", file);
    while (fgets(line, sizeof line, f))
        n += strstr(line, word) != NULL;
    fclose(f);
    return n;
}

/* Open files, without pipes of the library's and epoll sets, and those. */
static int descriptors(int *pipes, int *sets)
{
    int n = 0;
    DIR *d = opendir("/proc/self/fd");
    if (!d)
        die("/proc/self/fd");
    *pipes = *sets = 0;
    for (struct dirent *e; (e = readdir(d));) {
        struct stat st;
        int fd = atoi(e->d_name);
        char link[64] = "";
        (void)!readlinkat(dirfd(d), e->d_name, link, sizeof link - 1);
        if (fd > 2 && fstat(fd, &st) == 0 && S_ISFIFO(st.st_mode))
            ++*pipes;
        else if (strcmp(link, "anon_inode:[eventpoll]") == 0)
            ++*sets;
        else
            n++;
    }
    closedir(d);
    return n;
}

static int begin(int is_server, int port)
{
    int one = 1, fd = is_server ? MUST(accept4(listener, NULL, NULL, SOCK_NONBLOCK | SOCK_CLOEXEC)) : dial(port);
    MUST(setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one));
    struct epoll_event e = { .events = EPOLLIN, .data.fd = fd };
    if (is_server)
        MUST(epoll_ctl(set, EPOLL_CTL_ADD, fd, &e));
    return fd;
}

/* The client says which of its connections it is: after a death the two would count differently. */
static void whole(int fd, int is_server, unsigned char number)
{
    ssize_t n;
    if (!is_server)
        n = send(fd, &number, 1, MSG_NOSIGNAL);
    else
        while (((n = recv(fd, &number, 1, 0)) == 1 && unmarked(&number, 1) == 0) || (n < 0 && errno == EAGAIN))
            if (n < 0)
                await(fd, EPOLLIN);
    if (n == 0)
        errno = 0;
    if (n <= 0)
        gone("number");
    session(fd, number, is_server);
}

int main(int argc, char **argv)
{
    if (argc < 4)
        die("usage: fault server|client PORT CONNS [survive|handler]");
    static int is_server, port, conns, i, fd;
    is_server = strcmp(argv[1], "server") == 0, port = atoi(argv[2]), conns = atoi(argv[3]);
    survive = argc > 4 && strcmp(argv[4], "survive") == 0;
    handler = argc > 4 && strcmp(argv[4], "handler") == 0;
    struct sigaction action = { .sa_handler = on_signal, .sa_flags = SA_RESTART };
    if (handler)
        MUST(sigaction(SIGUSR1, &action, NULL));
    limit_life(900);
    if (is_server) {
        listener = listen_on(port);
        set = MUST(epoll_create1(EPOLL_CLOEXEC));
    }
    for (i = 0; i < conns; i++) {
        current = fd = begin(is_server, port);
        if (setjmp(lost) == 0)
            whole(fd, is_server, i);
        else
            printf("lost %d\n", i);
        current = -1;
        close(fd);
    }
    static int pipes, sets, files;
    files = descriptors(&pipes, &sets);
    printf("holds %d %d %d %d %d\n", files, count("/proc/self/maps", "memfd:shortwire-arena"), count("/proc/self/maps", "-"),
           pipes, sets);
    return 0;
}
