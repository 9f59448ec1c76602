// An end that only sends shuts its receives before its first byte. Plain: 300 sends, 30000 bytes, the end.
#include "t.h"
static int a, b;
static void*reader(void*_)
{
    char c[4096];
    ssize_t r;
    long n = 0;
    while((r = recv(b, c, sizeof c, 0)) > 0)n += r;
    printf("the reader has %ld bytes, and then %zd %s\n", n, r, r < 0 ? strerror(errno) : "");
    return 0;
}
int main()
{
    char c[100] = {0};
    pthread_t t;
    int i;
    rescue();
    pairup(&a, &b);
    printf("shutdown %d\n", shutdown(a, SHUT_RD));
    pthread_create(&t, 0, reader, 0);
    for(i = 0; i < 300; i++) {
        ssize_t r = send(a, c, sizeof c, MSG_NOSIGNAL);
        if(r != sizeof c) {
            printf("send %d: %zd %s\n", i, r, r < 0 ? strerror(errno) : "");
            break;
        }
        ms(1);
    }
    printf("%d sends\n", i);
    fprintf(stderr, "# on ring: %d\n", tcpsent(a) < 30000);
    shutdown(a, SHUT_WR);
    pthread_join(t, 0);
    return 0;
}
