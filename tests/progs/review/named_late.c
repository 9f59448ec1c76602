// A server forks and ends. Its child is kept from going on for a while (ptrace), as on a busy machine; meanwhile the client falls asleep, in each way, until the child sends.
#include "t.h"
#include <sys/ptrace.h>
static void serve(int l)
{
    char buf[600] = {0};
    int c = accept(l, 0, 0);
    for (int i = 0; i < 40; i++)
        if (recv(c, buf, 600, MSG_WAITALL) == 600) {
            // What the client asks of its sleep is spent on the last answer.
            if (i == 39)
                ms(20);
            send(c, buf, 600, 0);
        }
    recv(c, buf, 1, 0);
    if (fork())
        _exit(0);
    send(c, "1", 1, 0);
    recv(c, buf, 1, 0);
    ms(50);
    send(c, "2", 1, 0);
    _exit(0);
}
// Its child stands still from its first instruction on, and goes on 300 ms after it has ended.
static volatile int is_followed;
static void *hold(void *server)
{
    pid_t parent = *(pid_t *)server, child = 0, pid;
    int status, ended = 0;
    if (ptrace(PTRACE_SEIZE, parent, 0, PTRACE_O_TRACEFORK))
        perror("ptrace");
    is_followed = 1;
    while (!child || !ended) {
        pid = waitpid(-1, &status, __WALL);
        if (pid < 0)
            break;
        if (pid != parent)
            child = pid;
        else if (WIFEXITED(status) || WIFSIGNALED(status))
            ended = 1;
        else
            ptrace(PTRACE_CONT, pid, 0, status >> 16 ? 0 : WSTOPSIG(status));
    }
    is_followed = 0;
    ms(300);
    ptrace(PTRACE_DETACH, child, 0, 0);
    return 0;
}
static int sleep_in(int how, int c)
{
    struct pollfd p = {c, POLLIN};
    struct epoll_event e = {.events = EPOLLIN}, o = {0};
    struct timeval limit = {10, 0};
    fd_set set;
    int epfd, n;
    switch (how) {
    case 1:
        return poll(&p, 1, 10000);
    case 2:
        epfd = epoll_create1(0);
        epoll_ctl(epfd, EPOLL_CTL_ADD, c, &e);
        n = epoll_wait(epfd, &o, 1, 10000);
        close(epfd);
        return n;
    case 3:
        FD_ZERO(&set);
        FD_SET(c, &set);
        return select(c + 1, &set, 0, 0, &limit);
    }
    setsockopt(c, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof limit);
    return 1;
}
int main()
{
    static const char *const ways[] = {"recv", "poll", "epoll", "select"};
    for (int how = 0; how < 4; how++) {
        struct sockaddr_in s = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
        socklen_t n = sizeof s;
        int l = socket(AF_INET, SOCK_STREAM, 0);
        bind(l, (void *)&s, n);
        listen(l, 1);
        getsockname(l, (void *)&s, &n);
        pid_t server = fork();
        if (!server)
            serve(l);
        pthread_t t;
        pthread_create(&t, 0, hold, &server);
        while (!is_followed)
            ms(1);
        int c = socket(AF_INET, SOCK_STREAM, 0);
        connect(c, (void *)&s, n);
        char buf[600] = {0};
        for (int i = 0; i < 40; i++) {
            send(c, buf, 600, 0);
            recv(c, buf, 600, MSG_WAITALL);
        }
        send(c, "f", 1, 0);
        while (is_followed)
            ms(1);
        for (int i = 0; i < 2; i++) {
            int woken = sleep_in(how, c);
            n = recv(c, buf, 1, 0);
            printf("%s: woken %d, got %d %c\n", ways[how], woken, (int)n, n == 1 ? buf[0] : '-');
            send(c, "g", 1, 0);
        }
        close(c);
        close(l);
        pthread_join(t, 0);
    }
    return 0;
}
