// select(getdtablesize(), ...) with a usual fd_set. Plain: 1, 0 bytes overwritten, 1.
#include "t.h"
/* select(getdtablesize()) idiom */
int main()
{
    int a, b;
    setvbuf(stdout, 0, _IOLBF, 0);
    ready2(&a, &b);
    struct {
        fd_set r;
        unsigned char after[1 << 17];
    }*s = malloc(sizeof * s);
    memset(s->after, 0xAA, sizeof s->after);
    FD_ZERO(&s->r);
    FD_SET(b, &s->r);
    send(a, "x", 1, 0);
    ms(5);
    struct timeval tv = {1, 0};
    int n = select(getdtablesize(), &s->r, 0, 0, &tv);
    int bad = 0;
    for (int i = 0; i < sizeof s->after; i++)bad += s->after[i] != 0xAA;
    printf("select(getdtablesize()): %d %s, set %d, bytes overwritten behind the fd_set: %d\n", n,
           n < 0 ? strerror(errno) : "", !!FD_ISSET(b, &s->r), bad);
// with zero memory behind
    memset(s->after, 0, sizeof s->after);
    FD_ZERO(&s->r);
    FD_SET(b, &s->r);
    n = select(getdtablesize(), &s->r, 0, 0, &tv);
    printf("zeros behind: %d %s\n", n, n < 0 ? strerror(errno) : "");
    return 0;
}
