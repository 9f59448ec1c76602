/* sendfile, splice, tee, vmsplice, copy_file_range: files, pipes and connections in every direction; messages of many pieces. */
#include "frame.h"
#include <aio.h>
#include <sys/sendfile.h>
#include <sys/syscall.h>

static char space[1 << 20];

static int file_with(const void *buf, size_t len)
{
    int fd = MUST(memfd_create("files", MFD_CLOEXEC));
    if (len && write(fd, buf, len) != (ssize_t)len)
        die("write");
    return fd;
}

CASE(sendfile_offsets)
{
    int fd = fresh(), file = file_with(to_send(5000), 5000);
    off_t at = 0;
    MUST(lseek(file, 0, SEEK_SET));
    long n = R(sendfile(fd, file, &at, 1000));
    sent(n);
    say("offset %ld, position %ld", (long)at, (long)lseek(file, 0, SEEK_CUR));
    MUST(lseek(file, 1000, SEEK_SET));
    sent(R(sendfile(fd, file, NULL, 1000)));
    say("position %ld", (long)lseek(file, 0, SEEK_CUR));
    at = 2000;
    sent(R(sendfile(fd, file, &at, 100000)));
    say("offset %ld", (long)at);
    R(sendfile(fd, file, &at, 100));
    R(sendfile(fd, file, NULL, 0));
    say("the peer reads %ld", tell('r', 5000));
    at = -1;
    R(sendfile(fd, file, &at, 10));
    R(sendfile(fd, -1, NULL, 10));
    R(sendfile(-1, file, NULL, 10));
    R(sendfile(fd, file, (off_t *)8, 10));
    R(sendfile(fd, fd, NULL, 10));
    R(put(fd, 5, 0));
    say("the peer reads %ld", tell('r', 5));
}

CASE(sendfile_large)
{
    int fd = fresh(), file = file_with(to_send(1 << 20), 1 << 20);
    off_t at = 0;
    when_asleep('r', 1 << 20, 0);
    while (at < 1 << 20)
        if (MUST(sendfile(fd, file, &at, (1 << 20) - at)) == 0)
            break;
    sent(at);
    say("sent %ld", (long)at);
    R(put(fd, 1, 0));
    say("the peer reads %ld", tell('r', 1));
}

CASE(sendfile_full_nonblocking)
{
    int fd = fresh(), file = file_with(space, 1 << 20);
    off_t at = 0;
    nonblocking(fd);
    fill_up(fd);
    R(sendfile(fd, file, &at, 1 << 20));
    say("offset %ld", (long)at);
}

/* From a connection into a file and a pipe, from a pipe into a connection. */
CASE(sendfile_from_a_connection)
{
    int fd = fresh(), file = file_with("", 0), ends[2];
    MUST(pipe(ends));
    tell('w', 10);
    R(sendfile(file, fd, NULL, 10));
    took(space, MUST(read(ends[0], space, R(sendfile(ends[1], fd, NULL, 4)))));
    R(take(fd, 10, 0));
    int pipe_in[2];
    MUST(pipe(pipe_in));
    (void)!write(pipe_in[1], "abc", 3);
    R(sendfile(fd, pipe_in[0], NULL, 3));
}

CASE(splice_to_a_pipe)
{
    int fd = fresh(), ends[2], total = 0;
    MUST(pipe(ends));
    tell('w', 50);
    R(splice(fd, NULL, ends[1], NULL, 30, 0));
    R(splice(fd, NULL, ends[1], NULL, 100, SPLICE_F_MOVE | SPLICE_F_MORE));
    took(space, MUST(read(ends[0], space, 100)));
    when_asleep('w', 20, 0);
    R(splice(fd, NULL, ends[1], NULL, 100, 0));
    took(space, MUST(read(ends[0], space, 100)));
    tell('w', 3000);
    while (total < 3000) {
        int n = MUST(splice(fd, NULL, ends[1], NULL, 3000, 0));
        took(space, MUST(read(ends[0], space, n)));
        total += n;
    }
    say("spliced %d", total);
    off_t at = 0;
    R(splice(fd, &at, ends[1], NULL, 10, 0));
    R(splice(fd, NULL, ends[1], &at, 10, 0));
    R(splice(fd, NULL, ends[1], NULL, 0, 0));
    R(splice(fd, NULL, ends[1], NULL, 10, 0x100));
    R(splice(fd, NULL, fd, NULL, 10, 0));
    tell('s', SHUT_WR);
    R(splice(fd, NULL, ends[1], NULL, 10, 0));
}

