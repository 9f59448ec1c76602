/*
 * orphans server PORT WORKERS CONNS    each worker serves that many connections; all of them are killed in the middle
 * orphans client PORT WORKERS CONNS    makes them
 *
 * The server is a master that forks its workers one after the other. When the first one has served, it says so and waits for
 * a line, or the end, on stdin: its connections can be looked at. When the last one is dead, it forks once more, says so and
 * stays.
 */
#include "common.h"
#include <sys/epoll.h>
#include <sys/wait.h>

enum { ROUNDS = 60, SIZE = 100 };

static void exchange(int fd, int is_server, int rounds)
{
    char buf[SIZE] = { 0 };
    for (int i = 0; i < rounds; i++) {
        if (is_server)
            recv_all(fd, buf, SIZE), send_all(fd, buf, SIZE);
        else
            send_all(fd, buf, SIZE), recv_all(fd, buf, SIZE);
    }
}

static void worker(int listener, int conns, int report)
{
    static int fds[1024];
    int set = MUST(epoll_create1(EPOLL_CLOEXEC));
    for (int i = 0; i < conns; i++) {
        struct epoll_event e = { .events = EPOLLIN };
        fds[i] = MUST(accept(listener, NULL, NULL));
        MUST(epoll_ctl(set, EPOLL_CTL_ADD, fds[i], &e));
        exchange(fds[i], 1, ROUNDS);
    }
    MUST(write(report, "", 1));
    for (;;)
        pause();
}

int main(int argc, char **argv)
{
    if (argc != 5)
        die("usage: orphans server|client PORT WORKERS CONNS");
    int port = atoi(argv[2]), workers = atoi(argv[3]), conns = atoi(argv[4]);
    limit_life(900);
    if (strcmp(argv[1], "client") == 0) {
        for (int w = 0; w < workers; w++) {
            static int fds[1024];
            for (int i = 0; i < conns; i++)
                exchange(fds[i] = dial(port), 0, ROUNDS);
            for (int i = 0; i < conns; i++) {
                char byte;
                /* The end, or a reset if something was under way. */
                if (recv(fds[i], &byte, 1, 0) > 0)
                    die("bytes from a dead worker");
                close(fds[i]);
            }
        }
        return 0;
    }
    int listener = listen_on(port), report[2];
    MUST(pipe(report));
    for (int w = 0; w < workers; w++) {
        pid_t pid = MUST(fork());
        if (pid == 0)
            worker(listener, conns, report[1]);
        char byte;
        if (MUST(read(report[0], &byte, 1)) != 1)
            die("no report");
        if (w == 0) {
            puts("served");
            fflush(stdout);
            (void)!read(0, &byte, 1);
        }
        kill(pid, SIGKILL);
        MUST(waitpid(pid, NULL, 0));
    }
    pid_t last = MUST(fork());
    if (last == 0)
        _exit(0);
    MUST(waitpid(last, NULL, 0));
    puts("over");
    fflush(stdout);
    for (;;)
        pause();
}
