/* Several numbers for one connection, numbers that change hands, limits, and passing to another process. */
#include "frame.h"
#include <linux/close_range.h>
#include <sys/resource.h>
#include <sys/syscall.h>

void closefrom(int);

static int by_dup(int fd) { return dup(fd); }
static int by_dup2(int fd) { return dup2(fd, 100); }
static int by_dup3(int fd) { return dup3(fd, 101, O_CLOEXEC); }
static int by_F_DUPFD(int fd) { return fcntl(fd, F_DUPFD, 102); }
static int by_F_DUPFD_CLOEXEC(int fd) { return fcntl(fd, F_DUPFD_CLOEXEC, 103); }
static int by_SYS_dup(int fd) { return syscall(SYS_dup, fd); }
#ifdef SYS_dup2 /* Not on arm64. */
static int by_SYS_dup2(int fd) { return syscall(SYS_dup2, fd, 104); }
#endif
static int by_SYS_dup3(int fd) { return syscall(SYS_dup3, fd, 105, 0); }
static int by_SYS_fcntl(int fd) { return syscall(SYS_fcntl, fd, F_DUPFD, 106L); }

static const struct { const char *name; int (*call)(int); } ways[] = {
#define W(name) { #name, by_##name }
    W(dup), W(dup2), W(dup3), W(F_DUPFD), W(F_DUPFD_CLOEXEC), W(SYS_dup), W(SYS_dup3), W(SYS_fcntl),
#ifdef SYS_dup2
    W(SYS_dup2),
#endif
};
enum { WAYS = sizeof ways / sizeof *ways };

static const char *name_of(const char *id, int way)
{
    static char text[80];
    snprintf(text, sizeof text, "%s %s", id, ways[way].name);
    return text;
}

CASES(duplicate, WAYS, name_of, UPGRADES)
{
    int fd = fresh(), copy = MUST(ways[arg].call(fd));
    say("close on exec %d", fcntl(copy, F_GETFD));
    tell('w', 20);
    R(take(fd, 5, 0));
    R(take(copy, 5, 0));
    R(put(copy, 5, 0));
    R(put(fd, 5, 0));
    say("the peer reads %ld", tell('r', 10));
    int set = set_with(copy, EPOLLIN);
    close(fd);
    known_as(0, copy);
    say("the set %s", wait_for(set, 0));
    R(take(copy, 100, 0));
    say("the set %s", wait_for(set, 0));
    when_asleep('w', 5, 0);
    say("the set %s", wait_for(set, 5000));
    R(put(copy, 5, 0));
    R(shutdown(copy, SHUT_WR));
    peer_reads_to_end();
    R(take(copy, 100, 0));
    close(copy);
    say("the set %s", wait_for(set, 0));
}

CASE(dup_errors)
{
    int fd = fresh();
    R(dup(-1));
    R(dup2(fd, -1));
    R(dup2(-1, fd));
    R(dup2(700, fd));
    R(dup2(fd, fd) == fd);
    R(dup3(fd, fd, 0));
    R(dup3(fd, 100, 12345));
    R(fcntl(fd, F_DUPFD, -1));
    R(fcntl(fd, F_DUPFD, 1 << 30));
    tell('w', 5);
    R(take(fd, 5, 0));
}

/* Another descriptor takes the number: a file, a pipe, another connection; the first ends for its peer. */
CASE(dup_over_a_connection)
{
    int a = fresh_slot(0), b = fresh_slot(1), null = MUST(open("/dev/null", O_RDWR)), keep = a;
    char c;
    R(dup2(b, a) == a);
    peer_reads_to_end();
    slot = 1;
    known_as(1, a);
    tell('w', 10);
    R(take(keep, 4, 0));
    R(take(b, 10, 0));
    R(close(b));
    R(put(a, 5, 0));
    say("the peer reads %ld", tell('r', 5));
    R(dup3(null, a, O_CLOEXEC) == a);
    peer_reads_to_end();
    R(read(a, &c, 1));
    R(recv(a, &c, 1, 0));
    R(write(a, &c, 1));
}

CASE(number_reused_by_a_file)
{
    int fd = fresh(), ends[2];
    char c = 'x';
    close(fd);
    int file = open("/dev/null", O_RDWR);
    say("same number %d", file == fd);
    R(read(file, &c, 1));
    R(send(file, &c, 1, 0));
    close(file);
    MUST(pipe(ends));
    say("same number %d", ends[0] == fd);
    R(write(ends[1], &c, 1));
    R(read(ends[0], &c, 1));
    peer_reads_to_end();
}

CASE(close_many)
{
    int fds[SLOTS];
    for (int i = 0; i < SLOTS; i++)
        fds[i] = fresh_slot(i);
    int low = fds[0] < fds[1] ? fds[0] : fds[1];
    R(close_range(low, low, 0));
    say("the first is closed %d", fcntl(low, F_GETFD) < 0);
    R(close_range(fds[2], fds[2], CLOSE_RANGE_CLOEXEC));
    R(fcntl(fds[2], F_GETFD));
    R(close_range(5, 4, 0));
    R(close_range(fds[2], fds[3], 12345));
    slot = 2;
    tell('w', 5);
    R(take(fds[2], 5, 0));
    R(close_range(fds[2] < fds[3] ? fds[2] : fds[3], 500, 0));
    for (slot = 2; slot < 4; slot++)
        peer_reads_to_end();
}

