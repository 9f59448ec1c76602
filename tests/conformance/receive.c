/* Every way to receive, in every state of a connection. */
#include "frame.h"
#include <sys/syscall.h>

ssize_t __read(int, void *, size_t);
ssize_t __read_chk(int, void *, size_t, size_t);
ssize_t __recv_chk(int, void *, size_t, size_t, int);
ssize_t __recvfrom_chk(int, void *, size_t, size_t, int, struct sockaddr *, socklen_t *);

typedef ssize_t receive(int fd, void *buf, size_t len, int flags);

#define WAY(name, ...) static ssize_t name(int fd, void *buf, size_t len, UNUSED int flags) { __VA_ARGS__ }
/* Two pieces, so that a message of a few bytes is split. */
#define PIECES struct iovec v[2] = { { buf, len / 3 }, { (char *)buf + len / 3, len - len / 3 } }
#define MESSAGE PIECES; struct msghdr m = { .msg_iov = v, .msg_iovlen = 2 }
#define MESSAGES MESSAGE; struct mmsghdr mm = { .msg_hdr = m }; long n

WAY(by_read, return read(fd, buf, len);)
WAY(by_readv, PIECES; return readv(fd, v, 2);)
WAY(by_recv, return recv(fd, buf, len, flags);)
WAY(by_recvfrom, return recvfrom(fd, buf, len, flags, NULL, NULL);)
WAY(by_recvmsg, MESSAGE; return recvmsg(fd, &m, flags);)
WAY(by_recvmmsg, MESSAGES = recvmmsg(fd, &mm, 1, flags, NULL); return n == 1 ? mm.msg_len : n;)
WAY(by_preadv2, PIECES; return preadv2(fd, v, 2, -1, 0);)
WAY(by_preadv64v2, PIECES; return preadv64v2(fd, v, 2, -1, 0);)
WAY(by___read, return __read(fd, buf, len);)
WAY(by___read_chk, return __read_chk(fd, buf, len, len + 1);)
WAY(by___recv_chk, return __recv_chk(fd, buf, len, len + 1, flags);)
WAY(by___recvfrom_chk, return __recvfrom_chk(fd, buf, len, len + 1, flags, NULL, NULL);)
WAY(by_SYS_read, return syscall(SYS_read, fd, buf, len);)
WAY(by_SYS_readv, PIECES; return syscall(SYS_readv, fd, v, 2);)
WAY(by_SYS_recvfrom, return syscall(SYS_recvfrom, fd, buf, len, flags, NULL, NULL);)
WAY(by_SYS_recvmsg, MESSAGE; return syscall(SYS_recvmsg, fd, &m, flags);)
WAY(by_SYS_recvmmsg, MESSAGES = syscall(SYS_recvmmsg, fd, &mm, 1, flags, NULL); return n == 1 ? mm.msg_len : n;)
WAY(by_SYS_preadv2, PIECES; return syscall(SYS_preadv2, fd, v, 2, -1L, -1L, 0);)

static const struct { const char *name; receive *call; int flags; } ways[] = {
#define W(name, flags) { #name, by_##name, flags }
    W(recv, 1), W(recvfrom, 1), W(recvmsg, 1), W(recvmmsg, 1), W(__recv_chk, 1), W(__recvfrom_chk, 1),
    W(SYS_recvfrom, 1), W(SYS_recvmsg, 1), W(SYS_recvmmsg, 1), W(read, 0), W(readv, 0), W(preadv2, 0), W(preadv64v2, 0),
    W(__read, 0), W(__read_chk, 0), W(SYS_read, 0), W(SYS_readv, 0), W(SYS_preadv2, 0) };
enum { WITH_FLAGS = 9, ALL = sizeof ways / sizeof *ways };

static const char *name_of(const char *id, int way)
{
    static char text[80];
    snprintf(text, sizeof text, "%s %s", id, ways[way].name);
    return text;
}

static char space[1 << 20];

