/* One pair of functions per way to move bytes: send some of the stream at c->tx, receive and check some at c->rx. */
#ifndef TRANSFER_OPS_H
#define TRANSFER_OPS_H
#include "common.h"
#include <sys/mman.h>
#include <sys/sendfile.h>

#define CHUNK (256 * 1024)

struct conn {
    int fd;
    uint64_t tx, rx, tx_total, rx_total, tx_seed, rx_seed, tx_random, rx_random;
    int file;               /* sendfile: the whole outgoing stream */
    int tx_pipe[2], rx_pipe[2];
    size_t in_pipe;
    int corked;
    unsigned char *tx_buf, *rx_buf;
};

typedef ssize_t (*move_fn)(struct conn *, size_t max);

static void load(struct conn *c, size_t n) { fill(c->tx_buf, c->tx_seed, c->tx, n); }

static ssize_t sent(struct conn *c, ssize_t n)
{
    if (n > 0)
        c->tx += n;
    return n;
}

static ssize_t got(struct conn *c, ssize_t n, size_t max)
{
    if (n > (ssize_t)max)
        die("a receive of at most %zu bytes returned %zd", max, n);
    if (n > 0) {
        check(c->rx_buf, c->rx_seed, c->rx, n, "receiver");
        c->rx += n;
    }
    return n;
}

static ssize_t tx_write(struct conn *c, size_t max) { load(c, max); return sent(c, write(c->fd, c->tx_buf, max)); }
static ssize_t rx_read(struct conn *c, size_t max) { return got(c, read(c->fd, c->rx_buf, max), max); }
static ssize_t tx_send(struct conn *c, size_t max) { load(c, max); return sent(c, send(c->fd, c->tx_buf, max, MSG_NOSIGNAL)); }
static ssize_t rx_recv(struct conn *c, size_t max) { return got(c, recv(c->fd, c->rx_buf, max, 0), max); }

static ssize_t rx_waitall(struct conn *c, size_t max)
{
    ssize_t n = got(c, recv(c->fd, c->rx_buf, max, MSG_WAITALL), max);
    if (n > 0 && (size_t)n < max && c->rx < c->rx_total)
        die("MSG_WAITALL of %zu returned %zd before the end of the stream", max, n);
    return n;
}

static ssize_t rx_peek(struct conn *c, size_t max)
{
    ssize_t n = recv(c->fd, c->rx_buf, max, MSG_PEEK);
    if (n <= 0)
        return n;
    check(c->rx_buf, c->rx_seed, c->rx, n, "peek");
    memset(c->rx_buf, 0, n);
    ssize_t m = recv(c->fd, c->rx_buf, max, 0);
    if (m < n)
        die("peek saw %zd bytes, the read after it %zd", n, m);
    return got(c, m, max);
}

/* The kernel itself wakes early when its window is nearly shut, so only data and progress are checked here. */
static ssize_t rx_lowat(struct conn *c, size_t max)
{
    int low = 1 + next_random(&c->rx_random) % (max < 16384 ? max : 16384);
    MUST(setsockopt(c->fd, SOL_SOCKET, SO_RCVLOWAT, &low, sizeof low));
    if (low % 2) {
        struct pollfd p = { .fd = c->fd, .events = POLLIN };
        while (poll(&p, 1, -1) < 0 && errno == EINTR)
            ;
    }
    return rx_recv(c, max);
}

static ssize_t tx_cork(struct conn *c, size_t max)
{
    if (next_random(&c->tx_random) % 4 == 0 || c->tx + max == c->tx_total) {
        c->corked = c->corked || c->tx + max == c->tx_total ? 0 : 1;
        MUST(setsockopt(c->fd, IPPROTO_TCP, TCP_CORK, &c->corked, sizeof c->corked));
    }
    return tx_send(c, max);
}

/* Lockstep waits for the other side after each chunk: a chunk left corked would cost the kernel's 200 ms. */
static void uncork(struct conn *c)
{
    if (c->corked) {
        c->corked = 0;
        MUST(setsockopt(c->fd, IPPROTO_TCP, TCP_CORK, &c->corked, sizeof c->corked));
    }
}

