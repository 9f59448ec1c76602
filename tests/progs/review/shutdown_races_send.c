// Bytes whose send returned 1 beside a shutdown(SHUT_WR) in another thread. Plain: never came in 0 of 400.
#include "t.h"
static int a, b;
static volatile long sent;
static volatile int go;
static void*sn(void*_)
{
    char c = 1;
    go = 1;
    for (;;) {
        ssize_t r = send(a, &c, 1, MSG_NOSIGNAL);
        if (r != 1)break;
        sent++;
    }
    return 0;
}
int main(int c, char**v)
{
    setvbuf(stdout, 0, _IOLBF, 0);
    rescue();
    int bad = 0, n = c > 1 ? atoi(v[1]) : 400, err = 0;
    static char buf[1 << 16];
    for (int i = 0; i < n; i++) {
        pairup(&a, &b);
        warmup(a, b);
        sent = 0;
        go = 0;
        pthread_t t;
        pthread_create(&t, 0, sn, 0);
        while (!go);
        for (volatile int k = 0; k < (i * 37) % 3000; k++);
        shutdown(a, SHUT_WR);
        pthread_join(t, 0);
        long got = 0;
        ssize_t r;
        while ((r = recv(b, buf, sizeof buf, 0)) > 0)got += r;
        if (r < 0)err++;
        if (got != sent) {
            bad++;
            if (bad < 4)fprintf(stderr, "# sent %ld got %ld r %zd %s\n", sent, got, r, r < 0 ? strerror(errno) : "");
        }
        close(a);
        close(b);
    }
    printf("send() that returned 1 beside a shutdown(SHUT_WR), byte never came: in %d of %d rounds; errors %d\n",
           bad, n, err);
    return 0;
}