CASE(close_from)
{
    int fd = fresh();
    pid_t child = fork();
    if (child == 0) {
        say("child sees it %d", fcntl(fd, F_GETFD) >= 0);
        closefrom(fd);
        _exit(fcntl(fd, F_GETFD) < 0 ? 0 : 1);
    }
    reap(child, "child");
    tell('w', 5);
    R(take(fd, 5, 0));
    R(put(fd, 5, 0));
    say("the peer reads %ld", tell('r', 5));
}

/* Beyond what select can name. */
CASE(number_above_fd_setsize)
{
    struct rlimit l;
    getrlimit(RLIMIT_NOFILE, &l);
    if (l.rlim_max < 3000)
        skip_rest("the limit of open files is %ld", (long)l.rlim_max);
    l.rlim_cur = 3000;
    MUST(setrlimit(RLIMIT_NOFILE, &l));
    int fd = fresh(), high = MUST(fcntl(fd, F_DUPFD, 2000));
    close(fd);
    known_as(0, high);
    tell('w', 10);
    look(high, "high");
    R(take(high, 4, 0));
    struct { fd_set first, more[2]; } in;
    memset(&in, 0, sizeof in);
    ((unsigned long *)&in)[2000 / 64] |= 1ul << 2000 % 64;
    R(select(2001, &in.first, NULL, NULL, &(struct timeval){ 0, 0 }));
    say("its bit %d", (int)(((unsigned long *)&in)[2000 / 64] >> 2000 % 64 & 1));
    R(take(high, 10, 0));
    R(select(2001, &in.first, NULL, NULL, &(struct timeval){ 0, 10000 }));
    when_asleep('w', 5, 0);
    ((unsigned long *)&in)[2000 / 64] |= 1ul << 2000 % 64;
    R(select(2001, &in.first, NULL, NULL, NULL));
    R(take(high, 10, 0));
}

CASE(limit_of_descriptors)
{
    struct rlimit l;
    getrlimit(RLIMIT_NOFILE, &l);
    l.rlim_cur = 900;
    MUST(setrlimit(RLIMIT_NOFILE, &l));
    int fd = fresh(), n, last = -1;
    while ((n = dup(0)) >= 0)
        last = n;
    say("the limit is reached %s", result(n));
    R(socket(AF_INET, SOCK_STREAM, 0));
    R(dup(fd));
    R(fcntl(fd, F_DUPFD, 10));
    R(epoll_create1(0));
    tell('w', 10);
    R(take(fd, 10, 0));
    R(put(fd, 10, 0));
    say("the peer reads %ld", tell('r', 10));
    when_asleep('w', 5, 0);
    R(take(fd, 10, 0));
    R(dup2(fd, last) == last);
    R(close(last));
    R(dup(fd) == last);
    R(put(fd, 3, 0));
    say("the peer reads %ld", tell('r', 3));
}

/* At the limit while the connection would leave TCP: it may stay, and must work. */
CASE_PLAN(limit_from_the_start, STAYS_TCP)
{
    struct rlimit l;
    getrlimit(RLIMIT_NOFILE, &l);
    int fd = cold();
    l.rlim_cur = 900;
    MUST(setrlimit(RLIMIT_NOFILE, &l));
    while (dup(0) >= 0)
        ;
    warm_slot(0);
    tell('w', 10);
    R(take(fd, 10, 0));
    R(put(fd, 10, 0));
    say("the peer reads %ld", tell('r', 10));
    struct pollfd p = { .fd = fd, .events = POLLIN | POLLOUT };
    R(poll(&p, 1, 0));
}

static void pass(int over, int fd)
{
    char c = 'f', space[CMSG_SPACE(sizeof(int))];
    struct iovec v = { &c, 1 };
    struct msghdr m = { .msg_iov = &v, .msg_iovlen = 1, .msg_control = space, .msg_controllen = sizeof space };
    struct cmsghdr *h = CMSG_FIRSTHDR(&m);
    *h = (struct cmsghdr){ .cmsg_level = SOL_SOCKET, .cmsg_type = SCM_RIGHTS, .cmsg_len = CMSG_LEN(sizeof(int)) };
    memcpy(CMSG_DATA(h), &fd, sizeof fd);
    MUST(sendmsg(over, &m, 0));
}

static int passed(int over)
{
    char c, space[CMSG_SPACE(sizeof(int))];
    int fd = -1;
    struct iovec v = { &c, 1 };
    struct msghdr m = { .msg_iov = &v, .msg_iovlen = 1, .msg_control = space, .msg_controllen = sizeof space };
    if (MUST(recvmsg(over, &m, MSG_CMSG_CLOEXEC)) != 1 || !CMSG_FIRSTHDR(&m))
        die("no descriptor came");
    memcpy(&fd, CMSG_DATA(CMSG_FIRSTHDR(&m)), sizeof fd);
    return fd;
}

