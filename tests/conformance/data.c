/* Data: would-block, time limits, counts, zero lengths, peeking, marks, headers. */
#include "frame.h"
#include <sys/stat.h>

CASE(data_would_block)
{
    int fd = fresh();
    say("recv dontwait %s", result(take(fd, 10, MSG_DONTWAIT)));
    nonblocking(fd);
    say("recv nonblocking %s", result(take(fd, 10, 0)));
    say("recv waitall nonblocking %s", result(take(fd, 10, MSG_WAITALL)));
    tell('w', 3);
    say("recv 10 of 3 %s", result(take(fd, 10, 0)));
    say("recv again %s", result(take(fd, 10, 0)));
    long total = fill_up(fd);
    say("filled %d then %s", total > 0, result(put(fd, 60000, 0)));
    struct pollfd p = { .fd = fd, .events = POLLOUT };
    say("poll out when full %d", poll(&p, 1, 0));
    say("the peer reads all %d", ask('r', total, 0).value == total);
    int ready = poll(&p, 1, 2000);
    say("poll out when drained %d %x", ready, p.revents);
    say("send %s", result(put(fd, 100, 0)));
    close(fd);
}

CASE(data_time_limits)
{
    int fd = fresh();
    struct timeval t = { 0, 60000 };
    MUST(setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &t, sizeof t));
    struct moment start = moment();
    say("recv %s", result(take(fd, 10, 0)));
    say("took its time %d", ms_since(start) >= 55);
    t.tv_sec = 5;
    MUST(setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &t, sizeof t));
    when_asleep('w', 5, 0);
    say("recv in time %s", result(take(fd, 10, 0)));
    t.tv_sec = 0;
    MUST(setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &t, sizeof t));
    tell('w', 4);
    say("waitall gets what came %s", result(take(fd, 10, MSG_WAITALL)));
    MUST(setsockopt(fd, SOL_SOCKET, SO_SNDTIMEO, &t, sizeof t));
    int last = 0, full = 0;
    start = moment();
    while ((last = put(fd, 1 << 20, 0)) > 0)
        full += last;
    say("send with a limit %d %s", full > 0, result(last));
    say("took its time %d", ms_since(start) >= 55);
    say("the peer reads all %d", ask('r', full, 0).value == full);
    close(fd);
}

CASE(data_counts)
{
    int fd = fresh(), n = -1;
    MUST(ioctl(fd, FIONREAD, &n));
    say("FIONREAD %d", n);
    tell('w', 100);
    MUST(ioctl(fd, FIONREAD, &n));
    say("FIONREAD %d", n);
    say("recv %s", result(take(fd, 30, 0)));
    MUST(ioctl(fd, FIONREAD, &n));
    say("FIONREAD %d", n);
    say("peek %s", result(take(fd, 1000, MSG_PEEK)));
    say("peek dontwait %s", result(take(fd, 10, MSG_PEEK | MSG_DONTWAIT)));
    say("trunc 20 %s", result(take(fd, 20, MSG_TRUNC)));
    MUST(ioctl(fd, FIONREAD, &n));
    say("FIONREAD %d", n);
    say("recv %s", result(take(fd, 1000, 0)));
    MUST(ioctl(fd, FIONREAD, &n));
    say("FIONREAD %d", n);
    put(fd, 50, 0);
    say("the peer reads %ld", ask('r', 50, 0).value);
    until_acknowledged(fd);
    MUST(ioctl(fd, TIOCOUTQ, &n));
    say("TIOCOUTQ %d", n);
    close(fd);
}

CASE(data_nothing)
{
    int fd = fresh();
    char c;
    say("read 0 %s", result(read(fd, &c, 0)));
    say("recv 0 dontwait %s", result(recv(fd, &c, 0, MSG_DONTWAIT)));
    say("send 0 %s", result(send(fd, &c, 0, 0)));
    say("write 0 %s", result(write(fd, &c, 0)));
    static struct iovec none[2000];
    volatile int negative = -1;
    say("writev of nothing %s", result(writev(fd, none, 3)));
    say("writev no elements %s", result(writev(fd, none, 0)));
    say("readv of nothing %s", result(readv(fd, none, 3)));
    say("readv -1 elements %s", result(readv(fd, none, negative)));
    say("writev 2000 elements %s", result(writev(fd, none, 2000)));
    tell('w', 6);
    say("recv 0 with data %s", result(recv(fd, &c, 0, 0)));
    say("recv %s", result(take(fd, 10, 0)));
    put(fd, 1, 0);
    say("nothing reached the peer but the byte %ld", ask('r', 1, 0).value);
    close(fd);
}

CASE(data_waitall_and_peek)
{
    int fd = fresh();
    tell('w', 3);
    when_asleep('w', 7, 0);
    say("waitall %s", result(take(fd, 10, MSG_WAITALL)));
    tell('w', 5);
    say("peek 3 %s", result(take(fd, 3, MSG_PEEK)));
    say("peek 3 %s", result(take(fd, 3, MSG_PEEK)));
    when_asleep('w', 5, 0);
    say("peek waitall 10 %s", result(take(fd, 10, MSG_PEEK | MSG_WAITALL)));
    say("recv %s", result(take(fd, 10, 0)));
    int low = 50, n;
    socklen_t len = sizeof low;
    MUST(setsockopt(fd, SOL_SOCKET, SO_RCVLOWAT, &low, sizeof low));
    low = 0;
    MUST(getsockopt(fd, SOL_SOCKET, SO_RCVLOWAT, &low, &len));
    struct pollfd p = { .fd = fd, .events = POLLIN };
    tell('w', 30);
    n = poll(&p, 1, 50);
    say("RCVLOWAT %d: poll with 30 bytes %d", low, n);
    say("recv dontwait %s", result(take(fd, 10, MSG_DONTWAIT)));
    tell('w', 40);
    say("poll with 60 bytes %d", poll(&p, 1, 1000));
    say("recv %s", result(take(fd, 100, 0)));
    when_asleep('V', 20, 35);
    say("blocking recv waits for the mark %s", result(take(fd, 100, 0)));
    tell('w', 5);
    ask('s', SHUT_WR, 0);
    say("then the end %s", result(take(fd, 100, 0)));
    say("then the end %s", result(take(fd, 100, MSG_WAITALL)));
    close(fd);
}

