/* uring peer PORT | uring use PORT OP | uring plain PORT
 * A program with a ring and three connections to a peer, all of them upgraded. On one of them, the
 * subject, a ring does OP; the bystander and the one that comes later are used by plain calls, before
 * and afterwards. Both ends check every byte. It says the local ports of the three, and what became
 * of them is looked at from outside while it waits for a line on stdin.
 * The peer says "end PORT BYTES" of a connection that ends well. */
#include "uring.h"
#include <pthread.h>
#include <sys/epoll.h>

enum { MOST = 40000 };

struct request {
    uint32_t op, len, seed;
};

static void all_out(int fd, const void *buf, size_t n)
{
    for (size_t at = 0; at < n;) {
        ssize_t r = write(fd, (const char *)buf + at, n - at);
        if (r <= 0)
            die("write");
        at += r;
    }
}

/* False at the end. */
static int all_in(int fd, void *buf, size_t n)
{
    for (size_t at = 0; at < n;) {
        ssize_t r = read(fd, (char *)buf + at, n - at);
        if (r < 0)
            die("read");
        if (r == 0) {
            if (at > 0)
                die("the end within a message, %zu of %zu", at, n);
            return 0;
        }
        at += r;
    }
    return 1;
}

/* Takes what is sent, and sends what is asked for, until the end; then goodbye. */
static void *serve(void *arg)
{
    int fd = (intptr_t)arg;
    static __thread char buf[MOST];
    struct request q;
    int one = 1;
    MUST(setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one));
    struct sockaddr_in a;
    socklen_t n = sizeof a;
    unsigned long bytes = 0;
    MUST(getpeername(fd, (void *)&a, &n));
    while (all_in(fd, &q, sizeof q)) {
        bytes += sizeof q;
        if (q.len > MOST)
            die("a length of %u", q.len);
        if (q.op == 'S') {
            if (!all_in(fd, buf, q.len))
                die("the end behind a head");
            check(buf, q.seed, 0, q.len, "peer");
            bytes += q.len;
        } else if (q.op == 'G') {
            fill(buf, q.seed, 0, q.len);
            all_out(fd, buf, q.len);
        } else
            die("an operation of %u", q.op);
    }
    /* Half closed, perhaps. */
    if (send(fd, "bye", 3, MSG_NOSIGNAL) != 3 && errno != EPIPE && errno != ECONNRESET)
        die("send");
    MUST(close(fd));
    printf("end %d %lu\n", ntohs(a.sin_port), bytes);
    fflush(stdout);
    return NULL;
}

static struct sockaddr_in home;

static int listener(void)
{
    int one = 1, l = MUST(socket(AF_INET, SOCK_STREAM, 0));
    MUST(setsockopt(l, SOL_SOCKET, SO_REUSEADDR, &one, sizeof one));
    MUST(bind(l, (void *)&home, sizeof home));
    MUST(listen(l, 16));
    return l;
}

static int caller(void)
{
    int fd = MUST(socket(AF_INET, SOCK_STREAM, 0));
    int one = 1;
    MUST(connect(fd, (void *)&home, sizeof home));
    MUST(setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one));
    return fd;
}

static struct ring ring;
static const char *op;
static char buf[MOST], other[MOST];
static uint64_t seed = 1;
/* Bytes that the peer has been sent on the subject. */
static unsigned long told;
static int subject;

static int is(const char *name) { return strcmp(op, name) == 0; }

/* Results of a ring's operations are partial where those of calls are. */
typedef int transfer(int fd, void *at, unsigned n);

static int by_write(int fd, void *at, unsigned n) { return write(fd, at, n); }
static int by_read(int fd, void *at, unsigned n) { return read(fd, at, n); }
static int ring_write(int fd, void *at, unsigned n) { return run(&ring, IORING_OP_WRITE, fd, at, n, -1); }
static int ring_read(int fd, void *at, unsigned n) { return run(&ring, IORING_OP_READ, fd, at, n, -1); }
static int ring_send(int fd, void *at, unsigned n) { return run(&ring, IORING_OP_SEND, fd, at, n, 0); }
static int ring_recv(int fd, void *at, unsigned n) { return run(&ring, IORING_OP_RECV, fd, at, n, 0); }

