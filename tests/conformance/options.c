/* Every option that a program can set on a TCP connection, and what it reads afterwards; ioctl and fcntl. */
#include "frame.h"
#include <linux/sockios.h>

#define S(option, ...) { #option, SOL_SOCKET, option, __VA_ARGS__ }
#define T(option, ...) { #option, IPPROTO_TCP, option, __VA_ARGS__ }
#define I(option, ...) { #option, IPPROTO_IP, option, __VA_ARGS__ }
/* Read back as it is, or only that it can be read: the kernel's own value depends on the machine and the moment. */
enum { VALUE, CHANGES };

static const struct { const char *name; int level, option, kind, values[4]; } options[] = {
    S(SO_DEBUG, VALUE, { 0 }), S(SO_REUSEADDR, CHANGES, { 1, 0 }), S(SO_TYPE, VALUE, { 1 }), S(SO_ERROR, VALUE, { 1 }),
    S(SO_DONTROUTE, VALUE, { 1, 0 }), S(SO_BROADCAST, VALUE, { 1, 0 }), S(SO_SNDBUF, CHANGES, { 4608, 100000 }),
    S(SO_RCVBUF, CHANGES, { 2304, 100000 }), S(SO_KEEPALIVE, VALUE, { 1, 0 }), S(SO_OOBINLINE, VALUE, { 1, 0 }),
    S(SO_NO_CHECK, VALUE, { 1, 0 }), S(SO_PRIORITY, VALUE, { 3, 6, 0 }), S(SO_REUSEPORT, VALUE, { 1, 0 }),
    S(SO_PASSCRED, VALUE, { 1, 0 }), S(SO_RCVLOWAT, VALUE, { -1, 50, 0 }), S(SO_SNDLOWAT, VALUE, { 1, 50 }),
    S(SO_TIMESTAMP, VALUE, { 1, 0 }), S(SO_TIMESTAMPNS, VALUE, { 1, 0 }), S(SO_ACCEPTCONN, VALUE, { 1 }),
    S(SO_PROTOCOL, VALUE, { 1 }), S(SO_DOMAIN, VALUE, { 1 }), S(SO_MARK, VALUE, { 0 }), S(SO_PEEK_OFF, VALUE, { -1 }),
    S(SO_RXQ_OVFL, VALUE, { 1, 0 }), S(SO_LOCK_FILTER, VALUE, { 0 }), S(SO_BUSY_POLL, VALUE, { 0 }),
    S(SO_SELECT_ERR_QUEUE, VALUE, { 1, 0 }), S(SO_INCOMING_CPU, CHANGES, { 0 }), S(SO_ZEROCOPY, VALUE, { 0 }),
    S(SO_TXREHASH, VALUE, { 1, 0 }), S(SO_BUF_LOCK, CHANGES, { 0 }),
    T(TCP_NODELAY, VALUE, { 1, 0, 5 }), T(TCP_MAXSEG, CHANGES, { 600, 1 }), T(TCP_CORK, VALUE, { 1, 0 }),
    T(TCP_KEEPIDLE, VALUE, { 30, 0, 70000 }), T(TCP_KEEPINTVL, VALUE, { 10, 0 }), T(TCP_KEEPCNT, VALUE, { 3, 0, 200 }),
    T(TCP_SYNCNT, VALUE, { 4, 0 }), T(TCP_LINGER2, VALUE, { 20, -1 }), T(TCP_DEFER_ACCEPT, VALUE, { 0 }),
    T(TCP_WINDOW_CLAMP, CHANGES, { 60000 }), T(TCP_QUICKACK, CHANGES, { 1, 0 }), T(TCP_THIN_LINEAR_TIMEOUTS, VALUE, { 1, 0, 2 }),
    T(TCP_THIN_DUPACK, VALUE, { 1, 0, 2 }), T(TCP_USER_TIMEOUT, VALUE, { 5000, 0, -1 }), T(TCP_FASTOPEN, VALUE, { 0 }),
    T(TCP_TIMESTAMP, CHANGES, { 0 }), T(TCP_NOTSENT_LOWAT, VALUE, { 4096, 0 }), T(TCP_SAVE_SYN, VALUE, { 0 }),
    T(TCP_FASTOPEN_CONNECT, VALUE, { 1 }), T(TCP_INQ, VALUE, { 0 }), T(TCP_TX_DELAY, VALUE, { 0 }), T(9999, VALUE, { 1 }),
    I(IP_TOS, VALUE, { 16, 0 }), I(IP_TTL, VALUE, { 33, 0, 64 }), I(IP_MTU_DISCOVER, VALUE, { 2, 0 }),
    I(IP_RECVERR, VALUE, { 1, 0 }), I(IP_BIND_ADDRESS_NO_PORT, VALUE, { 1, 0 }), I(IP_MINTTL, VALUE, { 1, 0 }),
    I(IP_TRANSPARENT, VALUE, { 0 }), I(IP_FREEBIND, VALUE, { 1, 0 }), I(IP_MTU, CHANGES, { 1 }), I(IP_PKTINFO, VALUE, { 1, 0 }) };
