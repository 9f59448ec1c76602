// RLIMIT_FSIZE of 1 MiB set before the upgrade (or ulimit -f 1024). Plain: alive after the upgrade.
#include "t.h"
int main()
{
    int a, b;
    setvbuf(stdout, 0, _IOLBF, 0);
    pairup(&a, &b);
    char c;
    send(a, "x", 1, 0);
    recv(b, &c, 1, 0);
    struct rlimit r = {1 << 20, 1 << 20};
    setrlimit(RLIMIT_FSIZE, &r);
    warmup(a, b);
    printf("alive after the upgrade\n");
    return 0;
}
