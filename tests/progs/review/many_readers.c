// Several threads are inside recv on one socket when it is upgraded; no byte may come twice, be lost or be a doorbell.
// Plain: 20 times "all 1001500 bytes".
#include "t.h"
static int a, b, got;
static void *reads(void *v)
{
    char c[700];
    for (;;) {
        int n = recv(b, c, sizeof c, 0);
        if (n < 0)
            printf("recv: %s\n", strerror(errno));
        if (n <= 0)
            return 0;
        for (int i = 0; i < n; i++)
            if (c[i] != 5)
                printf("byte %d is %d\n", i, c[i]);
        __sync_fetch_and_add(&got, n);
    }
}
int main(void)
{
    for (int round = 0; round < 20; round++) {
        pthread_t t[4];
        char c[700];
        memset(c, 5, sizeof c);
        got = 0;
        pairup(&a, &b);
        for (int i = 0; i < 4; i++)
            pthread_create(&t[i], 0, reads, 0);
        for (int i = 0; i < 3000; i++) {
            int n = 1 + i % 700;
            for (int done = 0; done < n;) {
                int k = send(a, c + done, n - done, 0);
                if (k < 0)
                    return perror("send"), 1;
                done += k;
            }
        }
        shutdown(a, SHUT_WR);
        for (int i = 0; i < 4; i++)
            pthread_join(t[i], 0);
        printf("all %d bytes\n", got);
        close(a);
        close(b);
    }
}
