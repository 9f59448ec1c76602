/*
 * The frame of the conformance program: a table of cases, each a process of its own with a connection to a peer process.
 *
 * A case prints what a program can observe of its calls, and nothing that another run would print differently: no times,
 * no descriptor numbers, no ports. Nothing in here knows of Shortwire; whether a connection has left TCP is seen by what
 * the kernel's own counters do not count any more.
 */
#ifndef FRAME_H
#define FRAME_H
#include "../progs/common.h"
#include "kernel.h"
#include <pthread.h>
#include <sys/epoll.h>
#include <sys/mman.h>
#include <sys/select.h>

typedef void case_fn(int arg);

/* `plan` says what becomes of its connections when both ends could leave TCP. */
enum plan { UPGRADES, STAYS_TCP, NO_CONNECTION };

void add_case(const char *name, case_fn *run, int arg, enum plan plan);

#define CASE_PLAN(id, plan)                                                                                            \
    static void id(int arg);                                                                                           \
    __attribute__((constructor)) static void id##_add(void) { add_case(#id, id, 0, plan); }                            \
    static void id(UNUSED int arg)
#define CASE(id) CASE_PLAN(id, UPGRADES)
/* One case for each value below `n`, called by the name that `name_of` gives it. */
#define CASES(id, n, name_of, plan)                                                                                    \
    static void id(int arg);                                                                                           \
    __attribute__((constructor)) static void id##_add(void)                                                            \
    {                                                                                                                  \
        for (int i_ = 0; i_ < (n); i_++)                                                                               \
            add_case(name_of(#id, i_), id, i_, plan);                                                                  \
    }                                                                                                                  \
    static void id(int arg)

/* The transcript. */
__attribute__((format(printf, 1, 2))) void say(const char *fmt, ...);
/* A case that this machine cannot run. */
__attribute__((format(printf, 1, 2))) void skip_rest(const char *why, ...);
const char *result(long n);
const char *ename(int e);
/* Signals that `count_hit` has seen, and a result with them. */
extern volatile sig_atomic_t hits;
void count_hit(int sig);
void outcome(const char *what, long n);
/* Readiness by name; a level between edges is not said. */
const char *mask_names(int mask);
/* The call as it is written, and what it returned. */
#define R(call) ({ errno = 0; long r_ = (long)(call); int e_ = errno; say("%s = %s", #call, result(r_)); errno = e_; r_; })

/* A connection whose peer is slot `slot` of the peer process. */
#define SLOTS 4
int cold_slot(int slot);
void warm_slot(int slot);
int fresh_slot(int slot);
static inline int cold(void) { return cold_slot(0); }
static inline int fresh(void) { return fresh_slot(0); }
/* The connection of a slot goes on under another number. */
void known_as(int slot, int fd);
/* The port of this case's listener, and the listener. */
extern int case_port, listener;
void need_listener(void);

/* Orders to the peer. Those that change what is seen here return when the change has arrived. */
struct order { int op, slot, when, a, b, pid, tid; };
struct reply { long value; int error; uint64_t sent; };
enum when { NOW, WHEN_ASLEEP };
extern int slot; /* of the orders that name none */
long tell(int op, int a);
/* The answer to what was sent to a closed peer. On a busy machine the kernel may put it off for tens of milliseconds. */
void reset_arrives(int fd);
/* What was sent: nothing of it waits for the peer any more. The kernel may acknowledge late what the peer has read. */
void until_acknowledged(int fd);
/* What the kernel was given has arrived at the peer's. */
void until_delivered(int fd);
struct reply ask(int op, int a, int b);
/* The peer acts when the calling thread, or thread `tid`, has gone to sleep. */
void when_asleep(int op, int a, int b);
void when_thread_sleeps(pid_t tid, int op, int a, int b);
/* So many round trips of 8 bytes, which are not the stream's. */
void peer_echoes(int n);
/* What the peer reads up to the end or the error. */
void peer_reads_to_end(void);
/*
 * n dial; L listen, A accept; e round trips; w write; V write a, and b when the thread sleeps again; r read; R read to the end; s shutdown; c close; l close with a reset;
 * o urgent byte; k signal a to process b (here), then write one byte if asked by K; q wait until
 * all was acknowledged; u how much is unread there; t bytes out and back; T its end, and ours; E a line back.
 */

/* Stream bytes: position and content are checked. */
extern uint64_t from_subject[SLOTS], from_peer[SLOTS];
ssize_t put(int fd, int len, int flags);
ssize_t take(int fd, int len, int flags);
/* The next n bytes received by other calls. */
void took(const void *buf, ssize_t n);
/* The next n bytes to be sent by other calls; they count as sent once `sent` says so. */
void *to_send(int n);
void sent(ssize_t n);
void drain(int fd);
/* Sends without waiting until the buffers are full; what was sent. */
long fill_up(int fd);

/* A system call by an instruction of our own, not through libc: nobody sees it. */
static inline long unseen(long number, long a, long b, long c, long d)
{
#ifdef __aarch64__
    register long x8 __asm__("x8") = number, x0 __asm__("x0") = a, x1 __asm__("x1") = b, x2 __asm__("x2") = c, x3 __asm__("x3") = d,
         x4 __asm__("x4") = 0, x5 __asm__("x5") = 0;
    __asm__ volatile("svc 0" : "+r"(x0) : "r"(x8), "r"(x1), "r"(x2), "r"(x3), "r"(x4), "r"(x5) : "memory");
    return x0;
#else
    long r;
    register long r10 __asm__("r10") = d, r8 __asm__("r8") = 0, r9 __asm__("r9") = 0;
    __asm__ volatile("syscall"
                     : "=a"(r)
                     : "a"(number), "D"(a), "S"(b), "d"(c), "r"(r10), "r"(r8), "r"(r9)
                     : "rcx", "r11", "memory");
    return r;
#endif
}

int set_with(int fd, unsigned events);
const char *wait_for(int set, int ms);
/* All that poll and epoll say of it now. */
void look(int fd, const char *when);
void on(int sig, void (*handler)(int), int flags);
/* Waits until a thread of this process sleeps. */
void until_asleep(pid_t tid);
pid_t gettid_of(pthread_t t);
struct thread { pthread_t id; pid_t tid; void *(*run)(void *); void *arg; };
void spawn_thread(struct thread *t, void *(*run)(void *), void *arg);
void *join(struct thread *t);
void reap(pid_t pid, const char *who);
/* A program of this case's own directory, or the conformance program itself in another role. */
const char *self_path(void);
int role_main(int argc, char **argv);
void peer_main(const char *name);
int sleeping(pid_t pid, pid_t tid);
void await_sleep(pid_t pid, pid_t tid);
#endif
