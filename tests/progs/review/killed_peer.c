// Peers that are killed, 300 ms later: what the first call says. Plain: all as the kernel does.
#include "t.h"
#include <sys/wait.h>
#include <sys/epoll.h>
#include <poll.h>
#include <sys/select.h>
#include <netinet/in.h>
#include <arpa/inet.h>
// u: bytes unread here; v: bytes unread at the peer.
static int mk(pid_t*pid, int unread_here, int unread_there)
{
    struct sockaddr_in at = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t l = sizeof at;
    int ls = socket(AF_INET, SOCK_STREAM, 0);
    bind(ls, (void*)&at, l);
    listen(ls, 1);
    getsockname(ls, (void*)&at, &l);
    int go[2];
    pipe(go);
    if(!(*pid = fork())) {
        int c = socket(AF_INET, SOCK_STREAM, 0);
        connect(c, (void*)&at, l);
        char b[64];
        for(int i = 0; i < 40; i++) {
            if(recv(c, b, 10, MSG_WAITALL) <= 0)_exit(0);
            send(c, b, 10, 0);
        }
        if(unread_here)send(c, b, 5, 0);
        write(go[1], "x", 1);
        for(;;)pause();
    }
    int s = accept(ls, 0, 0);
    close(ls);
    char b[64] = "";
    for(int i = 0; i < 40; i++) {
        send(s, b, 10, 0);
        recv(s, b, 10, MSG_WAITALL);
    }
    char x;
    read(go[0], &x, 1);
    close(go[0]);
    close(go[1]);
    if(unread_there)send(s, b, 7, 0);
    return s;
}
static void die(pid_t p)
{
    kill(p, SIGKILL);
    waitpid(p, 0, 0);
}
int main()
{
    setvbuf(stdout, 0, _IOLBF, 0);
    signal(SIGPIPE, SIG_IGN);
    for(int m = 0; m < 4; m++)for(int arm = 0; arm < 2; arm++) {
            int u = m & 1, v = m >> 1;
            pid_t p;
            int s;
            struct epoll_event e;
            for(int k = 0; k < 4; k++) {
                static const char*n[] = {"level", "edge", "oneshot", "in only"};
                s = mk(&p, u, v);
                int ep = epoll_create1(0);
                e.events = (k == 3 ? EPOLLIN | EPOLLRDHUP : EPOLLIN | EPOLLOUT | EPOLLRDHUP) | (k == 1 ? EPOLLET : k == 2 ? EPOLLONESHOT
                           : 0);
                epoll_ctl(ep, EPOLL_CTL_ADD, s, &e);
                if(arm && k != 2)epoll_wait(ep, &e, 1, 0);
                die(p);
                ms(300);
                e.events = 0;
                int r = epoll_wait(ep, &e, 1, 0);
                printf("u%d v%d armed %d epoll %s: %d %x\n", u, v, arm, n[k], r, e.events);
                close(ep);
                close(s);
            }
            s = mk(&p, u, v);
            die(p);
            ms(300);
            struct pollfd pf = {s, POLLIN | POLLOUT | POLLRDHUP, 0};
            int r = poll(&pf, 1, 0);
            printf("u%d v%d poll %d %x\n", u, v, r, pf.revents);
            close(s);
            s = mk(&p, u, v);
            die(p);
            ms(300);
            fd_set a, b, c;
            FD_ZERO(&a);
            FD_ZERO(&b);
            FD_ZERO(&c);
            FD_SET(s, &a);
            FD_SET(s, &b);
            FD_SET(s, &c);
            struct timeval tv = {0, 0};
            r = select(s + 1, &a, &b, &c, &tv);
            printf("u%d v%d select %d %d %d %d\n", u, v, r, !!FD_ISSET(s, &a), !!FD_ISSET(s, &b), !!FD_ISSET(s, &c));
            close(s);
            char buf[64];
            s = mk(&p, u, v);
            die(p);
            ms(300);
            ssize_t q = recv(s, buf, 64, 0);
            printf("u%d v%d recv %zd %s", u, v, q, q < 0 ? strerror(errno) : "");
            q = recv(s, buf, 64, 0);
            printf(", %zd %s\n", q, q < 0 ? strerror(errno) : "");
            close(s);
            s = mk(&p, u, v);
            die(p);
            ms(300);
            q = recv(s, buf, 64, MSG_DONTWAIT);
            printf("u%d v%d recv dontwait %zd %s", u, v, q, q < 0 ? strerror(errno) : "");
            q = recv(s, buf, 64, 0);
            printf(", %zd %s\n", q, q < 0 ? strerror(errno) : "");
            close(s);
            s = mk(&p, u, v);
            die(p);
            ms(300);
            q = send(s, buf, 6, 0);
            printf("u%d v%d send %zd %s", u, v, q, q < 0 ? strerror(errno) : "");
            ms(50);
            q = send(s, buf, 6, 0);
            printf(", %zd %s", q, q < 0 ? strerror(errno) : "");
            int er = 0;
            socklen_t l = 4;
            getsockopt(s, SOL_SOCKET, SO_ERROR, &er, &l);
            printf(" so_error %d\n", er);
            close(s);
            // A send, and what a receive says then.
            s = mk(&p, u, v);
            die(p);
            ms(300);
            q = send(s, buf, 6, 0);
            printf("u%d v%d send %zd %s", u, v, q, q < 0 ? strerror(errno) : "");
            ms(50);
            for(int i = 0; i < 3; i++) {
                q = recv(s, buf, 64, 0);
                printf(", recv %zd %s", q, q < 0 ? strerror(errno) : "");
            }
            q = send(s, buf, 6, 0);
            printf(", send %zd %s\n", q, q < 0 ? strerror(errno) : "");
            close(s);
            if(m)break;
        }
    return 0;
}
