// Senders in threads at both ends over the upgrade, one blocking reader each; run it 6 times (busy machine). Plain: "bad rounds 0".
#include "t.h"
/* 3 senders on one socket over the switch, 2 readers at the other end (exclusive by mutex), opposite direction too */
static int a, b;
static volatile int err;
static pthread_mutex_t m = PTHREAD_MUTEX_INITIALIZER;
#define N 400
struct msg {
    int who, seq;
    char pad[24];
};
// Bytes that were received.
static volatile unsigned long moved;
// Looks are counted, not seconds: a program that gets no processor has none.
static void*watch(void*_)
{
    unsigned long before = 0;
    for (int idle = 0;;) {
        ms(500);
        idle = moved == before ? idle + 1 : 0;
        before = moved;
        if (idle > 12) {
            int x = 0, y = 0;
            ioctl(a, FIONREAD, &x);
            ioctl(b, FIONREAD, &y);
            printf("a reader sleeps in recv at 12 looks with %d bytes readable\n", x + y);
            _exit(1);
        }
    }
}
static int fdof(int dir)
{
    return dir ? b : a;
}
static void*sn(void*v)
{
    long x = (long)v;
    int dir = x >> 4, w = x & 15;
    unsigned r = x * 77 + 1;
    for (int i = 0; i < N; i++) {
        struct msg q = {w, i};
        memset(q.pad, w * 16 + (i & 15), 24);
        size_t o = 0;
        pthread_mutex_t*mm = 0;
        ssize_t k = send(fdof(dir), &q, sizeof q, MSG_NOSIGNAL);
        if (k != sizeof q)err++;
        r = r * 1103515245 + 12345;
        if ((r >> 16 & 15) == 0)usleep(r >> 20 & 255);
    }
    return 0;
}
static void*rd(void*v)
{
    int dir = (long)v;
    int next[3] = {0};
    size_t tot = 0;
    struct msg q[16];
    size_t have = 0;
    unsigned r = 9;
    while (tot < 3 * N * sizeof(struct msg)) {
        r = r * 1103515245 + 12345;
        struct pollfd p = {fdof(!dir), POLLIN, 0};
        if ((r >> 16 & 3) == 0)poll(&p, 1, 1000);
        ssize_t k = recv(fdof(!dir), (char*)q + have, sizeof q - have, (r >> 18 & 3) == 0 ? MSG_DONTWAIT : 0);
        if (k < 0 && errno == EAGAIN)continue;
        if (k <= 0) {
            err++;
            return 0;
        }
        tot += k;
        __sync_fetch_and_add(&moved, k);
        have += k;
        size_t i = 0;
        for (; (i + 1)*sizeof(struct msg) <= have; i++) {
            if (q[i].who < 0 || q[i].who > 2 || q[i].seq != next[q[i].who]++ ||
                q[i].pad[5] != (char)(q[i].who * 16 + (q[i].seq & 15))) {
                err++;
                return 0;
            }
        }
        memmove(q, &q[i], have - i * sizeof(struct msg));
        have -= i * sizeof(struct msg);
    }
    return 0;
}
int main()
{
    setvbuf(stdout, 0, _IOLBF, 0);
    pthread_t wt;
    pthread_create(&wt, 0, watch, 0);
    int bad = 0, n = 150;
    for (int i = 0; i < n; i++) {
        pairup(&a, &b);
        err = 0;
        pthread_t t[8];
        for (int d = 0; d < 2; d++) {
            for (int w = 0; w < 3; w++)pthread_create(&t[d * 4 + w], 0, sn, (void*)(long)(d << 4 | w));
            pthread_create(&t[d * 4 + 3], 0, rd, (void*)(long)d);
        }
        for (int k = 0; k < 8; k++)pthread_join(t[k], 0);
        bad += !!err;
        close(a);
        close(b);
    }
    printf("bad rounds %d\n", bad);
    return 0;
}