CASE(data_headers)
{
    int fd = fresh();
    char a[4], b[4], control_space[64];
    struct sockaddr_storage from;
    struct iovec iov[2] = { { a, 4 }, { b, 4 } };
    struct msghdr m = { .msg_name = &from, .msg_namelen = sizeof from, .msg_iov = iov, .msg_iovlen = 2,
                        .msg_control = control_space, .msg_controllen = sizeof control_space };
    tell('w', 6);
    say("recvmsg %s", result(recvmsg(fd, &m, 0)));
    from_peer[0] += 6;
    say("namelen %u controllen %zu flags %x", m.msg_namelen, m.msg_controllen, m.msg_flags);
    tell('w', 2);
    socklen_t len = sizeof from;
    say("recvfrom %s", result(recvfrom(fd, a, 4, 0, (struct sockaddr *)&from, &len)));
    from_peer[0] += 2;
    say("namelen %u", len);
    struct sockaddr_storage to;
    socklen_t to_len = address(&to, case_port, 0);
    fill(a, 1, from_subject[0], 4);
    say("sendto with an address %s", result(sendto(fd, a, 4, 0, (struct sockaddr *)&to, to_len)));
    from_subject[0] += 4;
    say("the peer reads %ld", ask('r', 4, 0).value);
    say("connect again %s", result(connect(fd, (struct sockaddr *)&to, to_len)));
    int one = 1;
    say("errqueue %s", result(recv(fd, a, 4, MSG_ERRQUEUE)));
    say("reuseaddr %s", result(setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &one, sizeof one)));
    close(fd);
}

CASE(data_names_and_flags)
{
    int fd = fresh();
    socklen_t len;
    int v = 1;
    say("FIONBIO %s", result(ioctl(fd, FIONBIO, &v)));
    say("flag %d recv %s", (fcntl(fd, F_GETFL) & O_NONBLOCK) != 0, result(take(fd, 1, 0)));
    v = 0;
    say("FIONBIO %s", result(ioctl(fd, FIONBIO, &v)));
    say("flag %d", (fcntl(fd, F_GETFL) & O_NONBLOCK) != 0);
    len = sizeof v;
    MUST(getsockopt(fd, SOL_SOCKET, SO_ERROR, &v, &len));
    say("SO_ERROR %d", v);
    MUST(getsockopt(fd, SOL_SOCKET, SO_TYPE, &v, &len));
    say("SO_TYPE %d", v);
    struct stat st;
    MUST(fstat(fd, &st));
    say("a socket %d", S_ISSOCK(st.st_mode) != 0);
    say("lseek %s", result(lseek(fd, 0, SEEK_CUR)));
    char c;
    say("pread %s", result(pread(fd, &c, 1, 0)));
    int copy = dup(fd);
    nonblocking(copy);
    say("flag through a dup %d recv %s", (fcntl(fd, F_GETFL) & O_NONBLOCK) != 0, result(take(fd, 1, 0)));
    close(fd);
    say("recv closed %s", result(take(fd, 1, 0)));
    say("send closed %s", result(put(fd, 1, 0)));
    tell('w', 2);
    say("dup still reads %s", result(take(copy, 5, 0)));
    close(copy);
    fd = socket(AF_INET, SOCK_STREAM, 0);
    say("recv unconnected %s", result(recv(fd, &c, 1, 0)));
    say("send unconnected %s", result(send(fd, &c, 1, MSG_NOSIGNAL)));
    close(fd);
}

/* The mark by its own function, which must count what is unread in front of it. */
CASE(data_urgent_mark)
{
    int fd = fresh();
    char c = 0;
    R(sockatmark(fd));
    tell('w', 4);
    R(sockatmark(fd));
    tell('o', 0);
    struct pollfd p = { .fd = fd, .events = POLLPRI };
    R(poll(&p, 1, 1000));
    R(sockatmark(fd));
    R(take(fd, 3, 0));
    R(sockatmark(fd));
    R(take(fd, 100, 0));
    R(sockatmark(fd));
    R(recv(fd, &c, 1, MSG_OOB));
    R(sockatmark(fd));
    tell('w', 3);
    R(take(fd, 100, 0));
    R(sockatmark(fd));
    R(sockatmark(-1));
    R(sockatmark(0));
}

CASE(data_urgent)
{
    int fd = fresh(), mark = -1;
    char c = 0;
    tell('w', 4);
    tell('o', 0);
    struct pollfd p = { .fd = fd, .events = POLLIN | POLLPRI };
    int ready = poll(&p, 1, 1000);
    say("poll %d %x", ready, p.revents);
    say("recv oob %s", result(recv(fd, &c, 1, MSG_OOB)));
    say("it is %c", c);
    say("recv before the mark %s", result(take(fd, 100, 0)));
    MUST(ioctl(fd, SIOCATMARK, &mark));
    say("at mark %d", mark);
    tell('w', 3);
    say("recv after the mark %s", result(take(fd, 100, 0)));
    say("oob again %s", result(recv(fd, &c, 1, MSG_OOB)));
    close(fd);
}
