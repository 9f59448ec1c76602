// A thread with unshare(CLONE_FILES) closes its copy. Plain: send 5 recv 5.
#include "t.h"
#include <sched.h>
/* thread with its own descriptor table: unshare(CLONE_FILES) */
static int a, b;
static void*th(void*_)
{
    if (unshare(CLONE_FILES))perror("unshare");
    close(a);
    ms(200);
    return 0;
}
int main()
{
    setvbuf(stdout, 0, _IOLBF, 0);
    ready2(&a, &b);
    pthread_t t;
    pthread_create(&t, 0, th, 0);
    ms(100);
    ssize_t r = send(a, "hello", 5, MSG_NOSIGNAL);
    char c[8];
    ms(20);
    ssize_t q = recv(b, c, 8, MSG_DONTWAIT);
    printf("after a thread with unshare(CLONE_FILES) closed its copy: send %zd recv %zd %s\n", r, q,
           q < 0 ? strerror(errno) : "");
    return 0;
}
