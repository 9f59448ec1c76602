// Over ism bytes are copied by the rights of ptrace: a process that gives up its user, its capabilities, being dumpable, its user
// namespace, or the rest of the files, keeps its connections; so does a child that does. Plain: eight times "60 and 60, end 0 peer 0"
#include "t.h"
#include <grp.h>
#include <sched.h>
#include <sys/prctl.h>
#include <linux/capability.h>
static int a;
static pid_t peer;
static void echoes(int user)
{
    int l = socket(AF_INET, SOCK_STREAM, 0);
    struct sockaddr_in s = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t n = sizeof s;
    bind(l, (void *)&s, n);
    listen(l, 1);
    getsockname(l, (void *)&s, &n);
    if (user && !getuid()) {
        setgroups(0, 0);
        setgid(user);
        setuid(user);
        prctl(PR_SET_DUMPABLE, 1);
    }
    peer = fork();
    if (peer == 0) {
        int b = accept(l, 0, 0), k;
        char c[5000];
        close(l);
        while ((k = read(b, c, sizeof c)) > 0)
            if (write(b, c, k) != k)
                _exit(1);
        _exit(k < 0);
    }
    close(l);
    a = socket(AF_INET, SOCK_STREAM, 0);
    connect(a, (void *)&s, n);
}
static int trips(void)
{
    char c[1000];
    for (int i = 0; i < 60; i++) {
        memset(c, i, sizeof c);
        if (send(a, c, sizeof c, MSG_NOSIGNAL) != sizeof c || recv(a, c, sizeof c, MSG_WAITALL) != sizeof c || c[999] != i)
            return i;
    }
    return 60;
}
static void give_up(int what)
{
    struct __user_cap_header_struct h = {_LINUX_CAPABILITY_VERSION_3, 0};
    struct __user_cap_data_struct none[2] = {{0}};
    // landlock_ruleset_attr: writing to files
    unsigned long long rules[1] = {2};
    switch (what) {
    case 0:
        setuid(12345);
        break;
    case 1:
    case 2:
        prctl(PR_SET_DUMPABLE, 0);
        break;
    case 3:
        syscall(SYS_capset, &h, none);
        break;
    case 4:
        unshare(CLONE_NEWUSER);
        break;
    case 5:
        prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0);
        syscall(SYS_landlock_restrict_self, syscall(SYS_landlock_create_ruleset, rules, sizeof rules, 0), 0);
        break;
    case 6:
        if (fork() == 0) {
            setuid(12345);
            _exit(trips() != 60);
        }
        wait(0);
        break;
    }
}
int main(void)
{
    setvbuf(stdout, 0, _IOLBF, 0);
    for (int what = 0; what < 8; what++) {
        if (fork() == 0) {
            int s;
            char c;
            echoes(what == 2 ? 65534 : 0);
            printf("%d and ", trips());
            give_up(what);
            printf("%d, ", trips());
            shutdown(a, SHUT_WR);
            printf("end %zd ", recv(a, &c, 1, 0));
            waitpid(peer, &s, 0);
            printf("peer %d\n", WEXITSTATUS(s));
            fflush(stdout);
            _exit(0);
        }
        wait(0);
    }
}
