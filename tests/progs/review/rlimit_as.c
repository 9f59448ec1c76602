// RLIMIT_AS of 2000 MB, one connection, then malloc. Plain: more than 1500 MB: yes.
#include "t.h"
int main()
{
    int a, b;
    setvbuf(stdout, 0, _IOLBF, 0);
    struct rlimit r = {2000l << 20, 2000l << 20};
    setrlimit(RLIMIT_AS, &r);
    ready2(&a, &b);
    size_t n = 0;
    while (malloc(16 << 20))n += 16;
    printf("RLIMIT_AS 2000 MB: malloc gets more than 1500 MB: %s\n", n > 1500 ? "yes" : "no");
    fprintf(stderr, "# %zu MB\n", n);
    return 0;
}
