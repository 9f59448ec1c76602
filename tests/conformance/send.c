/* Every way to send, in every state of a connection. */
#include "frame.h"
#include <sys/sendfile.h>
#include <sys/syscall.h>

ssize_t __write(int, const void *, size_t);
#ifdef __aarch64__
#define __send send /* There the name is for programs that were linked long ago. */
#else
ssize_t __send(int, const void *, size_t, int);
#endif

typedef ssize_t send_fn(int fd, void *buf, size_t len, int flags);

#define WAY(name, ...) static ssize_t name(int fd, void *buf, size_t len, UNUSED int flags) { __VA_ARGS__ }
#define PIECES struct iovec v[2] = { { buf, len / 3 }, { (char *)buf + len / 3, len - len / 3 } }
#define MESSAGE PIECES; struct msghdr m = { .msg_iov = v, .msg_iovlen = 2 }
#define MESSAGES MESSAGE; struct mmsghdr mm = { .msg_hdr = m }; long n

/* A file with what is to be sent: the call reads from there. */
static int file_of(const void *buf, size_t len)
{
    static int fd = -1;
    if (fd < 0)
        fd = MUST(memfd_create("send", MFD_CLOEXEC));
    MUST(ftruncate(fd, 0));
    MUST(lseek(fd, 0, SEEK_SET));
    if (len && pwrite(fd, buf, len, 0) != (ssize_t)len)
        die("pwrite");
    return fd;
}

WAY(by_write, return write(fd, buf, len);)
WAY(by_writev, PIECES; return writev(fd, v, 2);)
WAY(by_send, return send(fd, buf, len, flags);)
WAY(by_sendto, return sendto(fd, buf, len, flags, NULL, 0);)
WAY(by_sendmsg, MESSAGE; return sendmsg(fd, &m, flags);)
WAY(by_sendmmsg, MESSAGES = sendmmsg(fd, &mm, 1, flags); return n == 1 ? mm.msg_len : n;)
WAY(by_pwritev2, PIECES; return pwritev2(fd, v, 2, -1, 0);)
WAY(by_pwritev64v2, PIECES; return pwritev64v2(fd, v, 2, -1, 0);)
WAY(by___write, return __write(fd, buf, len);)
WAY(by___send, return __send(fd, buf, len, flags);)
WAY(by_SYS_write, return syscall(SYS_write, fd, buf, len);)
WAY(by_SYS_writev, PIECES; return syscall(SYS_writev, fd, v, 2);)
WAY(by_SYS_sendto, return syscall(SYS_sendto, fd, buf, len, flags, NULL, 0);)
WAY(by_SYS_sendmsg, MESSAGE; return syscall(SYS_sendmsg, fd, &m, flags);)
WAY(by_SYS_sendmmsg, MESSAGES = syscall(SYS_sendmmsg, fd, &mm, 1, flags); return n == 1 ? mm.msg_len : n;)
WAY(by_SYS_pwritev2, PIECES; return syscall(SYS_pwritev2, fd, v, 2, -1L, -1L, 0);)
WAY(by_sendfile, int f = file_of(buf, len); return sendfile(fd, f, NULL, len);)
WAY(by_sendfile64, int f = file_of(buf, len); off64_t at = 0; return sendfile64(fd, f, &at, len);)
WAY(by_SYS_sendfile, int f = file_of(buf, len); return syscall(SYS_sendfile, fd, f, NULL, len);)

static const struct { const char *name; send_fn *call; } ways[] = {
#define W(name) { #name, by_##name }
    W(send), W(sendto), W(sendmsg), W(sendmmsg), W(__send), W(SYS_sendto), W(SYS_sendmsg), W(SYS_sendmmsg), W(write),
    W(writev), W(pwritev2), W(pwritev64v2), W(__write), W(SYS_write), W(SYS_writev), W(SYS_pwritev2), W(sendfile),
    W(sendfile64), W(SYS_sendfile) };
enum { WITH_FLAGS = 8, FROM_MEMORY = 16, ALL = sizeof ways / sizeof *ways };

static const char *name_of(const char *id, int way)
{
    static char text[80];
    snprintf(text, sizeof text, "%s %s", id, ways[way].name);
    return text;
}