CASE(splice_nonblocking)
{
    int fd = fresh(), ends[2];
    MUST(pipe(ends));
    nonblocking(fd);
    R(splice(fd, NULL, ends[1], NULL, 100, 0));
    tell('l', 0);
    R(splice(fd, NULL, ends[1], NULL, 100, 0));
    R(splice(fd, NULL, ends[1], NULL, 100, 0));
}

CASE(splice_from_a_pipe)
{
    int fd = fresh(), ends[2];
    MUST(pipe(ends));
    (void)!write(ends[1], to_send(60), 60);
    sent(R(splice(ends[0], NULL, fd, NULL, 20, 0)));
    sent(R(splice(ends[0], NULL, fd, NULL, 100, SPLICE_F_MORE)));
    say("the peer reads %ld", tell('r', 60));
    R(splice(ends[0], NULL, fd, NULL, 10, SPLICE_F_NONBLOCK));
    off_t at = 0;
    (void)!write(ends[1], to_send(10), 10);
    R(splice(ends[0], NULL, fd, &at, 10, 0));
    sent(R(splice(ends[0], NULL, fd, NULL, 10, 0)));
    say("the peer reads %ld", tell('r', 10));
    on(SIGPIPE, count_hit, 0);
    R(shutdown(fd, SHUT_WR));
    (void)!write(ends[1], "x", 1);
    outcome("after the end", splice(ends[0], NULL, fd, NULL, 1, 0));
    close(ends[1]);
    (void)!read(ends[0], space, 1);
    R(splice(ends[0], NULL, fd, NULL, 1, 0));
}

/* What a proxy does: from one connection through a pipe to another. */
CASE(splice_between_connections)
{
    int a = fresh_slot(0), b = fresh_slot(1), ends[2], total = 0;
    MUST(pipe(ends));
    tell('w', 40000);
    slot = 1;
    when_asleep('r', 0, 0);
    while (total < 40000) {
        int n = MUST(splice(a, NULL, ends[1], NULL, 16384, 0));
        for (int out = 0; out < n;)
            out += MUST(splice(ends[0], NULL, b, NULL, n - out, 0));
        total += n;
    }
    from_peer[0] += total;
    until_delivered(b);
    say("through %d, unread there %ld", total, tell('u', 0));
}

CASE(splice_file_and_tee)
{
    int fd = fresh(), file = file_with(to_send(100), 100), ends[2], other[2];
    off64_t at = 0;
    MUST(pipe(ends));
    MUST(pipe(other));
    R(splice(file, &at, fd, NULL, 10, 0));
    R(splice(file, &at, ends[1], NULL, 100, 0));
    R(tee(ends[0], other[1], 100, 0));
    R(tee(fd, ends[1], 100, 0));
    R(tee(ends[0], fd, 100, 0));
    sent(R(splice(ends[0], NULL, fd, NULL, 100, 0)));
    say("the peer reads %ld", tell('r', 100));
    struct iovec v = { to_send(30), 30 };
    R(vmsplice(fd, &v, 1, 0));
    R(vmsplice(ends[1], &v, 1, 0));
    sent(R(splice(ends[0], NULL, fd, NULL, 30, 0)));
    say("the peer reads %ld", tell('r', 30));
    R(copy_file_range(file, &at, fd, NULL, 10, 0));
    R(copy_file_range(fd, NULL, file, &at, 10, 0));
}

static struct iovec many[1100];

CASE(pieces_limits)
{
    int fd = fresh();
    struct msghdr m = { .msg_iov = many };
    char *text = to_send(1024);
    volatile int count = 1024;
    for (int i = 0; i < 1100; i++)
        many[i] = (struct iovec){ text + i % 1024, 1 };
    sent(R(writev(fd, many, count)));
    say("the peer reads %ld", tell('r', 1024));
    count = 1025;
    R(writev(fd, many, count));
    R(readv(fd, many, count));
    R(pwritev2(fd, many, count, -1, 0));
    R(preadv2(fd, many, count, -1, 0));
    m.msg_iovlen = 1025;
    R(sendmsg(fd, &m, 0));
    R(recvmsg(fd, &m, MSG_DONTWAIT));
    count = -1;
    R(writev(fd, many, count));
    R(readv(fd, many, count));
    tell('w', 1024);
    for (int i = 0; i < 1024; i++)
        many[i] = (struct iovec){ space + i, 1 };
    count = 1024;
    long n = R(readv(fd, many, count));
    took(space, n);
    many[1].iov_len = -1;
    R(readv(fd, many, 2));
    R(writev(fd, many, 2));
    m.msg_iovlen = 2;
    R(sendmsg(fd, &m, 0));
    R(recvmsg(fd, &m, MSG_DONTWAIT));
    struct iovec *volatile nowhere = NULL;
    R(writev(fd, nowhere, 2));
    R(readv(fd, nowhere, 2));
    R(writev(fd, nowhere, 0));
    R(sendmsg(fd, (struct msghdr *volatile)NULL, 0));
    R(recvmsg(fd, (struct msghdr *)8, MSG_DONTWAIT));
}