static int ring_writev(int fd, void *at, unsigned n)
{
    struct iovec v[2] = {{at, n / 2}, {(char *)at + n / 2, n - n / 2}};
    return run(&ring, IORING_OP_WRITEV, fd, v, 2, -1);
}

static int ring_readv(int fd, void *at, unsigned n)
{
    struct iovec v[2] = {{at, n / 2}, {(char *)at + n / 2, n - n / 2}};
    return run(&ring, IORING_OP_READV, fd, v, 2, -1);
}

static int ring_message(int op, int fd, void *at, unsigned n)
{
    struct iovec v = {at, n};
    struct msghdr m = {.msg_iov = &v, .msg_iovlen = 1};
    return run(&ring, op, fd, &m, 1, 0);
}

static int ring_sendmsg(int fd, void *at, unsigned n) { return ring_message(IORING_OP_SENDMSG, fd, at, n); }
static int ring_recvmsg(int fd, void *at, unsigned n) { return ring_message(IORING_OP_RECVMSG, fd, at, n); }

/* A second completion says that the memory may be used again. */
static int noticed(int r)
{
    if (last_flags & IORING_CQE_F_MORE) {
        completed(&ring);
        if (!(last_flags & IORING_CQE_F_NOTIF))
            die("no notice");
    }
    return r;
}

static int ring_send_zc(int fd, void *at, unsigned n) { return noticed(run(&ring, IORING_OP_SEND_ZC, fd, at, n, 0)); }
static int ring_sendmsg_zc(int fd, void *at, unsigned n) { return noticed(ring_message(IORING_OP_SENDMSG_ZC, fd, at, n)); }

/* Into buffers that the ring was given. Many shots end when all buffers are full. */
static int ring_shots(int fd, void *at, unsigned n)
{
    static char pool[4][512];
    unsigned got = 0;
    if (run(&ring, IORING_OP_PROVIDE_BUFFERS, 4, pool, 512, 0) < 0)
        die("buffers");
    struct io_uring_sqe *s = prepare(&ring, IORING_OP_RECV, fd, NULL, n < 512 ? n : 0, 0);
    s->flags = IOSQE_BUFFER_SELECT;
    s->ioprio = n >= sizeof pool ? IORING_RECV_MULTISHOT : 0;
    submit(&ring);
    do {
        int r = completed(&ring);
        if (r == -ENOBUFS && got > 0)
            break;
        if (r <= 0)
            die("a shot: %d", r);
        memcpy((char *)at + got, pool[last_flags >> IORING_CQE_BUFFER_SHIFT], r);
        got += r;
    } while (last_flags & IORING_CQE_F_MORE);
    if (n < sizeof pool)
        run(&ring, IORING_OP_REMOVE_BUFFERS, 4, NULL, 0, 0);
    return got;
}

/* By a place among registered files. */
static int fixed(int op, int place, void *at, unsigned n)
{
    prepare(&ring, op, place, at, n, 0)->flags = IOSQE_FIXED_FILE;
    submit(&ring);
    return completed(&ring);
}

static int fixed_send(int fd, void *at, unsigned n) { (void)fd; return fixed(IORING_OP_SEND, 1, at, n); }
static int fixed_recv(int fd, void *at, unsigned n) { (void)fd; return fixed(IORING_OP_RECV, 1, at, n); }

static int pipes[2];

static int ring_splice(int in, int out, unsigned n)
{
    struct io_uring_sqe *s = prepare(&ring, IORING_OP_SPLICE, out, NULL, n, -1);
    s->splice_off_in = -1;
    s->splice_fd_in = in;
    submit(&ring);
    return completed(&ring);
}

static int splice_out(int fd, void *at, unsigned n)
{
    n = n > 4096 ? 4096 : n;
    all_out(pipes[1], at, n);
    for (unsigned done = 0; done < n;) {
        int r = ring_splice(pipes[0], fd, n - done);
        if (r <= 0)
            die("splice out: %d", r);
        done += r;
    }
    return n;
}

static int splice_in(int fd, void *at, unsigned n)
{
    int r = ring_splice(fd, pipes[1], n > 4096 ? 4096 : n);
    if (r > 0 && !all_in(pipes[0], at, r))
        die("the pipe");
    return r;
}

