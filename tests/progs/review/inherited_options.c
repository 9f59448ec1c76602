// Options that only the kernel's stream can give, or that receives have to keep to: set on a listener, from which connections have them, before the first byte, and late.
#include "t.h"
#include <linux/filter.h>
#include <linux/errqueue.h>
#ifndef TCP_INQ
#define TCP_INQ 36
#endif
#ifndef TCP_TX_DELAY
#define TCP_TX_DELAY 37
#endif
#ifndef MSG_ZEROCOPY
#define MSG_ZEROCOPY 0x4000000
#endif
static struct sock_filter pass_all[] = {{BPF_RET | BPF_K, 0, 0, 0xffffffff}};
static struct sock_fprog filter = {1, pass_all};
static const struct { const char *name; int level, option; unsigned value; } options[] = {
    {"nothing", SOL_SOCKET, SO_KEEPALIVE, 1},
    {"SO_TIMESTAMP", SOL_SOCKET, SO_TIMESTAMP, 1},
    {"SO_TIMESTAMPNS", SOL_SOCKET, SO_TIMESTAMPNS, 1},
    {"SO_TIMESTAMPING", SOL_SOCKET, SO_TIMESTAMPING, 1 << 3 | 1 << 4},
    {"SO_PEEK_OFF", SOL_SOCKET, SO_PEEK_OFF, 0},
    {"TCP_INQ", IPPROTO_TCP, TCP_INQ, 1},
    {"SO_ZEROCOPY", SOL_SOCKET, SO_ZEROCOPY, 1},
    {"SO_MAX_PACING_RATE", SOL_SOCKET, SO_MAX_PACING_RATE, 500000000},
    {"no SO_MAX_PACING_RATE", SOL_SOCKET, SO_MAX_PACING_RATE, ~0},
    {"TCP_TX_DELAY", IPPROTO_TCP, TCP_TX_DELAY, 20000},
    {"SO_ATTACH_FILTER", SOL_SOCKET, SO_ATTACH_FILTER, 0},
};
enum { ALL = sizeof options / sizeof *options };
static int a, b;
static void set(int fd, int i)
{
    int r = options[i].option == SO_ATTACH_FILTER && options[i].level == SOL_SOCKET
            ? setsockopt(fd, SOL_SOCKET, SO_ATTACH_FILTER, &filter, sizeof filter)
            : setsockopt(fd, options[i].level, options[i].option, &options[i].value, sizeof(int));
    if (r)
        printf("%s: %s\n", options[i].name, strerrorname_np(errno));
}
// What the program at `a` notices.
static void look(const char *when, int i)
{
    char x[4] = {0}, y[4] = {0}, z[9] = {0}, control[500];
    send(b, "abcdefgh", 8, 0);
    ms(20);
    ssize_t first = recv(a, x, 3, MSG_PEEK), second = recv(a, y, 3, MSG_PEEK | MSG_DONTWAIT);
    struct iovec v = {z, 5};
    struct msghdr m = {.msg_iov = &v, .msg_iovlen = 1, .msg_control = control, .msg_controllen = sizeof control};
    ssize_t r = recvmsg(a, &m, 0);
    struct cmsghdr *c = CMSG_FIRSTHDR(&m);
    printf("%s, %s: peeks %zd %s, %zd %s; recvmsg %zd, control %d", options[i].name, when, first, x, second, y, r, c ? c->cmsg_type : -1);
    if (c && c->cmsg_level == IPPROTO_TCP)
        printf(" left %d", *(int *)CMSG_DATA(c));
    recv(a, z, 3, MSG_WAITALL);
    // An option that acts on the kernel's stream has to have something to act on.
    unsigned long long before = tcpsent(a);
    char big[3000] = {0};
    send(a, big, sizeof big, MSG_ZEROCOPY);
    recv(b, big, sizeof big, MSG_WAITALL);
    struct pollfd p = {.fd = a};
    int told = poll(&p, 1, options[i].option == SO_ZEROCOPY ? 5000 : 0);
    int acts = options[i].option == SO_MAX_PACING_RATE && ~options[i].value || options[i].option == TCP_TX_DELAY && options[i].level == IPPROTO_TCP || options[i].option == SO_ATTACH_FILTER;
    printf("; told of copies %d%s\n", told, acts ? tcpsent(a) - before >= 3000 ? ", acts on TCP" : ", acts on nothing" : "");
}
// The kernel begins to note times some while after the first socket has asked for them: until a datagram has one.
static void await_times(void)
{
    int stamped = socket(AF_INET, SOCK_DGRAM, 0);
    unsigned times = 1 << 3 | 1 << 4;
    struct sockaddr_in s = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t len = sizeof s;
    bind(stamped, (void *)&s, len);
    getsockname(stamped, (void *)&s, &len);
    setsockopt(stamped, SOL_SOCKET, SO_TIMESTAMPING, &times, sizeof times);
    for (double end = now() + HANGS; now() < end; ms(10)) {
        char byte = 0, control[500];
        struct iovec v = {&byte, 1};
        struct msghdr m = {.msg_iov = &v, .msg_iovlen = 1, .msg_control = control, .msg_controllen = sizeof control};
        sendto(stamped, &byte, 1, 0, (void *)&s, sizeof s);
        if (recvmsg(stamped, &m, 0) == 1 && CMSG_FIRSTHDR(&m))
            break;
    }
}
int main(int n, char **args)
{
    setvbuf(stdout, 0, _IOLBF, 0);
    rescue();
    await_times();
    int last = n > 1 ? atoi(args[1]) : ALL - 1;
    for (int i = n > 1 ? last : 0; i <= last; i++) {
        pairup(&a, &b);
        set(a, i);
        warmup(a, b);
        look("before", i);
        close(a);
        close(b);
        ready2(&a, &b);
        set(a, i);
        look("late", i);
        close(a);
        close(b);
        int l = socket(AF_INET, SOCK_STREAM, 0);
        struct sockaddr_in s = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
        socklen_t len = sizeof s;
        bind(l, (void *)&s, len);
        set(l, i);
        listen(l, 1);
        getsockname(l, (void *)&s, &len);
        b = socket(AF_INET, SOCK_STREAM, 0);
        connect(b, (void *)&s, len);
        a = accept(l, 0, 0);
        warmup(a, b);
        look("inherited", i);
        close(a);
        close(b);
        close(l);
    }
    // Those that were not given anything are as before.
    ready2(&a, &b);
    look("at the end", 0);
    return 0;
}
