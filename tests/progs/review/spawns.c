// Programs are spawned by one thread while another one reads or writes a connection that they inherit: it is not for them, and goes on.
// Plain: twelve times "all 15000000 bytes, 0"
#include "t.h"
#include <spawn.h>
extern char **environ;
static int a, b;
static volatile int over;
static void *spawns(void *v)
{
    char *args[] = {"true", 0};
    for (int n = 0; !over && n < 60; n++) {
        pid_t p = -1;
        int s;
        switch ((long)v) {
        case 0:
            posix_spawn(&p, "/bin/true", 0, 0, args, environ);
            break;
        case 1:
            p = vfork();
            if (p == 0) {
                execv("/bin/true", args);
                _exit(1);
            }
            break;
        case 2:
            p = fork();
            if (p == 0) {
                execv("/bin/true", args);
                _exit(1);
            }
        }
        waitpid(p, &s, 0);
        if (s)
            printf("spawned program: %x\n", s);
    }
    return 0;
}
static int sends(void)
{
    char c[5000];
    for (int i = 0; i < 3000; i++) {
        memset(c, i, sizeof c);
        for (int done = 0; done < sizeof c;) {
            int k = send(a, c + done, sizeof c - done, MSG_NOSIGNAL);
            if (k <= 0)
                return 1;
            done += k;
        }
    }
    shutdown(a, SHUT_WR);
    return 0;
}
static int receives(void)
{
    char c[5000];
    long all = 0;
    int n;
    while ((n = recv(b, c, sizeof c, 0)) > 0) {
        for (int i = 0; i < n; i++)
            if (c[i] != (char)((all + i) / 5000))
                return printf("byte %ld is wrong\n", all + i), 1;
        all += n;
    }
    printf("all %ld bytes, %d\n", all, n);
    return 0;
}
int main(void)
{
    setvbuf(stdout, 0, _IOLBF, 0);
    for (int i = 0; i < 12; i++) {
        // Which end spawns, and how.
        int at = i & 1, bad, s;
        pthread_t t;
        struct sockaddr_in n = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
        socklen_t len = sizeof n;
        int l = socket(AF_INET, SOCK_STREAM, 0);
        bind(l, (void *)&n, len);
        listen(l, 1);
        getsockname(l, (void *)&n, &len);
        pid_t p = fork();
        if (p == 0) {
            b = accept(l, 0, 0);
            close(l);
            if (at)
                pthread_create(&t, 0, spawns, (void *)(long)(i / 2 % 3));
            bad = receives();
            over = 1;
            if (at)
                pthread_join(t, 0);
            fflush(stdout);
            _exit(bad);
        }
        close(l);
        a = socket(AF_INET, SOCK_STREAM, 0);
        connect(a, (void *)&n, len);
        over = 0;
        if (!at)
            pthread_create(&t, 0, spawns, (void *)(long)(i / 2 % 3));
        bad = sends();
        over = 1;
        if (!at)
            pthread_join(t, 0);
        waitpid(p, &s, 0);
        if (bad || s)
            printf("sender %d receiver %x\n", bad, s);
        close(a);
    }
}
