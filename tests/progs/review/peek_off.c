// SO_PEEK_OFF (Linux 6.10) and TCP_INQ. Plain: 3 'abc', 3 'def', 2 'gh'; cmsg yes inq 5.
#include "t.h"
int main()
{
    setvbuf(stdout, 0, _IOLBF, 0);
    int a, b;
    ready2(&a, &b);
    int o = 0;
    if(setsockopt(b, SOL_SOCKET, SO_PEEK_OFF, &o, sizeof o))perror("SO_PEEK_OFF");
    send(a, "abcdefgh", 8, 0);
    ms(20);
    char x[9] = {0}, y[9] = {0}, z[9] = {0};
    ssize_t r1 = recv(b, x, 3, MSG_PEEK), r2 = recv(b, y, 3, MSG_PEEK | MSG_DONTWAIT), r3 = recv(b, z, 4,
                 MSG_PEEK | MSG_DONTWAIT);
    printf("peeks with SO_PEEK_OFF: %zd '%s', %zd '%s', %zd '%s'\n", r1, x, r2, y, r3, z);
    int a2, b2;
    ready2(&a2, &b2);
    int one = 1;
#ifndef TCP_INQ
#define TCP_INQ 36
#endif
    if(setsockopt(b2, IPPROTO_TCP, TCP_INQ, &one, sizeof one))perror("INQ");
    send(a2, "abcdefgh", 8, 0);
    ms(20);
    char cb[64];
    char d[4];
    struct iovec v = {d, 3};
    struct msghdr m = {.msg_iov = &v, .msg_iovlen = 1, .msg_control = cb, .msg_controllen = sizeof cb};
    ssize_t r = recvmsg(b2, &m, 0);
    struct cmsghdr*cm = CMSG_FIRSTHDR(&m);
    printf("TCP_INQ: recvmsg %zd, cmsg %s inq %d\n", r, cm ? "yes" : "no", cm ? * (int*)CMSG_DATA(cm) : -1);
    return 0;
}
