/* A ring by numbers, as libuv makes one; with LIBURING by the functions of liburing. */
#ifndef URING_H
#define URING_H
#include "common.h"
#include <linux/io_uring.h>
#include <sys/mman.h>
#include <sys/syscall.h>

/* Newer than the headers of Debian 12. */
#define SETUP_NO_MMAP (1u << 14)
#define SETUP_FD_ONLY (1u << 15)
#define SETUP_NO_SQARRAY (1u << 16)
#define OP_READ_MULTISHOT 49
#define OP_EPOLL_WAIT 59

struct ring {
    int fd;
    unsigned *sq_head, *sq_tail, sq_mask, *sq_array, *cq_head, *cq_tail, cq_mask;
    struct io_uring_sqe *sqes;
    struct io_uring_cqe *cqes;
    /* Filled in and not submitted. */
    unsigned waiting;
    void *maps[3];
    size_t sizes[3];
};

#ifdef LIBURING
#define BY_NUMBER 0
/* Its ABI, whose headers need not be installed. */
struct io_uring {
    struct {
        unsigned *khead, *ktail, *mask, *entries, *flags, *dropped, *array;
        struct io_uring_sqe *sqes;
        unsigned sqe_head, sqe_tail;
        size_t size;
        void *ring;
        unsigned pad[4];
    } sq;
    struct {
        unsigned *khead, *ktail, *mask, *entries, *flags, *overflow;
        struct io_uring_cqe *cqes;
        size_t size;
        void *ring;
        unsigned pad[4];
    } cq;
    unsigned flags;
    int fd;
    unsigned rest[8];
};
int io_uring_queue_init(unsigned entries, struct io_uring *ring, unsigned flags);
void io_uring_queue_exit(struct io_uring *ring);
struct io_uring_sqe *io_uring_get_sqe(struct io_uring *ring);
int io_uring_submit(struct io_uring *ring);
int io_uring_submit_and_wait(struct io_uring *ring, unsigned n);
int __io_uring_get_cqe(struct io_uring *ring, struct io_uring_cqe **cqe, unsigned submit, unsigned n, void *mask);
int io_uring_register_files(struct io_uring *ring, const int *files, unsigned n);
int io_uring_register_files_tags(struct io_uring *ring, const int *files, const __u64 *tags, unsigned n);
int io_uring_register_files_update(struct io_uring *ring, unsigned at, const int *files, unsigned n);

/* Shared with children, as PostgreSQL has it. */
static struct io_uring *shared;
#define library (*shared)