/* One receive, its bytes checked. */
static ssize_t get_flags(int way, int fd, size_t len, int flags)
{
    memset(space, 0xee, len);
    ssize_t n = ways[way].call(fd, space, len, flags);
    int e = errno;
    if (n > 0 && flags & MSG_PEEK)
        check(space, 2, from_peer[slot], n, "peek");
    else if (!(flags & MSG_TRUNC))
        took(space, n);
    else
        from_peer[slot] += n > 0 ? n : 0;
    if (n >= 0 && (size_t)n < len && (unsigned char)space[n] != 0xee)
        say("bytes beyond the %zd are changed", n);
    errno = e;
    return n;
}

static ssize_t get(int way, int fd, size_t len) { return get_flags(way, fd, len, 0); }

CASES(receive_empty, ALL, name_of, UPGRADES)
{
    int fd = fresh();
    nonblocking(fd);
    say("nothing there: %s", result(get(arg, fd, 10)));
    say("no bytes wanted: %s", result(get(arg, fd, 0)));
    tell('w', 6);
    say("no bytes wanted, some there: %s", result(get(arg, fd, 0)));
    say("all: %s", result(get(arg, fd, 10)));
    say("nothing left: %s", result(get(arg, fd, 10)));
}

CASES(receive_data, ALL, name_of, UPGRADES)
{
    int fd = fresh();
    tell('w', 3);
    say("10 of 3: %s", result(get(arg, fd, 10)));
    tell('w', 8);
    say("5 of 8: %s", result(get(arg, fd, 5)));
    tell('w', 2);
    say("10 of 5: %s", result(get(arg, fd, 10)));
    tell('w', 20000);
    say("1: %s", result(get(arg, fd, 1)));
    say("7000: %s", result(get(arg, fd, 7000)));
    say("the rest: %s", result(get(arg, fd, 100000)));
}

CASES(receive_bulk, ALL, name_of, UPGRADES)
{
    int fd = fresh(), total = 0, n = 1;
    when_asleep('w', 900000, 0);
    for (int len = 1; total < 900000 && n > 0; len = len * 3 % 70001 + 1)
        if ((n = get(arg, fd, len)) > 0)
            total += n;
    say("received %d, last %s", total, n > 0 ? "some" : result(n));
}

CASES(receive_end, ALL, name_of, UPGRADES)
{
    int fd = fresh();
    tell('w', 5);
    tell('s', SHUT_WR);
    say("data: %s", result(get(arg, fd, 3)));
    say("rest of the data: %s", result(get(arg, fd, 10)));
    say("end: %s", result(get(arg, fd, 10)));
    say("end again: %s", result(get(arg, fd, 10)));
    say("nothing wanted: %s", result(get(arg, fd, 0)));
    nonblocking(fd);
    say("nonblocking: %s", result(get(arg, fd, 10)));
    say("send: %s", result(put(fd, 5, 0)));
    say("the peer reads %ld", tell('r', 5));
}

CASES(receive_after_reset, ALL, name_of, UPGRADES)
{
    int fd = fresh();
    tell('l', 0);
    say("first: %s", result(get(arg, fd, 10)));
    say("second: %s", result(get(arg, fd, 10)));
    say("none wanted: %s", result(get(arg, fd, 0)));
}

CASES(receive_unread_before_reset, ALL, name_of, UPGRADES)
{
    int fd = fresh();
    tell('w', 5);
    say("send: %s", result(put(fd, 3, 0)));
    /* It closes with our bytes unread. */
    tell('c', 0);
    say("first: %s", result(get(arg, fd, 10)));
    say("second: %s", result(get(arg, fd, 10)));
}

CASES(receive_waits_for_data, ALL, name_of, UPGRADES)
{
    int fd = fresh();
    for (int i = 0; i < 3; i++) {
        when_asleep('w', 5 + i, 0);
        say("round %d: %s", i, result(get(arg, fd, 10)));
    }
}