/* The ring waits, a plain call reads. */
static int polled(int fd, void *at, unsigned n)
{
    prepare(&ring, IORING_OP_POLL_ADD, fd, NULL, 0, 0)->poll32_events = POLLIN;
    submit(&ring);
    int r = completed(&ring);
    if (!(r & POLLIN))
        die("poll: %d", r);
    return read(fd, at, n);
}

static int set;

/* A set that holds the subject, watched by a ring. */
static int set_polled(int fd, void *at, unsigned n)
{
    struct epoll_event e;
    prepare(&ring, IORING_OP_POLL_ADD, set, NULL, 0, 0)->poll32_events = POLLIN;
    submit(&ring);
    if (completed(&ring) != POLLIN)
        die("poll of a set");
    if (epoll_wait(set, &e, 1, 60000) != 1 || e.data.fd != fd)
        die("epoll_wait behind a poll");
    return read(fd, at, n);
}

static int set_waited(int fd, void *at, unsigned n)
{
    struct epoll_event e = {0};
    int r = run(&ring, OP_EPOLL_WAIT, set, &e, 1, 0);
    if (r != 1 || e.data.fd != fd)
        die("epoll_wait by a ring: %d", r);
    return read(fd, at, n);
}

/* Sets that the ring changes. The results are those of epoll_ctl. */
static int in_set(int op, int fd, uint32_t events)
{
    struct epoll_event e = {.events = events, .data.fd = fd};
    return run(&ring, IORING_OP_EPOLL_CTL, set, &e, op, fd);
}

static int controlled(int fd, void *at, unsigned n)
{
    static int turn;
    struct epoll_event e;
    int first = in_set(EPOLL_CTL_ADD, fd, EPOLLIN), again = in_set(EPOLL_CTL_ADD, fd, EPOLLOUT);
    if (first != 0 || again != -EEXIST)
        die("added: %d, %d", first, again);
    if (epoll_wait(set, &e, 1, 60000) != 1 || e.data.fd != fd || !(e.events & EPOLLIN))
        die("no event");
    if ((first = in_set(EPOLL_CTL_MOD, fd, EPOLLOUT)) != 0)
        die("changed: %d", first);
    if (epoll_wait(set, &e, 1, 60000) != 1 || e.events != EPOLLOUT)
        die("another event: %x", e.events);
    /* A plain call knows what the ring has done, and the other way round. */
    if (turn++ % 2)
        MUST(epoll_ctl(set, EPOLL_CTL_DEL, fd, NULL));
    else if ((first = in_set(EPOLL_CTL_DEL, fd, 0)) != 0)
        die("removed: %d", first);
    first = in_set(EPOLL_CTL_DEL, fd, 0), again = in_set(EPOLL_CTL_MOD, fd, EPOLLIN);
    if (first != -ENOENT || again != -ENOENT)
        die("not there: %d, %d", first, again);
    return read(fd, at, n);
}

/* Two threads, each with a place of its own in the ring's queue, and a set of its own. */
static pthread_mutex_t queue = PTHREAD_MUTEX_INITIALIZER;

static void *changes(void *arg)
{
    int mine = MUST(epoll_create1(0));
    struct epoll_event e = {.events = EPOLLIN, .data.fd = subject};
    (void)arg;
    for (int i = 0; i < 2000; i++) {
        pthread_mutex_lock(&queue);
        struct io_uring_sqe *s = prepare(&ring, IORING_OP_EPOLL_CTL, mine, &e, i % 2 ? EPOLL_CTL_DEL : EPOLL_CTL_ADD, subject);
        s->user_data = i + 1;
        ring.waiting = 0;
        pthread_mutex_unlock(&queue);
        /* Whoever comes first may take both. */
        if (enter(&ring, 1, 0) < 0)
            die("enter");
        pthread_mutex_lock(&queue);
        while (*ring.cq_head != __atomic_load_n(ring.cq_tail, __ATOMIC_ACQUIRE)) {
            int r = completed(&ring);
            if (r != 0)
                die("change %d: %d", (int)last_data, r);
        }
        pthread_mutex_unlock(&queue);
        /* The other thread may submit ours, behind what came before. */
    }
    return NULL;
}