enum { ALL = sizeof options / sizeof *options };

static const char *name_of(const char *id, int n)
{
    static char text[80];
    snprintf(text, sizeof text, "%s %s", id, options[n].name);
    return text;
}

static void reads(int arg, int fd)
{
    int v = -7;
    socklen_t len = sizeof v;
    int r = getsockopt(fd, options[arg].level, options[arg].option, &v, &len);
    if (r < 0)
        say("getsockopt %s", result(r));
    else if (options[arg].kind == VALUE)
        say("reads %d, length %u", v, len);
    else
        say("reads something, length %u", len);
}

/* The connection goes on, whatever was set. */
static void goes_on(int fd)
{
    R(put(fd, 7, 0));
    say("the peer reads %ld", tell('r', 7));
    tell('w', 5);
    when_asleep('w', 60, 0);
    long got = 0;
    for (int n; got < 65 && (n = take(fd, 100, 0)) > 0;)
        got += n;
    say("received %ld", got);
}

CASES(option, ALL, name_of, UPGRADES)
{
    int fd = fresh();
    reads(arg, fd);
    for (int i = 0; i < 4 && (i == 0 || options[arg].values[i] || options[arg].values[i - 1] > 0); i++) {
        int v = options[arg].values[i];
        say("set %d: %s", v, result(setsockopt(fd, options[arg].level, options[arg].option, &v, sizeof v)));
        reads(arg, fd);
    }
    goes_on(fd);
}

/* Set before the connection had a chance to leave TCP. */
CASES(option_before, ALL, name_of, STAYS_TCP)
{
    int fd = cold(), v = options[arg].values[0];
    say("set %d: %s", v, result(setsockopt(fd, options[arg].level, options[arg].option, &v, sizeof v)));
    if (options[arg].option == SO_RCVLOWAT && options[arg].level == SOL_SOCKET)
        v = 1, setsockopt(fd, SOL_SOCKET, SO_RCVLOWAT, &v, sizeof v);
    warm_slot(0);
    reads(arg, fd);
    goes_on(fd);
}

CASE(option_arguments)
{
    int fd = fresh(), v = 1, pair[2] = { 1, 7 };
    socklen_t len;
    char c = 1;
    static const int all[][2] = { { SOL_SOCKET, SO_KEEPALIVE }, { SOL_SOCKET, SO_RCVLOWAT }, { SOL_SOCKET, SO_LINGER },
                                  { SOL_SOCKET, SO_RCVTIMEO }, { IPPROTO_TCP, TCP_NODELAY }, { IPPROTO_TCP, TCP_CORK } };
    for (int i = 0; i < 6; i++) {
        int l = all[i][0], o = all[i][1];
        say("option %d %d", l, o);
        R(setsockopt(fd, l, o, &v, 0));
        R(setsockopt(fd, l, o, &c, 1));
        R(setsockopt(fd, l, o, &v, -1));
        R(setsockopt(fd, l, o, NULL, 4));
        R(setsockopt(fd, l, o, (void *)8, 4));
        R(setsockopt(fd, l, o, pair, 8));
        len = 4;
        R(getsockopt(fd, l, o, NULL, &len));
        R(getsockopt(fd, l, o, &v, NULL));
        len = 0;
        R(getsockopt(fd, l, o, &v, &len));
        len = 1;
        v = 0;
        R(getsockopt(fd, l, o, &v, &len));
        say("length %u value %d", len, v);
        len = -1;
        R(getsockopt(fd, l, o, &v, &len));
        char big[64];
        len = sizeof big;
        R(getsockopt(fd, l, o, big, &len));
        say("length %u", len);
        v = 1;
    }
    R(setsockopt(fd, 12345, 1, &v, 4));
    R(getsockopt(fd, 12345, 1, &v, &len));
    R(setsockopt(-1, SOL_SOCKET, SO_KEEPALIVE, &v, 4));
    R(setsockopt(700, SOL_SOCKET, SO_KEEPALIVE, &v, 4));
    v = 0;
    setsockopt(fd, IPPROTO_TCP, TCP_CORK, &v, 4);
    v = 1;
    setsockopt(fd, SOL_SOCKET, SO_RCVLOWAT, &v, 4);
    struct timeval none = { 0, 0 };
    setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &none, sizeof none);
}