CASES(receive_waits_for_end, ALL, name_of, UPGRADES)
{
    int fd = fresh();
    when_asleep('s', SHUT_WR, 0);
    say("first: %s", result(get(arg, fd, 10)));
    say("second: %s", result(get(arg, fd, 10)));
}

CASES(receive_waits_for_reset, ALL, name_of, UPGRADES)
{
    int fd = fresh();
    when_asleep('l', 0, 0);
    say("first: %s", result(get(arg, fd, 10)));
    say("second: %s", result(get(arg, fd, 10)));
}

static void *shut(void *arg)
{
    until_asleep(getpid());
    shutdown(*(int *)arg, SHUT_RD);
    return NULL;
}

CASES(receive_waits_for_own_shutdown, ALL, name_of, UPGRADES)
{
    struct thread t;
    int fd = fresh();
    spawn_thread(&t, shut, &fd);
    say("first: %s", result(get(arg, fd, 10)));
    join(&t);
    say("second: %s", result(get(arg, fd, 10)));
    say("send: %s", result(put(fd, 5, 0)));
    say("the peer reads %ld", tell('r', 5));
}

CASES(receive_interrupted, ALL, name_of, UPGRADES)
{
    int fd = fresh();
    on(SIGUSR1, count_hit, 0);
    when_asleep('k', SIGUSR1, 0);
    say("%s", result(get(arg, fd, 10)));
    say("hits %d", (int)hits);
    tell('w', 4);
    say("afterwards %s", result(get(arg, fd, 10)));
}

CASES(receive_restarted, ALL, name_of, UPGRADES)
{
    int fd = fresh();
    on(SIGUSR1, count_hit, SA_RESTART);
    when_asleep('K', SIGUSR1, 0);
    say("%s", result(get(arg, fd, 10)));
    say("hits %d", (int)hits);
}

CASES(receive_time_limit, ALL, name_of, UPGRADES)
{
    int fd = fresh();
    struct timeval t = { 0, 50000 };
    R(setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &t, sizeof t));
    struct moment start = moment();
    say("%s", result(get(arg, fd, 10)));
    /* The kernel counts these limits in its ticks, of which the first may be nearly over. */
    say("it waited %d", ms_since(start) >= 39);
    tell('w', 4);
    say("in time %s", result(get(arg, fd, 10)));
    t.tv_sec = 20;
    R(setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &t, sizeof t));
    when_asleep('w', 3, 0);
    say("in time %s", result(get(arg, fd, 10)));
    /* With a limit a signal's handler does not restart it. */
    on(SIGUSR1, count_hit, SA_RESTART);
    when_asleep('k', SIGUSR1, 0);
    say("interrupted %s", result(get(arg, fd, 10)));
}

CASES(receive_bad_arguments, ALL, name_of, UPGRADES)
{
    int fd = fresh();
    tell('w', 10);
    receive *call = ways[arg].call;
    say("at address 8: %s", result(call(fd, (void *)8, 10, 0)));
    say("at NULL: %s", result(call(fd, NULL, 10, 0)));
    say("in the kernel's half: %s", result(call(fd, (void *)0xffff800000000000, 10, 0)));
    say("none at NULL: %s", result(call(fd, NULL, 0, 0)));
    say("nothing is lost: %s", result(get(arg, fd, 20)));
    say("no descriptor: %s", result(call(-1, space, 10, 0)));
    say("not open: %s", result(call(700, space, 10, 0)));
    close(fd);
    say("closed: %s", result(call(fd, space, 10, 0)));
}

CASES(receive_not_connected, ALL, name_of, NO_CONNECTION)
{
    int fd = MUST(socket(AF_INET, SOCK_STREAM, 0));
    say("fresh socket: %s", result(ways[arg].call(fd, space, 10, 0)));
    need_listener();
    say("listener: %s", result(ways[arg].call(listener, space, 10, 0)));
}