/* Programs ask in this way what flags there are. */
CASE(pieces_flags)
{
    int fd = fresh();
    struct iovec in = { space, 10 }, out = { to_send(90), 10 };
    int all = 0;
    tell('w', 90);
    R(preadv2(fd, &in, 1, -1, 0x4000));
    R(pwritev2(fd, &out, 1, -1, 0x40000000));
    R(syscall(SYS_preadv2, fd, &in, 1L, -1L, -1L, 0x4000L));
    /* Some of them only later kernels take for sockets, and some none. */
    for (int flag = 1; flag <= 0x100; flag *= 2) {
        say("flag %d", flag);
        int n = R(pwritev2(fd, &out, 1, -1, flag));
        sent(n);
        if (n > 0)
            all += n, out.iov_base = (char *)out.iov_base + n;
        took(space, R(preadv2(fd, &in, 1, -1, flag)));
    }
    R(preadv2(fd, &in, 1, -1, RWF_NOWAIT));
    say("the peer reads %ld", tell('r', all));
}

/* RWF_NOSIGNAL, where the kernel knows it. */
CASE(pieces_nosignal)
{
    int fd = fresh();
    struct iovec out = { to_send(10), 10 };
    shutdown(fd, SHUT_WR);
    on(SIGPIPE, count_hit, 0);
    R(pwritev2(fd, &out, 1, -1, 0x100));
    say("signals %d", (int)hits);
    R(pwritev2(fd, &out, 1, -1, 0));
    say("signals %d", (int)hits);
}

/* Holes, empty pieces, a bad piece behind good ones. */
CASE(pieces_mixed)
{
    int fd = fresh();
    char *text = to_send(30);
    struct iovec v[4] = { { NULL, 0 }, { text, 10 }, { (void *)8, 0 }, { text + 10, 20 } };
    sent(R(writev(fd, v, 4)));
    say("the peer reads %ld", tell('r', 30));
    tell('w', 30);
    struct iovec r[4] = { { NULL, 0 }, { space, 10 }, { (void *)8, 0 }, { space + 10, 100 } };
    took(space, R(readv(fd, r, 4)));
    tell('w', 5);
    struct iovec first_bad[2] = { { (void *)8, 10 }, { space, 10 } };
    R(readv(fd, first_bad, 2));
    R(writev(fd, first_bad, 2));
    R(take(fd, 10, 0));
}

CASE(messages_many)
{
    int fd = fresh();
    struct iovec v[4];
    struct mmsghdr mm[4];
    char *text = to_send(100);
    memset(mm, 0, sizeof mm);
    for (int i = 0; i < 4; i++) {
        v[i] = (struct iovec){ text + i * 10, 10 };
        mm[i].msg_hdr.msg_iov = &v[i];
        mm[i].msg_hdr.msg_iovlen = 1;
    }
    R(sendmmsg(fd, mm, 4, 0));
    sent(40);
    say("lengths %u %u %u %u", mm[0].msg_len, mm[1].msg_len, mm[2].msg_len, mm[3].msg_len);
    R(sendmmsg(fd, mm, 0, 0));
    R(sendmmsg(fd, NULL, 0, 0));
    say("the peer reads %ld", tell('r', 40));
    for (int i = 0; i < 4; i++)
        v[i] = (struct iovec){ space + i * 10, 10 };
    tell('w', 25);
    R(recvmmsg(fd, mm, 4, MSG_DONTWAIT, NULL));
    took(space, 25);
    say("lengths %u %u %u", mm[0].msg_len, mm[1].msg_len, mm[2].msg_len);
    R(recvmmsg(fd, mm, 4, MSG_DONTWAIT, NULL));
    tell('w', 15);
    R(recvmmsg(fd, mm, 4, MSG_WAITFORONE, NULL));
    took(space, 15);
    tell('w', 10);
    when_asleep('w', 10, 0);
    R(recvmmsg(fd, mm, 2, 0, NULL));
    took(space, 20);
    struct timespec t = { 0, -5 };
    R(recvmmsg(fd, mm, 2, MSG_DONTWAIT, &t));
    t = (struct timespec){ 1000, 0 };
    tell('w', 30);
    R(recvmmsg(fd, mm, 3, 0, &t));
    took(space, 30);
    say("of the time %s is left", t.tv_sec > 500 && t.tv_sec < 1000 && t.tv_nsec >= 0 ? "less" : "all");
    R(recvmmsg(fd, (struct mmsghdr *)8, 2, MSG_DONTWAIT, NULL));
    R(recvmmsg(fd, mm, 2, MSG_DONTWAIT, (struct timespec *)8));
    mm[1].msg_hdr.msg_iov = (struct iovec *)8;
    tell('w', 15);
    R(recvmmsg(fd, mm, 2, MSG_DONTWAIT, NULL));
    took(space, 10);
    R(take(fd, 10, 0));
}

