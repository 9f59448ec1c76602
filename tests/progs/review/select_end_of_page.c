// The same with the fd_set at the end of a mapping. Plain: 1.
#include "t.h"
int main()
{
    int a, b;
    setvbuf(stdout, 0, _IOLBF, 0);
    ready2(&a, &b);
    size_t page = sysconf(_SC_PAGESIZE);
    fd_set*r = mmap(0, 2 * page, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    munmap((char*)r + page, page);
    r = (fd_set*)((char*)r + page - sizeof(fd_set));
    FD_ZERO(r);
    FD_SET(b, r);
    send(a, "x", 1, 0);
    struct timeval tv = {1, 0};
    int n = select(getdtablesize(), r, 0, 0, &tv);
    printf("fd_set at the end of a mapping: %d %s\n", n, n < 0 ? strerror(errno) : "");
    return 0;
}
