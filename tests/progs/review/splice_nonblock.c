// splice with SPLICE_F_NONBLOCK from a blocking socket. Plain: waits, 1.
#include "t.h"
static int a, b;
static void*late(void*_)
{
    ms(500);
    send(b, "x", 1, 0);
    return 0;
}
int main()
{
    setvbuf(stdout, 0, _IOLBF, 0);
    ready2(&a, &b);
    int p[2];
    pipe(p);
    pthread_t t;
    pthread_create(&t, 0, late, 0);
    ssize_t r = splice(a, 0, p[1], 0, 10, SPLICE_F_NONBLOCK);
    printf("splice(blocking socket to pipe, SPLICE_F_NONBLOCK): %zd %s\n", r, r < 0 ? strerror(errno) : "");
    return 0;
}
