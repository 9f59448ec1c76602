// SIOCOUTQ with everything delivered and nothing read. Plain: 0.
#include "t.h"
int main()
{
    setvbuf(stdout, 0, _IOLBF, 0);
    int a, b, q;
    ready2(&a, &b);
    static char buf[5000];
    send(a, buf, 5000, 0);
    ms(100);
    ioctl(a, TIOCOUTQ, &q);
    printf("SIOCOUTQ with 5000 bytes delivered and unread by the peer: %d\n", q);
    return 0;
}