/* To a child made before, which must serve it; with nothing unread, the sender goes. */
static void rights(int keep)
{
    int pair[2];
    MUST(socketpair(AF_UNIX, SOCK_STREAM, 0, pair));
    pid_t child = fork();
    if (child == 0) {
        close(pair[0]);
        int fd = passed(pair[1]);
        known_as(0, fd);
        for (int i = 0; i < 30; i++) {
            when_asleep('w', 10, 0);
            if (take(fd, 100, 0) != 10 || put(fd, 10, 0) != 10)
                say("round %d fails", i);
        }
        say("child: the peer reads %ld", tell('r', 300));
        look(fd, "child");
        _exit(0);
    }
    int fd = fresh();
    pass(pair[0], fd);
    if (!keep)
        close(fd);
    reap(child, "child");
    if (keep) {
        from_peer[0] = from_subject[0] = 300;
        tell('w', 5);
        R(take(fd, 10, 0));
    }
}

CASE(rights_given_away) { rights(0); }
CASE(rights_shared) { rights(1); }

CASE(rights_to_itself)
{
    int pair[2], fd = fresh();
    MUST(socketpair(AF_UNIX, SOCK_DGRAM, 0, pair));
    pass(pair[0], fd);
    int copy = passed(pair[1]);
    close(fd);
    known_as(0, copy);
    tell('w', 10);
    R(take(copy, 10, 0));
    R(put(copy, 10, 0));
    say("the peer reads %ld", tell('r', 10));
    R(close(copy));
    peer_reads_to_end();
}

/* The same by calls of several messages, before the connection has left TCP: it must be followed to its new number. */
CASE(rights_many_to_itself)
{
    int pair[2], fd = cold();
    char c[2] = "f", space[2][CMSG_SPACE(sizeof(int))] = { 0 };
    struct iovec v = { c, 1 };
    struct mmsghdr m[2];
    MUST(socketpair(AF_UNIX, SOCK_DGRAM, 0, pair));
    memset(m, 0, sizeof m);
    for (int i = 0; i < 2; i++)
        m[i].msg_hdr = (struct msghdr){ .msg_iov = &v, .msg_iovlen = 1 };
    m[1].msg_hdr.msg_control = space[1];
    m[1].msg_hdr.msg_controllen = sizeof space[1];
    struct cmsghdr *h = CMSG_FIRSTHDR(&m[1].msg_hdr);
    *h = (struct cmsghdr){ .cmsg_level = SOL_SOCKET, .cmsg_type = SCM_RIGHTS, .cmsg_len = CMSG_LEN(sizeof(int)) };
    memcpy(CMSG_DATA(h), &fd, sizeof fd);
    R(sendmmsg(pair[0], m, 2, 0));
    for (int i = 0; i < 2; i++) {
        m[i].msg_hdr.msg_control = space[i];
        m[i].msg_hdr.msg_controllen = sizeof space[i];
    }
    R(recvmmsg(pair[1], m, 2, MSG_CMSG_CLOEXEC, NULL));
    h = CMSG_FIRSTHDR(&m[1].msg_hdr);
    say("only the second has one: %d %d", !CMSG_FIRSTHDR(&m[0].msg_hdr), h != NULL);
    int copy;
    memcpy(&copy, CMSG_DATA(h), sizeof copy);
    close(fd);
    known_as(0, copy);
    warm_slot(0);
    tell('w', 10);
    R(take(copy, 10, 0));
    R(put(copy, 10, 0));
    say("the peer reads %ld", tell('r', 10));
    R(close(copy));
    peer_reads_to_end();
}

/* Messages that are not sent take nothing along. */
CASE(rights_many_not_sent)
{
    int pair[2], fd = cold(), n = 0;
    char c[2] = "f", space[CMSG_SPACE(sizeof(int))] = { 0 };
    struct iovec v = { c, 1 };
    struct mmsghdr m = { .msg_hdr = { .msg_iov = &v, .msg_iovlen = 1, .msg_control = space, .msg_controllen = sizeof space } };
    MUST(socketpair(AF_UNIX, SOCK_DGRAM | SOCK_NONBLOCK, 0, pair));
    while (send(pair[0], c, 1, 0) == 1)
        n++;
    say("full %d", n > 0);
    struct cmsghdr *h = CMSG_FIRSTHDR(&m.msg_hdr);
    *h = (struct cmsghdr){ .cmsg_level = SOL_SOCKET, .cmsg_type = SCM_RIGHTS, .cmsg_len = CMSG_LEN(sizeof(int)) };
    memcpy(CMSG_DATA(h), &fd, sizeof fd);
    R(sendmmsg(pair[0], &m, 1, 0));
    warm_slot(0);
    tell('w', 10);
    R(take(fd, 10, 0));
}