/* The kernel has to do it, later: the connection is on TCP, and the set still tells of it. */
static int linked(int fd, void *at, unsigned n)
{
    struct epoll_event e = {.events = EPOLLIN, .data.fd = fd};
    prepare(&ring, IORING_OP_NOP, -1, NULL, 0, 0)->flags = IOSQE_IO_LINK;
    prepare(&ring, IORING_OP_EPOLL_CTL, set, &e, EPOLL_CTL_ADD, fd);
    submit(&ring);
    int first = completed(&ring), second = completed(&ring);
    if (first != 0 || second != 0)
        die("linked: %d, %d", first, second);
    if (epoll_wait(set, &e, 1, 60000) != 1 || e.data.fd != fd)
        die("no event");
    MUST(epoll_ctl(set, EPOLL_CTL_DEL, fd, NULL));
    return read(fd, at, n);
}

/* The head by one operation and the rest by the next one, which waits for it. */
static int linked_sends(int fd, void *at, unsigned n)
{
    if (n < 2)
        return ring_send(fd, at, n);
    struct io_uring_sqe *s = prepare(&ring, IORING_OP_SEND, fd, at, n / 2, 0);
    s->flags = IOSQE_IO_LINK;
    s->msg_flags = MSG_WAITALL;
    prepare(&ring, IORING_OP_SEND, fd, (char *)at + n / 2, n - n / 2, 0)->msg_flags = MSG_WAITALL;
    submit(&ring);
    int first = completed(&ring), second = completed(&ring);
    if (first + second != (int)n)
        die("linked sends: %d, %d", first, second);
    return n;
}

/* Under another number. */
static int copied_send(int fd, void *at, unsigned n)
{
    int copy = MUST(dup(fd)), r = ring_send(copy, at, n);
    MUST(close(copy));
    return r;
}

