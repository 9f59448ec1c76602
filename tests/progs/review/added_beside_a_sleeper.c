// One thread sleeps in epoll_wait, another adds a connection there for each request and takes it out again, as proxies do
// with connections that are at rest. Nothing is told of one that has nothing to tell.
#include "t.h"
static int set, fd, idle, told;
static struct {
    int ready;
    pthread_mutex_t lock;
    pthread_cond_t news;
} event = {0, PTHREAD_MUTEX_INITIALIZER, PTHREAD_COND_INITIALIZER};
static void*sleeps(void*_)
{
    for (;;) {
        struct epoll_event e;
        char c;
        if (epoll_wait(set, &e, 1, -1) != 1)
            continue;
        int room = e.events & EPOLLOUT && send(fd, "x", 1, MSG_DONTWAIT) == 1;
        if (__atomic_load_n(&idle, __ATOMIC_SEQ_CST) || !room && recv(fd, &c, 1, MSG_PEEK | MSG_DONTWAIT) != 1) {
            told++;
            ms(1);
            continue;
        }
        epoll_ctl(set, EPOLL_CTL_DEL, fd, 0);
        pthread_mutex_lock(&event.lock);
        event.ready = 1;
        pthread_cond_signal(&event.news);
        pthread_mutex_unlock(&event.lock);
    }
}
static void answers(int c)
{
    char b;
    struct pollfd p = {.fd = c, .events = POLLIN};
    while (poll(&p, 1, -1) == 1 && read(c, &b, 1) == 1)
        if (b == '\n' && write(c, "HTTP/1.1 200 OK\r\n\r\n", 19) != 19)
            break;
    _exit(0);
}
static int is_there(void)
{
    while (!event.ready)
        pthread_cond_wait(&event.news, &event.lock);
    return event.ready--;
}
int main()
{
    int peer, status;
    pthread_t t;
    setvbuf(stdout, 0, _IOLBF, 0);
    pairup(&fd, &peer);
    pid_t child = fork();
    if (!child) {
        close(fd);
        answers(peer);
    }
    close(peer);
    set = epoll_create1(0);
    pthread_create(&t, 0, sleeps, 0);
    for (int round = 0; round < 60; round++) {
        char buf[64];
        struct epoll_event e = {EPOLLIN | EPOLLRDHUP};
        int got = 0;
        __atomic_store_n(&idle, 0, __ATOMIC_SEQ_CST);
        if (write(fd, "GET / HTTP/1.1 Host: localhost\n", 31) != 31)
            perror("write");
        pthread_mutex_lock(&event.lock);
        if (round)
            is_there();
        pthread_mutex_unlock(&event.lock);
        while (got < 19) {
            int r = read(fd, buf, 19 - got);
            if (r <= 0)
                perror("read");
            got += r;
        }
        __atomic_store_n(&idle, 1, __ATOMIC_SEQ_CST);
        epoll_ctl(set, EPOLL_CTL_ADD, fd, &e);
        ms(5);
    }
    printf("requests on one connection: told of nothing %d times\n", told);
    epoll_ctl(set, EPOLL_CTL_DEL, fd, 0);
    close(fd);
    waitpid(child, &status, 0);
    // One that has no room.
    static char big[65536];
    told = 0;
    ready2(&fd, &peer);
    for (int full = 0; full < 20; full++, ms(20))
        while (send(fd, big, sizeof big, MSG_DONTWAIT) > 0)
            full = 0;
    idle = 1;
    for (int round = 0; round < 30; round++) {
        struct epoll_event e = {EPOLLOUT};
        epoll_ctl(set, EPOLL_CTL_ADD, fd, &e);
        ms(10);
        epoll_ctl(set, EPOLL_CTL_DEL, fd, 0);
        ms(1);
    }
    printf("no room: told of nothing %d times\n", told);
    return 0;
}