CASE(option_time_limits_read_back)
{
    int fd = fresh();
    struct timeval t = { 3, 700000 }, back = { 0, 0 };
    socklen_t len = sizeof back;
    R(setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &t, sizeof t));
    R(getsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &back, &len));
    say("seconds %ld, about %ld ms", back.tv_sec, back.tv_usec / 10000 * 10);
    t.tv_usec = 1000000;
    R(setsockopt(fd, SOL_SOCKET, SO_SNDTIMEO, &t, sizeof t));
    t = (struct timeval){ -1, 0 };
    R(setsockopt(fd, SOL_SOCKET, SO_SNDTIMEO, &t, sizeof t));
    back.tv_sec = 9;
    R(getsockopt(fd, SOL_SOCKET, SO_SNDTIMEO, &back, &len));
    say("seconds %ld", back.tv_sec);
}

CASE(option_tcp_info)
{
    int fd = fresh();
    struct tcp_info t;
    socklen_t len = sizeof t;
    R(getsockopt(fd, IPPROTO_TCP, TCP_INFO, &t, &len));
    say("established %d", t.tcpi_state == TCP_ESTABLISHED);
    len = 1;
    R(getsockopt(fd, IPPROTO_TCP, TCP_INFO, &t, &len));
    char name[16] = "";
    len = sizeof name;
    R(getsockopt(fd, IPPROTO_TCP, TCP_CONGESTION, name, &len));
    R(setsockopt(fd, IPPROTO_TCP, TCP_CONGESTION, "reno", 4));
    R(setsockopt(fd, IPPROTO_TCP, TCP_CONGESTION, "nonesuch", 8));
    len = sizeof name;
    memset(name, 0, sizeof name);
    R(getsockopt(fd, IPPROTO_TCP, TCP_CONGESTION, name, &len));
    say("%s", name);
    R(setsockopt(fd, IPPROTO_TCP, TCP_ULP, "nonesuch", 8));
    goes_on(fd);
}

/* A corked write is held back until the cork is pulled; what a program sees here is only that all of it comes. */
static void corked(int late)
{
    int fd = late ? fresh() : cold(), one = 1, zero = 0;
    R(setsockopt(fd, IPPROTO_TCP, TCP_CORK, &one, sizeof one));
    if (!late) {
        R(put(fd, 20, 0));
        R(setsockopt(fd, IPPROTO_TCP, TCP_CORK, &zero, sizeof zero));
        say("the peer reads %ld", tell('r', 20));
        warm_slot(0);
        R(setsockopt(fd, IPPROTO_TCP, TCP_CORK, &one, sizeof one));
    }
    for (int i = 0; i < 5; i++)
        R(put(fd, 10, 0));
    R(setsockopt(fd, IPPROTO_TCP, TCP_CORK, &zero, sizeof zero));
    say("the peer reads %ld", tell('r', 50));
    R(setsockopt(fd, IPPROTO_TCP, TCP_CORK, &one, sizeof one));
    R(put(fd, 10, 0));
    R(shutdown(fd, SHUT_WR));
    peer_reads_to_end();
}

CASE(option_cork) { corked(0); }
CASE(option_cork_late) { corked(1); }

/* Without TCP_NODELAY a cork's end is by time: 200 ms, and the data comes. */
CASE(option_cork_never_pulled)
{
    int fd = fresh(), one = 1;
    R(setsockopt(fd, IPPROTO_TCP, TCP_CORK, &one, sizeof one));
    R(put(fd, 10, 0));
    say("the peer reads %ld", tell('r', 10));
    R(put(fd, 10, MSG_MORE));
    say("the peer reads %ld", tell('r', 10));
}

