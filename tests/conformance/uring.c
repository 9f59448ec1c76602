/* io_uring and the older io_submit on a connection, by the kernel's own interface. */
#include "frame.h"
#include <linux/aio_abi.h>
#include <linux/io_uring.h>
#include <sys/syscall.h>

static struct ring {
    int fd;
    unsigned *sq_tail, *sq_mask, *sq_array, *cq_head, *cq_tail, *cq_mask;
    struct io_uring_sqe *sqes;
    struct io_uring_cqe *cqes;
} ring;

static void set_up(void)
{
    struct io_uring_params p;
    memset(&p, 0, sizeof p);
    ring.fd = syscall(SYS_io_uring_setup, 8, &p);
    if (ring.fd < 0)
        skip_rest("io_uring_setup: %s", ename(errno));
    int prot = PROT_READ | PROT_WRITE, flags = MAP_SHARED | MAP_POPULATE;
    char *sq = mmap(NULL, p.sq_off.array + p.sq_entries * 4, prot, flags, ring.fd, IORING_OFF_SQ_RING);
    char *cq = mmap(NULL, p.cq_off.cqes + p.cq_entries * sizeof *ring.cqes, prot, flags, ring.fd, IORING_OFF_CQ_RING);
    ring.sqes = mmap(NULL, p.sq_entries * sizeof *ring.sqes, prot, flags, ring.fd, IORING_OFF_SQES);
    ring.sq_tail = (void *)(sq + p.sq_off.tail);
    ring.sq_mask = (void *)(sq + p.sq_off.ring_mask);
    ring.sq_array = (void *)(sq + p.sq_off.array);
    ring.cq_head = (void *)(cq + p.cq_off.head);
    ring.cq_tail = (void *)(cq + p.cq_off.tail);
    ring.cq_mask = (void *)(cq + p.cq_off.ring_mask);
    ring.cqes = (void *)(cq + p.cq_off.cqes);
}

/* Inline, as liburing does it: nobody sees these calls. */
static long enter(unsigned submit, unsigned want)
{
    return unseen(SYS_io_uring_enter, ring.fd, submit, want, want ? IORING_ENTER_GETEVENTS : 0);
}

static void submit(int op, int fd, void *buf, unsigned len)
{
    unsigned tail = *ring.sq_tail, at = tail & *ring.sq_mask;
    struct io_uring_sqe *s = &ring.sqes[at];
    memset(s, 0, sizeof *s);
    s->opcode = op;
    s->fd = fd;
    s->addr = (uintptr_t)buf;
    s->len = len;
    if (op == IORING_OP_POLL_ADD)
        s->poll32_events = POLLIN;
    ring.sq_array[at] = at;
    __atomic_store_n(ring.sq_tail, tail + 1, __ATOMIC_RELEASE);
    enter(1, 0);
}

static const char *completed(void)
{
    unsigned head = *ring.cq_head;
    while (__atomic_load_n(ring.cq_tail, __ATOMIC_ACQUIRE) == head)
        enter(0, 1);
    int r = ring.cqes[head & *ring.cq_mask].res;
    __atomic_store_n(ring.cq_head, head + 1, __ATOMIC_RELEASE);
    errno = r < 0 ? -r : 0;
    return result(r < 0 ? -1 : r);
}

static void rounds(int fd)
{
    static char buf[100];
    for (int i = 0; i < 5; i++) {
        submit(IORING_OP_RECV, fd, buf, sizeof buf);
        tell('w', 10);
        say("recv %s", completed());
        took(buf, 10);
        submit(IORING_OP_SEND, fd, to_send(10), 10);
        say("send %s", completed());
        sent(10);
        say("the peer reads %ld", tell('r', 10));
    }
    submit(IORING_OP_POLL_ADD, fd, NULL, 0);
    tell('w', 10);
    say("poll %s", completed());
    R(take(fd, 10, 0));
    R(put(fd, 10, 0));
    say("the peer reads %ld", tell('r', 10));
    submit(IORING_OP_CLOSE, fd, NULL, 0);
    say("close %s", completed());
    peer_reads_to_end();
}

CASE_PLAN(uring_from_the_start, STAYS_TCP)
{
    set_up();
    rounds(fresh());
}

/* The ring is made when the connection has left TCP. */
CASE(uring_late)
{
    int fd = fresh();
    set_up();
    rounds(fd);
}

/* io_submit: a wait, a receive, a send. */
static void submitted(int fd)
{
    aio_context_t context = 0;
    struct io_event event;
    char buf[100];
    struct iocb wait = { .aio_lio_opcode = IOCB_CMD_POLL, .aio_fildes = fd, .aio_buf = POLLIN };
    struct iocb in = { .aio_lio_opcode = IOCB_CMD_PREAD, .aio_fildes = fd, .aio_buf = (uintptr_t)buf, .aio_nbytes = sizeof buf };
    struct iocb out = { .aio_lio_opcode = IOCB_CMD_PWRITE, .aio_fildes = fd, .aio_nbytes = 10 };
    struct iocb *list;
    if (syscall(SYS_io_setup, 8, &context) < 0)
        skip_rest("io_setup: %s", ename(errno));
    for (int i = 0; i < 3; i++) {
        struct timespec limit = { 10, 0 };
        list = &wait;
        R(syscall(SYS_io_submit, context, 1, &list));
        tell('w', 10);
        R(syscall(SYS_io_getevents, context, 1, 1, &event, &limit));
        say("events %s", mask_names(event.res));
        list = &in;
        R(syscall(SYS_io_submit, context, 1, &list));
        R(syscall(SYS_io_getevents, context, 1, 1, &event, &limit));
        say("received %lld", (long long)event.res);
        took(buf, event.res);
        list = &out;
        out.aio_buf = (uintptr_t)to_send(10);
        R(syscall(SYS_io_submit, context, 1, &list));
        R(syscall(SYS_io_getevents, context, 1, 1, &event, &limit));
        say("sent %lld", (long long)event.res);
        sent(event.res);
        say("the peer reads %ld", tell('r', 10));
    }
    R(put(fd, 10, 0));
    say("the peer reads %ld", tell('r', 10));
}

CASE(aio_by_number_late) { submitted(fresh()); }

CASE_PLAN(aio_by_number_first, STAYS_TCP)
{
    int fd = cold();
    submitted(fd);
    warm_slot(0);
    submitted(fd);
}