UNUSED static int ring_try(struct ring *r, unsigned entries, unsigned flags)
{
    memset(r, 0, sizeof *r);
    r->fd = -1;
    if (!shared)
        shared = mmap(NULL, sizeof *shared, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    int e = io_uring_queue_init(entries, &library, flags);
    if (e < 0) {
        errno = -e;
        return -1;
    }
    *r = (struct ring){.fd = library.fd, .cq_head = library.cq.khead, .cq_tail = library.cq.ktail,
                       .cq_mask = *library.cq.mask, .cqes = library.cq.cqes};
    return 0;
}
#else
#define BY_NUMBER 1
/* Whether rings are set up where nobody sees it. */
static int unseen;

static int set_up(unsigned entries, struct io_uring_params *p)
{
#ifdef __x86_64__
    if (unseen) {
        long r;
        __asm__ volatile("syscall" : "=a"(r) : "a"(SYS_io_uring_setup), "D"((long)entries), "S"(p) : "rcx", "r11", "memory");
        return r;
    }
#endif
    return syscall(SYS_io_uring_setup, entries, p);
}

UNUSED static int ring_try(struct ring *r, unsigned entries, unsigned flags)
{
    struct io_uring_params p;
    memset(&p, 0, sizeof p);
    memset(r, 0, sizeof *r);
    p.flags = flags;
    r->fd = set_up(entries, &p);
    if (r->fd < 0)
        return -1;
    off_t at[3] = {IORING_OFF_SQ_RING, IORING_OFF_CQ_RING, IORING_OFF_SQES};
    r->sizes[0] = p.sq_off.array + p.sq_entries * 4;
    if (flags & SETUP_NO_SQARRAY)
        r->sizes[0] = 4096;
    r->sizes[1] = p.cq_off.cqes + p.cq_entries * sizeof *r->cqes;
    r->sizes[2] = p.sq_entries * sizeof *r->sqes;
    for (int i = 0; i < 3; i++) {
        r->maps[i] = mmap(NULL, r->sizes[i], PROT_READ | PROT_WRITE, MAP_SHARED, r->fd, at[i]);
        if (r->maps[i] == MAP_FAILED)
            die("mmap of a ring");
    }
    char *sq = r->maps[0], *cq = r->maps[1];
    r->sqes = r->maps[2];
    r->sq_head = (void *)(sq + p.sq_off.head);
    r->sq_tail = (void *)(sq + p.sq_off.tail);
    r->sq_mask = *(unsigned *)(sq + p.sq_off.ring_mask);
    r->sq_array = flags & SETUP_NO_SQARRAY ? NULL : (void *)(sq + p.sq_off.array);
    r->cq_head = (void *)(cq + p.cq_off.head);
    r->cq_tail = (void *)(cq + p.cq_off.tail);
    r->cq_mask = *(unsigned *)(cq + p.cq_off.ring_mask);
    r->cqes = (void *)(cq + p.cq_off.cqes);
    return 0;
}

UNUSED static void ring_end(struct ring *r)
{
    for (int i = 0; i < 3; i++)
        munmap(r->maps[i], r->sizes[i]);
    MUST(close(r->fd));
}

#endif

UNUSED static struct io_uring_sqe *prepare(struct ring *r, int op, int fd, const void *addr, unsigned len, uint64_t off)
{
#ifdef LIBURING
    static unsigned tail;
    struct io_uring_sqe *s = io_uring_get_sqe(&library);
    tail++;
#else
    unsigned tail = *r->sq_tail, at = tail & r->sq_mask;
    struct io_uring_sqe *s = &r->sqes[at];
#endif
    memset(s, 0, sizeof *s);
    s->opcode = op;
    s->fd = fd;
    s->addr = (uintptr_t)addr;
    s->len = len;
    s->off = off;
    s->user_data = tail;
#ifndef LIBURING
    if (r->sq_array)
        r->sq_array[at] = at;
    __atomic_store_n(r->sq_tail, tail + 1, __ATOMIC_RELEASE);
#endif
    r->waiting++;
    return s;
}

UNUSED static int enter(struct ring *r, unsigned submit, unsigned want)
{
    return syscall(SYS_io_uring_enter, r->fd, submit, want, want ? IORING_ENTER_GETEVENTS : 0, NULL, 0);
}

UNUSED static void submit(struct ring *r)
{
    unsigned n = r->waiting;
#ifdef LIBURING
    /* All that it can be told by. */
    static int turn;
    if ((turn++ % 2 ? io_uring_submit(&library) : io_uring_submit_and_wait(&library, 0)) != (int)n)
#else
    if (enter(r, n, 0) != (int)n)
#endif

        die("io_uring_enter took less than %u", n);
    r->waiting = 0;
}

/* The next completion, whose flags are left behind. */
static unsigned last_flags;
static uint64_t last_data;
UNUSED static int completed(struct ring *r)
{
    unsigned head = *r->cq_head;
#ifdef LIBURING
    struct io_uring_cqe *first;
    if (__io_uring_get_cqe(&library, &first, 0, 1, NULL) != 0)
        die("a completion");
#else
    while (__atomic_load_n(r->cq_tail, __ATOMIC_ACQUIRE) == head)
        if (enter(r, 0, 1) < 0 && errno != EINTR)
            die("io_uring_enter");
#endif
    struct io_uring_cqe *c = &r->cqes[head & r->cq_mask];
    int result = c->res;
    last_flags = c->flags;
    last_data = c->user_data;
    __atomic_store_n(r->cq_head, head + 1, __ATOMIC_RELEASE);
    return result;
}

/* One operation and its result. */
UNUSED static int run(struct ring *r, int op, int fd, const void *addr, unsigned len, uint64_t off)
{
    prepare(r, op, fd, addr, len, off);
    submit(r);
    return completed(r);
}
#endif
