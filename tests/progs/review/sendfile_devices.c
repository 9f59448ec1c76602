// sendfile from what is no file: devices that can be sought are sent from (Linux 6.0), all else is refused as the kernel does it. What comes is what was sent.
#include "t.h"
#include <sys/sendfile.h>
#include <sys/eventfd.h>
static int a, b;
static void from(const char *what, int in, off_t at, int n)
{
    off_t place = at;
    errno = 0;
    long r = sendfile(a, in, at < 0 ? 0 : &place, n);
    printf("%s at %ld: %ld %s", what, (long)at, r, r < 0 ? strerrorname_np(errno) : "");
    if (at >= 0)
        printf(", then at %ld", (long)place);
    char c[5000];
    long zeros = 0, got = 0;
    while (r > 0 && got < r) {
        long k = recv(b, c, r - got < sizeof c ? r - got : sizeof c, 0);
        if (k <= 0)
            break;
        for (int i = 0; i < k; i++)
            zeros += c[i] == 0;
        got += k;
    }
    if (r > 0)
        printf(", %ld come, %s", got, zeros == got ? "zeros" : "not only zeros");
    // Nothing of it is left anywhere, and the connection is whole.
    char x[6] = {0}, y[6] = {0};
    send(a, "whole", 5, MSG_NOSIGNAL);
    recv(b, x, 5, MSG_WAITALL);
    send(b, "whole", 5, MSG_NOSIGNAL);
    recv(a, y, 5, MSG_WAITALL);
    printf(", and %s %s\n", x, y);
}
int main()
{
    setvbuf(stdout, 0, _IOLBF, 0);
    rescue();
    ready2(&a, &b);
    struct timeval limit = {20, 0};
    setsockopt(a, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof limit);
    setsockopt(b, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof limit);
    int ends[2], pair[2];
    pipe(ends);
    socketpair(AF_UNIX, SOCK_STREAM, 0, pair);
    write(ends[1], "in the pipe", 11);
    send(pair[1], "in the socket", 13, 0);
    int zero = open("/dev/zero", O_RDONLY);
    from("/dev/zero", zero, -1, 7000);
    from("/dev/zero", zero, 0, 100);
    from("/dev/zero", zero, 77, 100);
    from("/dev/zero", zero, -1, 0);
    from("/dev/urandom", open("/dev/urandom", O_RDONLY), -1, 3000);
    from("/dev/urandom", open("/dev/urandom", O_RDONLY), 9, 3000);
    from("/dev/null", open("/dev/null", O_RDONLY), -1, 100);
    from("write only", open("/dev/zero", O_WRONLY), -1, 100);
    from("a directory", open("/", O_RDONLY), -1, 100);
    from("a pipe", ends[0], -1, 5);
    from("a pipe", ends[0], 3, 5);
    from("a Unix socket", pair[0], -1, 5);
    from("a counter", eventfd(5, 0), -1, 8);
    from("a set", epoll_create1(0), -1, 8);
    from("itself", a, -1, 8);
    from("nothing", -1, -1, 8);
    return 0;
}