static ssize_t tx_sendfile(struct conn *c, size_t max)
{
    if (c->file < 0) {
        c->file = MUST(memfd_create("stream", MFD_CLOEXEC));
        for (uint64_t at = 0; at < c->tx_total; at += CHUNK) {
            size_t n = c->tx_total - at < CHUNK ? c->tx_total - at : CHUNK;
            fill(c->tx_buf, c->tx_seed, at, n);
            if (write(c->file, c->tx_buf, n) != (ssize_t)n)
                die("writing the file");
        }
        MUST(lseek(c->file, 0, SEEK_SET));
    }
    if (next_random(&c->tx_random) % 2) {
        off_t at = c->tx, before = at;
        ssize_t n = sendfile(c->fd, c->file, &at, max);
        if (n >= 0 && at != before + n)
            die("sendfile of %zd moved its offset by %lld", n, (long long)(at - before));
        return sent(c, n);
    }
    MUST(lseek(c->file, c->tx, SEEK_SET));
    ssize_t n = sendfile(c->fd, c->file, NULL, max);
    if (n >= 0 && lseek(c->file, 0, SEEK_CUR) != (off_t)(c->tx + n))
        die("sendfile without an offset left the file position wrong");
    return sent(c, n);
}

/* Cuts a buffer at random places, with an empty element among them. */
static int slices(struct iovec iov[4], unsigned char *buf, size_t len, uint64_t *random)
{
    size_t a = next_random(random) % (len + 1), b = a + next_random(random) % (len - a + 1);
    iov[0] = (struct iovec){ buf, a };
    iov[1] = (struct iovec){ NULL, 0 };
    iov[2] = (struct iovec){ buf + a, b - a };
    iov[3] = (struct iovec){ buf + b, len - b };
    return 4;
}

static ssize_t tx_writev(struct conn *c, size_t max)
{
    struct iovec iov[4];
    load(c, max);
    return sent(c, writev(c->fd, iov, slices(iov, c->tx_buf, max, &c->tx_random)));
}

static ssize_t rx_readv(struct conn *c, size_t max)
{
    struct iovec iov[4];
    return got(c, readv(c->fd, iov, slices(iov, c->rx_buf, max, &c->rx_random)), max);
}

static ssize_t tx_sendmsg(struct conn *c, size_t max)
{
    struct iovec iov[4];
    struct msghdr m = { .msg_iov = iov, .msg_iovlen = slices(iov, c->tx_buf, max, &c->tx_random) };
    load(c, max);
    return sent(c, sendmsg(c->fd, &m, MSG_NOSIGNAL));
}

static ssize_t rx_recvmsg(struct conn *c, size_t max)
{
    char control[64];
    struct sockaddr_storage from;
    struct iovec iov[4];
    struct msghdr m = { .msg_name = &from, .msg_namelen = sizeof from, .msg_control = control, .msg_controllen = sizeof control,
                        .msg_iov = iov, .msg_iovlen = slices(iov, c->rx_buf, max, &c->rx_random) };
    ssize_t n = recvmsg(c->fd, &m, 0);
    if (n >= 0 && (m.msg_namelen != 0 || m.msg_controllen != 0 || (m.msg_flags & ~MSG_EOR) != 0))
        die("recvmsg: namelen %u controllen %zu flags %x", m.msg_namelen, m.msg_controllen, m.msg_flags);
    return got(c, n, max);
}

