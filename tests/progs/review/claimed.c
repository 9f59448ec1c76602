// What lies unread in a ring is taken back to TCP (EPOLLEXCLUSIVE); then the writer goes on by each call that sends. The stream keeps its order.
#include "t.h"
#include <sys/sendfile.h>
static char buf[100000], got[200000];
static int a, b, file, p[2];
static int more(int how)
{
    off_t at = 0;
    struct iovec v = {buf, 1000};
    struct msghdr m = {.msg_iov = &v, .msg_iovlen = 1};
    memset(buf, 'z', 1000);
    switch (how) {
    case 0:
        return sendfile(b, file, &at, 1000);
    case 1:
        write(p[1], buf, 1000);
        return splice(p[0], 0, b, 0, 1000, 0);
    case 2:
        write(p[1], buf, 1000);
        return splice(p[0], 0, b, 0, 1000, SPLICE_F_NONBLOCK);
    case 3:
        return send(b, buf, 1000, 0);
    case 4:
        return sendmsg(b, &m, MSG_DONTWAIT);
    case 5:
        return writev(b, &v, 1);
    }
    return send(b, buf, 1000, MSG_OOB);
}
int main()
{
    char name[] = "claimed-XXXXXX";
    file = mkstemp(name);
    unlink(name);
    memset(buf, 'z', 1000);
    write(file, buf, 1000);
    pipe(p);
    for (int how = 0; how < 7; how++) {
        ready2(&a, &b);
        for (int i = 0; i < sizeof buf; i++)
            buf[i] = 'a' + i % 23;
        int n = send(b, buf, sizeof buf, 0);
        struct epoll_event e = {.events = EPOLLIN | EPOLLEXCLUSIVE};
        int set = epoll_create1(0);
        epoll_ctl(set, EPOLL_CTL_ADD, a, &e);
        int k = more(how), all = 0, r, wrong = 0;
        int want = n + k - (how == 6);
        while (all < want && (r = recv(a, got + all, sizeof got - all, 0)) > 0)
            all += r;
        for (int i = 0; i < all; i++)
            wrong += got[i] != (i < n ? 'a' + i % 23 : 'z');
        printf("%d: sent %d and %d, got %d, %d of them wrong\n", how, n, k, all, wrong);
        close(set);
        close(a);
        close(b);
    }
    return 0;
}
