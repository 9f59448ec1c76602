// sendfile of an O_DIRECT file; more than 2 GiB in one call. Plain: 65536; 2147479552 twice.
#include "t.h"
/* various */
static int a, b;
static void*rd(void*_)
{
    static char c[1 << 22];
    for (;;)if (recv(b, c, sizeof c, 0) <= 0)break;
    return 0;
}
int main()
{
    setvbuf(stdout, 0, _IOLBF, 0);
    ready2(&a, &b);
// O_DIRECT sendfile
    char name[] = "/var/tmp/rev.odirect-XXXXXX";
    int f = mkstemp(name);
    static char blk[1 << 20];
    write(f, blk, sizeof blk);
    close(f);
    f = open(name, O_RDONLY | O_DIRECT);
    unlink(name);
    extern ssize_t sendfile(int, int, off_t*, size_t);
    pthread_t t;
    pthread_create(&t, 0, rd, 0);
    if (f >= 0) {
        ssize_t r = sendfile(a, f, 0, 65536);
        printf("sendfile of an O_DIRECT file: %zd %s\n", r, r < 0 ? strerror(errno) : "");
    } else perror("odirect");
// sendmmsg > 4GiB, writev > 2 GiB
    static struct iovec v[1024];
    char*big = mmap(0, 8 << 20, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    for (int i = 0; i < 1024; i++) {
        v[i].iov_base = big;
        v[i].iov_len = (4 << 20) + (i == 0 ? 4096 : 0);
    }
    ssize_t r = writev(a, v, 1024);
    printf("blocking writev of 4 GiB + 4096: %zd\n", r);
    struct mmsghdr mm[2] = {0};
    mm[0].msg_hdr.msg_iov = v;
    mm[0].msg_hdr.msg_iovlen = 1024;
    mm[1].msg_hdr = mm[0].msg_hdr;
    int n = sendmmsg(a, mm, 1, 0);
    printf("sendmmsg of 4 GiB + 4096: %d, msg_len %u\n", n, mm[0].msg_len);
    _exit(0);
}
