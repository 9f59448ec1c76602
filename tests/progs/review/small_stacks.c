// A whole connection, upgraded or not, on the smallest stack that a thread can have, and in a handler on a stack of 8 KiB behind the
// kernel's frame. Plain: thread 0, handler 0 0
#include "t.h"
static int a, b;
static volatile int told;
static int talk(int x, int y)
{
    char c[100];
    struct iovec v = {c, 3};
    struct msghdr m = {.msg_iov = &v, .msg_iovlen = 1};
    struct pollfd p = {y, POLLIN};
    int bad = 0;
    warmup(x, y);
    for (int i = 0; i < 50; i++)
        bad |= send(x, c, 100, 0) != 100 || recv(y, c, 100, MSG_WAITALL) != 100;
    bad |= sendmsg(x, &m, 0) != 3 || poll(&p, 1, 1000) != 1 || recvmsg(y, &m, 0) != 3;
    return bad;
}
static int whole(void)
{
    int x, y, d, bad, set = epoll_create1(0);
    char c;
    struct epoll_event e = {EPOLLIN};
    pairup(&x, &y);
    bad = talk(x, y) | talk(y, x);
    epoll_ctl(set, EPOLL_CTL_ADD, y, &e);
    send(x, "x", 1, 0);
    bad |= epoll_wait(set, &e, 1, 1000) != 1;
    bad |= recv(y, &c, 1, 0) != 1;
    d = dup(y);
    close(d);
    shutdown(x, SHUT_WR);
    bad |= recv(y, &c, 1, 0) != 0;
    close(x);
    close(y);
    close(set);
    return bad;
}
static void *thread(void *v)
{
    return (void *)(long)whole();
}
static void handler(int s)
{
    told = whole() | talk(a, b) << 1;
}
int main(void)
{
    pthread_attr_t at;
    pthread_t t;
    void *r;
    pthread_attr_init(&at);
    pthread_attr_setstacksize(&at, 16384);
    for (int i = 0; i < 5; i++) {
        if (pthread_create(&t, &at, thread, 0))
            return perror("pthread_create"), 1;
        pthread_join(t, &r);
        printf("thread %ld\n", (long)r);
    }
    ready2(&a, &b);
    size_t frame = (sysconf(_SC_MINSIGSTKSZ) + 4095) & ~4095UL, all = frame + 8192;
    size_t page = sysconf(_SC_PAGESIZE);
    char *stack = mmap(0, all + page, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    mprotect(stack, page, PROT_NONE);
    stack_t ss = {.ss_sp = stack + page, .ss_size = all};
    struct sigaction sa = {.sa_handler = handler, .sa_flags = SA_ONSTACK};
    sigaltstack(&ss, 0);
    sigaction(SIGUSR1, &sa, 0);
    for (int i = 0; i < 5; i++) {
        told = -1;
        raise(SIGUSR1);
        printf("handler %d %d\n", told & 1, told >> 1);
    }
}
