// dup2(socket, 1) and printf on an upgraded connection. Plain: peer receives 17 hello from stdio.
#include "t.h"
int main()
{
    int a, b;
    ready2(&a, &b);
    int keep = dup(1);
    dup2(a, 1);
    printf("hello from stdio\n");
    fflush(stdout);
    dup2(keep, 1);
    char c[64] = {0};
    struct pollfd p = {b, POLLIN, 0};
    poll(&p, 1, HANGS * 1000);
    ssize_t r = recv(b, c, 63, MSG_DONTWAIT);
    printf("printf after dup2(socket,1): peer receives %zd %s\n", r, r < 0 ? strerror(errno) : strtok(c, "\n"));
    fflush(stdout);
    return 0;
}
