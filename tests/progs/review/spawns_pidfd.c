// pidfd_spawn and pidfd_spawnp, of glibc 2.39: a program that inherits a connection has it as plain TCP.
// With -DSTAND_IN -shared: the two functions for an older libc, to be preloaded behind the library.
#include "t.h"
#include <spawn.h>
#include <dlfcn.h>
extern char **environ;
typedef int spawn_fn(int *, const char *, const void *, const void *, char *const[], char *const[]);
#ifdef STAND_IN
// libc's own function, not the one that stands before it.
static int spawn(const char *name, int *pidfd, const char *path, const void *actions, const void *attributes, char *const args[], char *const env[])
{
    spawn_fn *own = (spawn_fn *)dlsym(dlopen("libc.so.6", RTLD_LAZY), name);
    int child, r = own(&child, path, actions, attributes, args, env);
    if (r == 0)
        *pidfd = syscall(SYS_pidfd_open, child, 0);
    return r;
}
int pidfd_spawn(int *pidfd, const char *path, const void *a, const void *b, char *const args[], char *const env[])
{
    return spawn("posix_spawn", pidfd, path, a, b, args, env);
}
int pidfd_spawnp(int *pidfd, const char *path, const void *a, const void *b, char *const args[], char *const env[])
{
    return spawn("posix_spawnp", pidfd, path, a, b, args, env);
}
#else
int main()
{
    setvbuf(stdout, 0, _IOLBF, 0);
    rescue();
    for (int search = 0; search < 2; search++) {
        int a, b, pidfd = -1;
        ready2(&a, &b);
        char text[100], answer[20] = {0}, *args[] = {"sh", "-c", text, 0};
        sprintf(text, "read line <&%d; echo got $line >&%d", a, a);
        // The first there is, as a program that is linked with it has it.
        spawn_fn *spawn = (spawn_fn *)dlsym(RTLD_DEFAULT, search ? "pidfd_spawnp" : "pidfd_spawn");
        int r = spawn ? spawn(&pidfd, search ? "sh" : "/bin/sh", 0, 0, args, environ) : -1;
        printf("spawned: %d\n", r);
        close(a);
        send(b, "hello\n", 6, 0);
        recv(b, answer, 10, MSG_WAITALL);
        siginfo_t info = {0};
        waitid(3 /* P_PIDFD */, pidfd, &info, WEXITED);
        printf("%sand ended with %d\n", answer, info.si_status);
        close(b);
    }
    return 0;
}
#endif