static ssize_t tx_sendmmsg(struct conn *c, size_t max)
{
    struct iovec iov[4];
    struct mmsghdr v[4];
    memset(v, 0, sizeof v);
    slices(iov, c->tx_buf, max, &c->tx_random);
    for (int i = 0; i < 4; i++) {
        v[i].msg_hdr.msg_iov = &iov[i];
        v[i].msg_hdr.msg_iovlen = 1;
    }
    load(c, max);
    int k = sendmmsg(c->fd, v, 4, MSG_NOSIGNAL);
    if (k < 0)
        return -1;
    size_t n = 0;
    for (int i = 0; i < k; i++) {
        n += v[i].msg_len;
        /* Going on after a short message would leave a hole in the stream. */
        if (v[i].msg_len < iov[i].iov_len)
            for (int j = i + 1; j < k; j++)
                if (v[j].msg_len > 0)
                    die("sendmmsg sent message %d after a short message %d", j, i);
    }
    return sent(c, n);
}

static ssize_t rx_recvmmsg(struct conn *c, size_t max)
{
    struct iovec iov[4];
    struct mmsghdr v[4];
    memset(v, 0, sizeof v);
    size_t part = max / 4 ? max / 4 : 1;
    int k = max / 4 ? 4 : 1;
    for (int i = 0; i < k; i++) {
        iov[i] = (struct iovec){ c->rx_buf + i * part, part };
        v[i].msg_hdr.msg_iov = &iov[i];
        v[i].msg_hdr.msg_iovlen = 1;
    }
    k = recvmmsg(c->fd, v, k, MSG_WAITFORONE, NULL);
    if (k <= 0)
        return k;
    ssize_t total = 0;
    for (int i = 0; i < k; i++) {
        check(iov[i].iov_base, c->rx_seed, c->rx, v[i].msg_len, "recvmmsg");
        c->rx += v[i].msg_len;
        total += v[i].msg_len;
    }
    return total;
}

static ssize_t tx_splice(struct conn *c, size_t max)
{
    if (c->in_pipe == 0) {
        size_t n = max < 65536 ? max : 65536;
        load(c, n);
        c->in_pipe = MUST(write(c->tx_pipe[1], c->tx_buf, n));
    }
    ssize_t n = sent(c, splice(c->tx_pipe[0], NULL, c->fd, NULL, c->in_pipe, SPLICE_F_MOVE));
    if (n > 0)
        c->in_pipe -= n;
    return n;
}

static ssize_t rx_splice(struct conn *c, size_t max)
{
    ssize_t n = splice(c->fd, NULL, c->rx_pipe[1], NULL, max < 65536 ? max : 65536, SPLICE_F_MOVE);
    if (n <= 0)
        return n;
    for (ssize_t at = 0; at < n;)
        at += MUST(read(c->rx_pipe[0], c->rx_buf + at, n - at));
    return got(c, n, max);
}

static ssize_t wait_and(struct conn *c, int events, ssize_t n)
{
    if (n < 0 && errno == EAGAIN) {
        struct pollfd p = { .fd = c->fd, .events = events };
        while (poll(&p, 1, -1) < 0 && errno == EINTR)
            ;
        errno = EINTR;
    }
    return n;
}

static ssize_t tx_dontwait(struct conn *c, size_t max)
{
    load(c, max);
    return wait_and(c, POLLOUT, sent(c, send(c->fd, c->tx_buf, max, MSG_DONTWAIT | MSG_NOSIGNAL)));
}

static ssize_t rx_dontwait(struct conn *c, size_t max)
{
    return wait_and(c, POLLIN, got(c, recv(c->fd, c->rx_buf, max, MSG_DONTWAIT), max));
}

static const struct op { const char *name; move_fn tx, rx; } ops[] = {
    { "write", tx_write, rx_read },       { "send", tx_send, rx_recv },          { "waitall", tx_send, rx_waitall },
    { "peek", tx_send, rx_peek },         { "lowat", tx_send, rx_lowat },        { "cork", tx_cork, rx_recv },
    { "sendfile", tx_sendfile, rx_recv }, { "vec", tx_writev, rx_readv },        { "msg", tx_sendmsg, rx_recvmsg },
    { "mmsg", tx_sendmmsg, rx_recvmmsg }, { "splice", tx_splice, rx_splice },    { "dontwait", tx_dontwait, rx_dontwait },
};
#endif