/* The ring of the parent, entered by a child, which then has done it all. */
static int child_recv(int fd, void *at, unsigned n)
{
    char *common = mmap(NULL, n, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    fflush(NULL);
    pid_t child = MUST(fork());
    if (child == 0) {
        int r = ring_recv(fd, common, n > 200 ? 200 : n);
        _exit(r <= 0 ? 255 : r);
    }
    int status;
    MUST(waitpid(child, &status, 0));
    int r = WEXITSTATUS(status);
    if (!WIFEXITED(status) || r == 255)
        die("the child ended with %x", status);
    memcpy(at, common, r);
    munmap(common, n);
    return r;
}

/* Sent to ourselves by the ring, in a message. */
static int passed_read(int fd, void *at, unsigned n)
{
    int pair[2];
    char byte = 0, control[CMSG_SPACE(sizeof(int))] = {0};
    struct iovec v = {&byte, 1};
    struct msghdr m = {.msg_iov = &v, .msg_iovlen = 1, .msg_control = control, .msg_controllen = sizeof control};
    struct cmsghdr *c = CMSG_FIRSTHDR(&m);
    c->cmsg_level = SOL_SOCKET;
    c->cmsg_type = SCM_RIGHTS;
    c->cmsg_len = CMSG_LEN(sizeof(int));
    memcpy(CMSG_DATA(c), &fd, sizeof fd);
    MUST(socketpair(AF_UNIX, SOCK_STREAM, 0, pair));
    if (run(&ring, IORING_OP_SENDMSG, pair[0], &m, 1, 0) != 1)
        die("passed");
    if (run(&ring, IORING_OP_RECVMSG, pair[1], &m, 1, 0) != 1)
        die("received");
    int came;
    memcpy(&came, CMSG_DATA(CMSG_FIRSTHDR(&m)), sizeof came);
    int r = read(came, at, n);
    close(came);
    close(pair[0]);
    close(pair[1]);
    return r;
}

static transfer *out = by_write, *in = by_read;

static void ask(int fd, transfer *out, uint32_t what, uint32_t len, uint32_t of)
{
    struct request q = {what, len, of};
    memcpy(buf, &q, sizeof q);
    if (what == 'S')
        fill(buf + sizeof q, of, 0, len);
    unsigned n = sizeof q + (what == 'S' ? len : 0);
    for (unsigned at = 0; at < n;) {
        int r = out(fd, buf + at, n - at);
        if (r <= 0)
            die("%s sends: %d", op, r);
        at += r;
    }
    if (fd == subject)
        told += n;
}

static void take(int fd, transfer *in, uint32_t len, uint32_t of)
{
    for (unsigned at = 0; at < len;) {
        int r = in(fd, other + at, len - at);
        if (r <= 0)
            die("%s receives: %d", op, r);
        at += r;
    }
    check(other, of, 0, len, op);
}

/* So many exchanges, of many lengths. The last one shows that the peer is content with all before. */
static void exchange(int fd, transfer *out, transfer *in, int rounds, unsigned most)
{
    for (int i = 0; i < rounds; i++) {
        unsigned n = 1 + next_random(&seed) % most, m = 1 + next_random(&seed) % most;
        uint32_t a = next_random(&seed), b = next_random(&seed);
        ask(fd, out, 'S', n, a);
        ask(fd, out, 'G', m, b);
        take(fd, in, m, b);
    }
}

static struct {
    const char *name;
    transfer *out, *in;
} const TRANSFERS[] = {
    {"readwrite", ring_write, ring_read},
    {"vectors", ring_writev, ring_readv},
    {"sendrecv", ring_send, ring_recv},
    {"messages", ring_sendmsg, ring_recvmsg},
    {"zerocopy", ring_send_zc, ring_shots},
    {"zeromsg", ring_sendmsg_zc, ring_recv},
    {"poll", by_write, polled},
    {"splice", splice_out, splice_in},
    {"setpoll", by_write, set_polled},
    {"setwait", by_write, set_waited},
    {"control", by_write, controlled},
    {"linkedctl", by_write, linked},
    {"linked", linked_sends, by_read},
    {"copy", copied_send, by_read},
    {"child", by_write, child_recv},
    {"passed", by_write, passed_read},
    {"fixed", fixed_send, fixed_recv},
    {"update", fixed_send, fixed_recv},
    {"updateop", fixed_send, fixed_recv},
    {"register2", fixed_send, fixed_recv},
};

static void get_ready(void)
{
    for (unsigned i = 0; i < sizeof TRANSFERS / sizeof *TRANSFERS; i++)
        if (is(TRANSFERS[i].name))
            out = TRANSFERS[i].out, in = TRANSFERS[i].in;
    MUST(pipe(pipes));
    set = MUST(epoll_create1(0));
    struct epoll_event e = {.events = EPOLLIN, .data.fd = subject};
    if (is("setpoll") || is("setwait"))
        MUST(epoll_ctl(set, EPOLL_CTL_ADD, subject, &e));
}

/* Just before the first operation. */
static void name_it(void)
{
    int files[2] = {pipes[0], subject}, none[2] = {-1, -1};
#ifdef LIBURING
    __u64 tags[2] = {0, 0};
    int r = 0;
    if (is("fixed"))
        r = io_uring_register_files(&library, files, 2);
    if (is("register2"))
        r = io_uring_register_files_tags(&library, files, tags, 2);
    if (is("update") || is("updateop"))
        r = io_uring_register_files(&library, none, 2);
    if (r == 0 && is("update") && io_uring_register_files_update(&library, 0, files, 2) != 2)
        die("an update");
    if (r != 0)
        die("registered: %d", r);
#else
    struct io_uring_rsrc_update up = {.data = (uintptr_t)files};
    struct io_uring_rsrc_register two = {.nr = 2, .data = (uintptr_t)files};
    if (is("fixed"))
        MUST(syscall(SYS_io_uring_register, ring.fd, IORING_REGISTER_FILES, files, 2));
    if (is("register2"))
        MUST(syscall(SYS_io_uring_register, ring.fd, IORING_REGISTER_FILES2, &two, sizeof two));
    if (is("update") || is("updateop"))
        MUST(syscall(SYS_io_uring_register, ring.fd, IORING_REGISTER_FILES, none, 2));
    if (is("update"))
        MUST(syscall(SYS_io_uring_register, ring.fd, IORING_REGISTER_FILES_UPDATE, &up, 2));
#endif
    if (is("updateop") && run(&ring, IORING_OP_FILES_UPDATE, -1, files, 2, 0) != 2)
        die("files");
}

static void expect_goodbye(transfer *in)
{
    for (int at = 0; at < 3;) {
        int r = in(subject, other + at, 3 - at);
        if (r <= 0)
            die("no goodbye: %d", r);
        at += r;
    }
    if (memcmp(other, "bye", 3) != 0 || in(subject, other, 1) != 0)
        die("another goodbye");
}

static void use_it(void)
{
    if (is("threads")) {
        pthread_t t[2];
        for (int i = 0; i < 2; i++)
            pthread_create(&t[i], NULL, changes, NULL);
        for (int i = 0; i < 2; i++)
            pthread_join(t[i], NULL);
        exchange(subject, by_write, by_read, 30, 5000);
    } else if (is("close")) {
        if (run(&ring, IORING_OP_CLOSE, subject, NULL, 0, 0) != 0)
            die("close");
        if (fcntl(subject, F_GETFD) != -1 || errno != EBADF)
            die("it is open");
        subject = -1;
    } else if (is("linkedclose")) {
        ask(subject, ring_send, 'S', 10, 5);
        fill(buf, 6, 0, sizeof buf);
        struct request q = {'S', 1000, 6};
        memcpy(buf, &q, sizeof q);
        fill(buf + sizeof q, 6, 0, 1000);
        struct io_uring_sqe *s = prepare(&ring, IORING_OP_SEND, subject, buf, sizeof q + 1000, 0);
        s->flags = IOSQE_IO_LINK;
        s->msg_flags = MSG_WAITALL;
        prepare(&ring, IORING_OP_CLOSE, subject, NULL, 0, 0);
        submit(&ring);
        if (completed(&ring) != (int)sizeof q + 1000 || completed(&ring) != 0)
            die("a send and a close");
        told += sizeof q + 1000;
        subject = -1;
    } else if (is("shutdown")) {
        if (run(&ring, IORING_OP_SHUTDOWN, subject, NULL, SHUT_WR, 0) != 0)
            die("shutdown");
        expect_goodbye(ring_recv);
    } else if (is("waiting")) {
        /* A receive waits in the kernel while plain sends go on, and gets what comes then. */
        for (int i = 0; i < 40; i++) {
            unsigned n = 1 + next_random(&seed) % 3000;
            uint32_t of = next_random(&seed);
            prepare(&ring, IORING_OP_RECV, subject, other, n, 0)->msg_flags = MSG_WAITALL;
            submit(&ring);
            ask(subject, by_write, 'G', n, of);
            int r = completed(&ring);
            if (r != (int)n)
                die("a receive that waited: %d of %u", r, n);
            check(other, of, 0, n, op);
        }
    } else if (is("accept")) {
        /* A connection that only the ring has: from ourselves, so both its ends are here. */
        struct sockaddr_in any = home;
        any.sin_port = 0;
        socklen_t n = sizeof any;
        int l = MUST(socket(AF_INET, SOCK_STREAM, 0));
        MUST(bind(l, (void *)&any, sizeof any));
        MUST(listen(l, 4));
        MUST(getsockname(l, (void *)&any, &n));
        int opened = run(&ring, IORING_OP_SOCKET, AF_INET, NULL, 0, SOCK_STREAM);
        struct io_uring_sqe *s = prepare(&ring, IORING_OP_ACCEPT, l, NULL, 0, 0);
        s->ioprio = IORING_ACCEPT_MULTISHOT;
        uint64_t accepts = s->user_data;
        prepare(&ring, IORING_OP_CONNECT, opened, &any, 0, sizeof any);
        submit(&ring);
        int accepted = -1;
        for (int i = 0; i < 2; i++) {
            int r = completed(&ring);
            if (r < 0)
                die("accept and connect: %d", r);
            if (last_data == accepts)
                accepted = r;
        }
        for (int i = 0; i < 60; i++) {
            fill(buf, i, 0, 700);
            all_out(opened, buf, 700);
            take(accepted, i % 2 ? ring_recv : by_read, 700, i);
        }
        MUST(close(accepted));
        MUST(close(opened));
        MUST(close(l));
    } else {
        /* What lies unread in memory when the ring first asks is not lost, nor are doorbells read. */
        ask(subject, by_write, 'G', 5000, 7);
        usleep(50000);
        name_it();
        take(subject, in, 5000, 7);
        exchange(subject, out, in, 60, is("child") ? 300 : 9000);
    }
    if (subject >= 0 && !is("shutdown"))
        exchange(subject, by_write, by_read, 60, 3000);
}

/* Rings that nobody could look at are refused as a sandbox does it; names for a ring are as unknown
 * as to an older kernel. */
static void refusals(void)
{
#ifdef LIBURING
    struct ring it;
    if (ring_try(&it, 8, IORING_SETUP_SQPOLL) == 0)
        printf("allowed\n");
    else
        printf("refused %s\n", strerror(errno));
#else
    struct ring r;
    unsigned flags[] = {IORING_SETUP_SQPOLL, SETUP_NO_MMAP, SETUP_NO_MMAP | SETUP_FD_ONLY};
    for (int i = 0; i < 3; i++)
        if (ring_try(&r, 8, flags[i]) == 0)
            printf("allowed %x\n", flags[i]);
        else
            printf("refused %x %s\n", flags[i], strerror(errno));
    struct io_uring_rsrc_update name = {.offset = -1, .data = ring.fd};
    int n = syscall(SYS_io_uring_register, ring.fd, IORING_REGISTER_RING_FDS, &name, 1);
    printf("name %s\n", n < 0 ? strerror(errno) : "given");
    /* One that is closed is gone, and may be made again. */
    for (int i = 0; i < 600; i++) {
        if (ring_try(&r, 8, i % 2 ? SETUP_NO_SQARRAY : 0) != 0 && (i % 2 == 0 || errno != EINVAL))
            die("ring %d", i);
        if (r.fd < 0)
            continue;
        if (run(&r, IORING_OP_NOP, -1, NULL, 0, 0) != 0)
            die("nop");
        int copy = MUST(dup(r.fd));
        ring_end(&r);
        MUST(close(copy));
    }
    unsigned left = 0;
    char line[400];
    FILE *maps = fopen("/proc/self/maps", "r");
    while (fgets(line, sizeof line, maps))
        left += strstr(line, "[io_uring]") != NULL;
    fclose(maps);
    printf("mapped %u\n", left);
#endif
}

int main(int argc, char **argv)
{
    if (argc < 3)
        die("uring peer PORT | uring use PORT OP");
    home = (struct sockaddr_in){.sin_family = AF_INET, .sin_port = htons(atoi(argv[2])), .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    signal(SIGPIPE, SIG_IGN);
    if (strcmp(argv[1], "peer") == 0) {
        int l = listener();
        for (;;) {
            int fd = MUST(accept(l, NULL, NULL));
            pthread_t t;
            pthread_create(&t, NULL, serve, (void *)(intptr_t)fd);
            pthread_detach(t);
        }
    }
    op = argc > 3 ? argv[3] : "none";
    /* Made at the start and entered once, as by libuv; or late, when connections have left TCP. */
    int late = strncmp(op, "late-", 5) == 0;
#ifndef LIBURING
    unseen = strcmp(op, "late-unseen") == 0;
    if (unseen)
        op = "late-sendrecv";
#endif
    if (late)
        op += 5;
    else if (ring_try(&ring, 64, BY_NUMBER && is("sendrecv") ? SETUP_NO_SQARRAY : 0) != 0) {
        printf("no ring: %s\n", strerror(errno));
        return 0;
    } else if (run(&ring, IORING_OP_NOP, -1, NULL, 0, 0) != 0)
        die("nop");
    subject = caller();
    int bystander = caller();
    exchange(subject, by_write, by_read, 60, 3000);
    exchange(bystander, by_write, by_read, 60, 3000);
    if (late && (ring_try(&ring, 64, 0) != 0 || run(&ring, IORING_OP_NOP, -1, NULL, 0, 0) != 0))
        die("a late ring");
    int port = port_of(subject);
    if (is("refusals"))
        refusals();
    else {
        get_ready();
        use_it();
    }
    exchange(bystander, by_write, by_read, 60, 3000);
    int later = caller();
    exchange(later, by_write, by_read, 60, 3000);
    printf("told %d %lu\n", port, told);
    printf("done %d %d %d\n", port, port_of(bystander), port_of(later));
    fflush(stdout);
    getchar();
    exchange(bystander, by_write, by_read, 5, 3000);
    exchange(later, by_write, by_read, 5, 3000);
    return 0;
}