CASE(messages_control)
{
    int fd = fresh();
    char room[100];
    struct sockaddr_storage ss;
    struct iovec v = { space, 10 };
    struct msghdr m = { .msg_name = &ss, .msg_namelen = sizeof ss, .msg_iov = &v, .msg_iovlen = 1, .msg_control = room,
                        .msg_controllen = sizeof room, .msg_flags = 0x77 };
    tell('w', 6);
    took(space, R(recvmsg(fd, &m, 0)));
    say("name %u, control %zu, flags %x", m.msg_namelen, m.msg_controllen, m.msg_flags);
    struct cmsghdr *h = (struct cmsghdr *)room;
    *h = (struct cmsghdr){ .cmsg_len = CMSG_LEN(4), .cmsg_level = SOL_SOCKET, .cmsg_type = SCM_RIGHTS };
    memcpy(CMSG_DATA(h), &fd, sizeof fd);
    m = (struct msghdr){ .msg_iov = &v, .msg_iovlen = 1, .msg_control = room, .msg_controllen = CMSG_SPACE(4) };
    v = (struct iovec){ to_send(4), 4 };
    R(sendmsg(fd, &m, 0));
    h->cmsg_type = 12345;
    R(sendmsg(fd, &m, 0));
    h->cmsg_len = 3;
    R(sendmsg(fd, &m, 0));
    m.msg_controllen = 0;
    m.msg_namelen = 500;
    m.msg_name = &ss;
    R(sendmsg(fd, &m, 0));
}

static long waited_for(struct aiocb *cb)
{
    const struct aiocb *list[1] = { cb };
    struct timespec limit = { 10, 0 };
    while (aio_error(cb) == EINPROGRESS)
        aio_suspend(list, 1, &limit);
    say("its error is %s", ename(aio_error(cb)));
    return aio_return(cb);
}

CASE(asynchronous_input_and_output)
{
    int fd = fresh();
    char in[3][20];
    struct aiocb out = { .aio_fildes = fd, .aio_buf = to_send(700), .aio_nbytes = 700 };
    struct aiocb cb[3];
    R(aio_write(&out));
    sent(waited_for(&out));
    say("the peer reads %ld", tell('r', 700));
    cb[0] = (struct aiocb){ .aio_fildes = fd, .aio_buf = in[0], .aio_nbytes = 12 };
    R(aio_read(&cb[0]));
    tell('w', 12);
    took(in[0], waited_for(&cb[0]));
    cb[1] = (struct aiocb){ .aio_fildes = fd, .aio_buf = in[1], .aio_nbytes = 10, .aio_lio_opcode = LIO_READ };
    struct aiocb *reads[2] = { NULL, &cb[1] };
    tell('w', 10);
    R(lio_listio(LIO_WAIT, reads, 2, NULL));
    took(in[1], waited_for(&cb[1]));
    cb[2] = (struct aiocb){ .aio_fildes = fd, .aio_buf = to_send(5), .aio_nbytes = 5, .aio_lio_opcode = LIO_WRITE };
    struct aiocb *writes[1] = { &cb[2] };
    R(lio_listio(LIO_WAIT, writes, 1, NULL));
    sent(waited_for(&cb[2]));
    say("the peer reads %ld", tell('r', 5));
    R(put(fd, 20, 0));
    say("the peer reads %ld", tell('r', 20));
    tell('w', 20);
    R(take(fd, 20, 0));
}