static ssize_t give_flags(int way, int fd, int len, int flags)
{
    ssize_t n = ways[way].call(fd, to_send(len), len, flags);
    sent(n);
    return n;
}

static ssize_t give(int way, int fd, int len) { return give_flags(way, fd, len, 0); }

CASES(send_data, ALL, name_of, UPGRADES)
{
    int fd = fresh();
    static const int sizes[] = { 1, 5, 0, 100, 4096, 20000, 3 };
    for (int i = 0; i < 7; i++) {
        say("%d: %s", sizes[i], result(give(arg, fd, sizes[i])));
        say("the peer reads %ld", tell('r', sizes[i]));
    }
    say("two without a read: %s, %s", result(give(arg, fd, 10)), result(give(arg, fd, 20)));
    say("the peer reads %ld", tell('r', 30));
}

CASES(send_bulk, ALL, name_of, UPGRADES)
{
    int fd = fresh(), total = 0, n = 1;
    when_asleep('r', 900000, 0);
    for (int len = 1; total < 900000 && n > 0; len = len * 3 % 70001 + 1)
        if ((n = give(arg, fd, len < 900000 - total ? len : 900000 - total)) > 0)
            total += n;
    say("sent %d, last %s", total, n > 0 ? "some" : result(n));
    say("one more %s", result(give(arg, fd, 1)));
    say("the peer reads %ld", tell('r', 1));
}

CASES(send_after_own_end, ALL, name_of, UPGRADES)
{
    int fd = fresh();
    on(SIGPIPE, count_hit, 0);
    say("data: %s", result(give(arg, fd, 5)));
    R(shutdown(fd, SHUT_WR));
    outcome("5", give(arg, fd, 5));
    outcome("0", give(arg, fd, 0));
    peer_reads_to_end();
    tell('w', 3);
    say("receive: %s", result(take(fd, 10, 0)));
}

CASES(send_after_both_ends, ALL, name_of, UPGRADES)
{
    int fd = fresh();
    on(SIGPIPE, count_hit, 0);
    R(shutdown(fd, SHUT_RDWR));
    outcome("5", give(arg, fd, 5));
    peer_reads_to_end();
}

CASES(send_to_closed, ALL, name_of, UPGRADES)
{
    int fd = fresh();
    on(SIGPIPE, count_hit, 0);
    tell('c', 0);
    say("first: %s", result(give(arg, fd, 5)));
    reset_arrives(fd);
    outcome("second", give(arg, fd, 5));
    outcome("third", give(arg, fd, 5));
    say("receive: %s", result(take(fd, 5, 0)));
}

CASES(send_after_reset, ALL, name_of, UPGRADES)
{
    int fd = fresh();
    on(SIGPIPE, count_hit, 0);
    tell('l', 0);
    outcome("first", give(arg, fd, 5));
    outcome("second", give(arg, fd, 5));
    say("receive: %s", result(take(fd, 5, 0)));
}

CASES(send_killed_by_sigpipe, ALL, name_of, UPGRADES)
{
    int fd = fresh();
    R(shutdown(fd, SHUT_WR));
    say("the next line is the signal");
    give(arg, fd, 5);
    say("no signal came");
}

CASES(send_when_full, ALL, name_of, UPGRADES)
{
    int fd = fresh();
    nonblocking(fd);
    long total = fill_up(fd);
    say("full after some: %d", total > 60000);
    /* Linux answers a send of nothing without a look at the space. */
    say("5 more: %s", result(give(arg, fd, 5)));
    say("the peer reads all: %d", tell('r', total) == total);
    struct pollfd p = { .fd = fd, .events = POLLOUT };
    say("writable: %d", poll(&p, 1, 5000));
    say("5 more: %s", result(give(arg, fd, 5)));
    say("the peer reads %ld", tell('r', 5));
}

CASES(send_waits_for_space, ALL, name_of, UPGRADES)
{
    int fd = fresh();
    long total = fill_up(fd);
    when_asleep('r', total + 5, 0);
    say("5 more: %s", result(give(arg, fd, 5)));
    say("and 7: %s", result(give(arg, fd, 7)));
    say("the peer reads %ld", tell('r', 7));
}

