// Both ends of a connection are made in one process, and a fork divides them between parent and child; again and again, so that
// later connections have the buffers of earlier ones, which a child was the last to close. Plain: 0 of 200 stall.
#include "t.h"
static int bounced(int from)
{
    char c;
    return send(from, "z", 1, 0) == 1 && recv(from, &c, 1, 0) == 1 && c == 'z';
}
static void child(int fd)
{
    char c;
    while (recv(fd, &c, 1, 0) == 1)
        if (send(fd, &c, 1, 0) != 1)
            _exit(1);
    close(fd);
    _exit(0);
}
int main()
{
    int stalled = 0;
    for (int i = 0; i < 200; i++) {
        int a, b, status, rounds = 0;
        pairup(&a, &b);
        warmup(a, b);
        pid_t p = fork();
        if (!p) {
            close(b);
            child(a);
        }
        close(a);
        struct timeval limit = {5, 0};
        setsockopt(b, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof limit);
        while (rounds < 100 && bounced(b))
            rounds++;
        close(b);
        waitpid(p, &status, 0);
        stalled += rounds < 100 || status != 0;
    }
    printf("%d of 200 stall\n", stalled);
    return 0;
}