CASE(option_low_water_mark)
{
    int fd = fresh(), low = 100;
    R(setsockopt(fd, SOL_SOCKET, SO_RCVLOWAT, &low, sizeof low));
    tell('w', 40);
    look(fd, "below the mark");
    R(take(fd, 10, MSG_DONTWAIT));
    tell('w', 80);
    look(fd, "above it");
    R(take(fd, 200, 0));
    when_asleep('V', 60, 60);
    R(take(fd, 200, 0));
    tell('w', 10);
    when_asleep('s', SHUT_WR, 0);
    R(take(fd, 200, 0));
    look(fd, "the end");
    R(take(fd, 200, 0));
}

CASE(ioctl_counts)
{
    int fd = fresh(), n = -1;
    R(ioctl(fd, FIONREAD, &n));
    say("%d", n);
    tell('w', 77);
    R(ioctl(fd, FIONREAD, &n));
    say("%d", n);
    R(ioctl(fd, SIOCINQ, &n));
    say("%d", n);
    R(take(fd, 7, 0));
    R(ioctl(fd, FIONREAD, &n));
    say("%d", n);
    R(ioctl(fd, SIOCATMARK, &n));
    say("%d", n);
    R(put(fd, 30, 0));
    ask('r', 30, 0);
    until_acknowledged(fd);
    R(ioctl(fd, SIOCOUTQ, &n));
    say("%d", n);
    R(ioctl(fd, SIOCOUTQNSD, &n));
    say("%d", n);
    tell('s', SHUT_WR);
    R(ioctl(fd, FIONREAD, &n));
    say("%d", n);
    drain(fd);
    R(ioctl(fd, FIONREAD, &n));
    say("%d", n);
    R(ioctl(fd, FIONREAD, (void *)8));
    R(ioctl(fd, FIONREAD, NULL));
    R(ioctl(fd, 0x5501, &n));
    R(ioctl(-1, FIONREAD, &n));
    R(ioctl(fd, TIOCGWINSZ, &n));
}

CASE(ioctl_unread_by_the_peer)
{
    int fd = fresh(), n = -1;
    R(put(fd, 500, 0));
    until_delivered(fd);
    say("unread there %ld", tell('u', 0));
    ask('r', 500, 0);
    until_acknowledged(fd);
    R(ioctl(fd, TIOCOUTQ, &n));
    say("%d", n);
}

CASE(fcntl_flags)
{
    int fd = fresh(), on = 1, off = 0;
    say("access %d", (fcntl(fd, F_GETFL) & O_ACCMODE) == O_RDWR);
    R(fcntl(fd, F_SETFL, O_NONBLOCK));
    R(take(fd, 5, 0));
    R(ioctl(fd, FIONBIO, &off));
    say("nonblocking %d", (fcntl(fd, F_GETFL) & O_NONBLOCK) != 0);
    when_asleep('w', 5, 0);
    R(take(fd, 5, 0));
    R(ioctl(fd, FIONBIO, &on));
    say("nonblocking %d", (fcntl(fd, F_GETFL) & O_NONBLOCK) != 0);
    R(take(fd, 5, 0));
    R(fcntl(fd, F_SETFL, 0));
    R(fcntl(fd, F_GETFD));
    R(fcntl(fd, F_SETFD, FD_CLOEXEC));
    R(fcntl(fd, F_GETFD));
    R(ioctl(fd, FIONCLEX));
    R(fcntl(fd, F_GETFD));
    R(ioctl(fd, FIOCLEX));
    R(fcntl(fd, F_GETFD));
    R(fcntl(fd, F_GETLK, (void *)8));
    R(fcntl(fd, 9999));
    R(fcntl(-1, F_GETFL));
    R(fcntl(fd, F_GETPIPE_SZ));
    R(ftruncate(fd, 0));
    R(fsync(fd));
    R(lseek(fd, 0, SEEK_CUR));
    R(pread(fd, &on, 1, 0));
    R(pwrite(fd, &on, 1, 0));
    R(isatty(fd));
    R(mmap(NULL, 4096, PROT_READ, MAP_SHARED, fd, 0) == MAP_FAILED);
    R(posix_fallocate(fd, 0, 10));
}

/* A child, which shares the description, changes the flag. */
CASE(fcntl_nonblocking_by_a_child)
{
    int fd = fresh();
    pid_t child = fork();
    if (child == 0) {
        nonblocking(fd);
        _exit(0);
    }
    reap(child, "child");
    R(take(fd, 5, 0));
    say("flag %d", (fcntl(fd, F_GETFL) & O_NONBLOCK) != 0);
}
