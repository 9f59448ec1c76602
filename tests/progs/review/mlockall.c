// As root: mlockall(MCL_FUTURE), one connection. Plain: below 100 MB: yes.
#include "t.h"
static long rss()
{
    char b[4096];
    int f = open("/proc/self/status", 0);
    int n = read(f, b, 4095);
    b[n] = 0;
    close(f);
    char*p = strstr(b, "VmRSS:");
    return atol(p + 6) / 1024;
}
int main()
{
    int a, b;
    setvbuf(stdout, 0, _IOLBF, 0);
    long r0 = rss();
    double s = now();
    if (mlockall(MCL_CURRENT | MCL_FUTURE))perror("mlockall");
    ready2(&a, &b);
    printf("one connection after mlockall: resident memory below 100 MB: %s\n", rss() < 100 ? "yes" : "no");
    fprintf(stderr, "# VmRSS %ld -> %ld MB, %.1f s\n", r0, rss(), now() - s);
    return 0;
}