CASES(send_waits_for_reset, ALL, name_of, UPGRADES)
{
    int fd = fresh();
    on(SIGPIPE, count_hit, 0);
    fill_up(fd);
    when_asleep('l', 0, 0);
    outcome("5 more", give(arg, fd, 5));
    outcome("5 more", give(arg, fd, 5));
}

CASES(send_interrupted, ALL, name_of, UPGRADES)
{
    int fd = fresh();
    on(SIGUSR1, count_hit, 0);
    long total = fill_up(fd);
    when_asleep('k', SIGUSR1, 0);
    say("5 more: %s", result(give(arg, fd, 5)));
    say("hits %d", (int)hits);
    say("the peer reads all: %d", tell('r', total) == total);
}

CASES(send_restarted, ALL, name_of, UPGRADES)
{
    int fd = fresh();
    on(SIGUSR1, count_hit, SA_RESTART);
    long total = fill_up(fd);
    pid_t self = gettid(), child = fork();
    if (child == 0) {
        /* First the signal, then space. */
        await_sleep(getppid(), self);
        kill(getppid(), SIGUSR1);
        await_sleep(getppid(), self);
        ask('r', total, 0);
        _exit(0);
    }
    say("5 more: %s", result(give(arg, fd, 5)));
    say("hits %d", (int)hits);
    waitpid(child, NULL, 0);
    say("the peer reads %ld", tell('r', 5));
}

CASES(send_time_limit, ALL, name_of, UPGRADES)
{
    int fd = fresh();
    struct timeval t = { 0, 50000 };
    R(setsockopt(fd, SOL_SOCKET, SO_SNDTIMEO, &t, sizeof t));
    long total = fill_up(fd);
    struct moment start = moment();
    say("5 more: %s", result(give(arg, fd, 5)));
    /* The kernel counts these limits in its ticks, of which the first may be nearly over. */
    say("it waited %d", ms_since(start) >= 39);
    say("the peer reads all: %d", tell('r', total) == total);
    say("5 more: %s", result(give(arg, fd, 5)));
}

CASES(send_bad_arguments, FROM_MEMORY, name_of, UPGRADES)
{
    int fd = fresh();
    send_fn *call = ways[arg].call;
    say("at address 8: %s", result(call(fd, (void *)8, 10, 0)));
    say("at NULL: %s", result(call(fd, NULL, 10, 0)));
    say("in the kernel's half: %s", result(call(fd, (void *)0xffff800000000000, 10, 0)));
    say("none at NULL: %s", result(call(fd, NULL, 0, 0)));
    say("5: %s", result(give(arg, fd, 5)));
    say("the peer reads %ld", tell('r', 5));
    say("no descriptor: %s", result(call(-1, to_send(5), 5, 0)));
    say("not open: %s", result(call(700, to_send(5), 5, 0)));
    close(fd);
    say("closed: %s", result(call(fd, to_send(5), 5, 0)));
}

CASES(send_not_connected, ALL, name_of, NO_CONNECTION)
{
    on(SIGPIPE, count_hit, 0);
    int fd = MUST(socket(AF_INET, SOCK_STREAM, 0));
    outcome("fresh socket", give(arg, fd, 5));
    need_listener();
    outcome("listener", give(arg, listener, 5));
}

CASES(send_flags, WITH_FLAGS, name_of, UPGRADES)
{
    int fd = fresh();
    on(SIGPIPE, count_hit, 0);
    say("dontwait: %s", result(give_flags(arg, fd, 5, MSG_DONTWAIT)));
    say("end of record: %s", result(give_flags(arg, fd, 5, MSG_EOR)));
    say("confirm: %s", result(give_flags(arg, fd, 5, MSG_CONFIRM)));
    say("more: %s", result(give_flags(arg, fd, 5, MSG_MORE)));
    say("no more: %s", result(give_flags(arg, fd, 5, 0)));
    say("the peer reads %ld", tell('r', 25));
    long total = fill_up(fd);
    say("full, dontwait: %s", result(give_flags(arg, fd, 5, MSG_DONTWAIT)));
    say("the peer reads all: %d", tell('r', total) == total);
    tell('c', 0);
    say("first: %s", result(give_flags(arg, fd, 5, MSG_NOSIGNAL)));
    reset_arrives(fd);
    outcome("nosignal", give_flags(arg, fd, 5, MSG_NOSIGNAL));
}
