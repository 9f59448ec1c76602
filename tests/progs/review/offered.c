// A connection to a process that is known is offered when it opens. What becomes of it when one of the two changes its user, or the
// client dissolves it, right behind the first response: no byte is lost, garbled, or somebody else's.
// Plain: user of the client 80 80 80; user of the server 80 80 80; dissolved: to C 100, first 10; a child has it 40 40; idle 40
#include "../common.h"
#include <pthread.h>
#include <sys/prctl.h>

enum { SIZE = 100, KNOWN = 40, IDLE = 40 };

static struct sockaddr_in at;

static int dial_at(int port)
{
    int fd = MUST(socket(AF_INET, SOCK_STREAM, 0));
    struct timeval patience = { 30, 0 };
    at.sin_port = htons(port);
    MUST(connect(fd, (void *)&at, sizeof at));
    MUST(setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof patience));
    return fd;
}

/* Requests that came back right. */
static int ask(int fd, char first, int requests)
{
    char sent[SIZE], came[SIZE];
    for (int i = 0; i < requests; i++) {
        memset(sent, first + i % 20, SIZE);
        memset(came, 0, SIZE);
        if (send(fd, sent, SIZE, MSG_NOSIGNAL) != SIZE)
            return i;
        for (ssize_t n, got = 0; got < SIZE; got += n)
            if ((n = recv(fd, came + got, SIZE - got, 0)) <= 0)
                return i;
        if (memcmp(sent, came, SIZE) != 0)
            return i;
    }
    return requests;
}

/* Answers one connection to its end: 'q' is answered by nothing, '!' changes the user, '%' leaves the rest to a child. */
static void serve(int fd)
{
    char b[SIZE];
    for (;;) {
        for (ssize_t n, got = 0; got < SIZE; got += n)
            if ((n = recv(fd, b + got, SIZE - got, 0)) <= 0) {
                close(fd);
                return;
            }
        if (b[0] == 'q') {
            nap(300);
            continue;
        }
        send(fd, b, SIZE, MSG_NOSIGNAL);
        if (b[0] == '!') {
            nap(20);
            MUST(seteuid(geteuid()));
        }
        if (b[0] == '%') {
            if (MUST(fork()) == 0) {
                serve(fd);
                _exit(0);
            }
            close(fd);
            return;
        }
    }
}

static void *serve_in_thread(void *fd)
{
    serve((int)(long)fd);
    return NULL;
}

static int server(void)
{
    int listener = MUST(socket(AF_INET, SOCK_STREAM, 0));
    at.sin_port = 0;
    MUST(bind(listener, (void *)&at, sizeof at));
    MUST(listen(listener, 64));
    int port = port_of(listener);
    if (MUST(fork()) == 0) {
        MUST(prctl(PR_SET_PDEATHSIG, SIGKILL));
        signal(SIGCHLD, SIG_IGN);
        for (;;) {
            int fd = answer(listener);
            pthread_t t;
            pthread_create(&t, NULL, serve_in_thread, (void *)(long)fd);
            pthread_detach(t);
        }
    }
    close(listener);
    return port;
}

int main(void)
{
    at.sin_family = AF_INET;
    at.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    limit_life(600);
    int s = server(), c = server(), first = dial_at(s), second = dial_at(c);
    ask(first, 'A', KNOWN);
    ask(second, 'A', KNOWN);

    printf("user of the client");
    for (int i = 0; i < 3; i++) {
        int fd = dial_at(s), right = ask(fd, 'A', 1);
        MUST(seteuid(geteuid()));
        printf(" %d", right + ask(fd, 'B', 79));
        close(fd);
        ask(first, 'A', KNOWN);
    }

    printf("; user of the server");
    for (int i = 0; i < 3; i++) {
        int x = dial_at(s), others[4], right = 0;
        ask(x, '!', 1);
        nap(50);
        for (int k = 0; k < 4; k++)
            ask(others[k] = dial_at(s), 'A' + k, 30);
        close(x);
        nap(50);
        for (int k = 0; k < 4; k++) {
            right += ask(others[k], 'A' + k, 20);
            close(others[k]);
        }
        printf(" %d", right);
    }

    ask(first, 'A', KNOWN);
    int x = dial_at(s);
    char q[2 * SIZE];
    memset(q, 'q', sizeof q);
    MUST(send(x, q, sizeof q, 0));
    nap(50);
    struct sockaddr nowhere = { .sa_family = AF_UNSPEC };
    MUST(connect(x, &nowhere, sizeof nowhere));
    at.sin_port = htons(c);
    MUST(connect(x, (void *)&at, sizeof at));
    int right = ask(x, 'A', 100);
    printf("; dissolved: to C %d, first %d", right, ask(first, 'A', 10));
    close(x);

    printf("; a child has it");
    for (int i = 0; i < 2; i++) {
        int fd = dial_at(s), came = ask(fd, '%', 1);
        printf(" %d", came + ask(fd, 'A', 39));
        close(fd);
    }

    int idle[IDLE];
    for (int i = 0; i < IDLE; i++)
        idle[i] = dial_at(s);
    for (right = 0; right < IDLE && ask(idle[right], 'A', 12) == 12; right++)
        ;
    printf("; idle %d\n", right);
    return 0;
}