CASES(receive_peek, WITH_FLAGS, name_of, UPGRADES)
{
    int fd = fresh();
    say("nothing: %s", result(get_flags(arg, fd, 5, MSG_PEEK | MSG_DONTWAIT)));
    tell('w', 8);
    say("5: %s", result(get_flags(arg, fd, 5, MSG_PEEK)));
    say("20: %s", result(get_flags(arg, fd, 20, MSG_PEEK)));
    say("0: %s", result(get_flags(arg, fd, 0, MSG_PEEK)));
    say("read 3: %s", result(get(arg, fd, 3)));
    say("20: %s", result(get_flags(arg, fd, 20, MSG_PEEK | MSG_DONTWAIT)));
    say("read: %s", result(get(arg, fd, 20)));
    when_asleep('w', 4, 0);
    say("waits: %s", result(get_flags(arg, fd, 20, MSG_PEEK)));
    tell('s', SHUT_WR);
    say("with the end behind: %s", result(get_flags(arg, fd, 20, MSG_PEEK)));
    say("read: %s", result(get(arg, fd, 20)));
    say("end: %s", result(get_flags(arg, fd, 20, MSG_PEEK)));
}

CASES(receive_all, WITH_FLAGS, name_of, UPGRADES)
{
    int fd = fresh();
    tell('w', 3);
    when_asleep('w', 7, 0);
    say("10 in two parts: %s", result(get_flags(arg, fd, 10, MSG_WAITALL)));
    tell('w', 3);
    say("without waiting: %s", result(get_flags(arg, fd, 10, MSG_WAITALL | MSG_DONTWAIT)));
    tell('w', 5);
    when_asleep('w', 5, 0);
    say("peek at all: %s", result(get_flags(arg, fd, 10, MSG_WAITALL | MSG_PEEK)));
    say("all: %s", result(get_flags(arg, fd, 10, MSG_WAITALL)));
    tell('w', 4);
    on(SIGUSR1, count_hit, SA_RESTART);
    when_asleep('k', SIGUSR1, 0);
    say("interrupted with a part: %s", result(get_flags(arg, fd, 10, MSG_WAITALL)));
    struct timeval t = { 0, 40000 };
    setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &t, sizeof t);
    tell('w', 4);
    say("time is up: %s", result(get_flags(arg, fd, 10, MSG_WAITALL)));
    t.tv_usec = 0;
    setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &t, sizeof t);
    tell('w', 4);
    when_asleep('s', SHUT_WR, 0);
    say("ended with a part: %s", result(get_flags(arg, fd, 10, MSG_WAITALL)));
    say("end: %s", result(get_flags(arg, fd, 10, MSG_WAITALL)));
}

CASES(receive_discard, WITH_FLAGS, name_of, UPGRADES)
{
    int fd = fresh();
    tell('w', 10);
    say("discard 6: %s", result(get_flags(arg, fd, 6, MSG_TRUNC)));
    say("discard 10 of 4: %s", result(get_flags(arg, fd, 10, MSG_TRUNC)));
    say("none left: %s", result(get_flags(arg, fd, 10, MSG_TRUNC | MSG_DONTWAIT)));
    tell('w', 10);
    say("to nowhere: %s", result(ways[arg].call(fd, NULL, 4, MSG_TRUNC)));
    from_peer[0] += 4;
    say("the rest: %s", result(get(arg, fd, 10)));
}

CASES(receive_other_flags, WITH_FLAGS, name_of, UPGRADES)
{
    int fd = fresh();
    say("error queue: %s", result(get_flags(arg, fd, 10, MSG_ERRQUEUE)));
    tell('w', 3);
    say("error queue: %s", result(get_flags(arg, fd, 10, MSG_ERRQUEUE)));
    say("nosignal and more: %s", result(get_flags(arg, fd, 10, MSG_NOSIGNAL | MSG_MORE | MSG_CMSG_CLOEXEC)));
    say("no urgent byte: %s", result(get_flags(arg, fd, 1, MSG_OOB)));
    tell('w', 3);
    say("afterwards: %s", result(get(arg, fd, 10)));
}
