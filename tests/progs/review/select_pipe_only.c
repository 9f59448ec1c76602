// select(getdtablesize()) on a pipe alone, while another connection is on a ring (hidden high descriptors raise max_fds). Plain: 1.
#include "t.h"
int main()
{
    int a, b;
    setvbuf(stdout, 0, _IOLBF, 0);
    ready2(&a, &b);
    int p[2];
    pipe(p);
    write(p[1], "x", 1);
    struct {
        fd_set r;
        unsigned char after[1 << 17];
    }*s = malloc(sizeof * s);
    /* bits of open descriptors only can survive; put a bit for every fd>1024 as random stack memory would */
    memset(s->after, 0, sizeof s->after);
    strcpy((char*)s->after + 8, "precious data of the program, right behind its fd_set");
    FD_ZERO(&s->r);
    FD_SET(p[0], &s->r);
    struct timeval tv = {1, 0};
    int n = select(getdtablesize(), &s->r, 0, 0, &tv);
    printf("pipe, other connection on ring: %d %s; memory behind the fd_set: '%.20s'\n", n,
           n < 0 ? strerror(errno) : "", s->after + 8);
    return 0;
}
