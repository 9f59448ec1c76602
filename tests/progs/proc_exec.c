/* Connections and exec: inherited sockets, vfork, posix_spawn, system. */
#include "proc.h"
#include <linux/close_range.h>
#include <spawn.h>

extern char **environ;

static const char *self = "/proc/self/exe";

static void inherit(int fd) { MUST(fcntl(fd, F_SETFD, 0)); }

/* inetd: the connection becomes 0 and 1 of a program that knows nothing. */
static void inetd(int listener, const char *program, char **args)
{
    pid_t peer = client(ROUNDS, listener);
    int fd = answer(listener);
    pid_t child = MUST(fork());
    if (child == 0) {
        MUST(dup2(fd, 0));
        MUST(dup2(fd, 1));
        close(fd);
        execv(program, args);
        _exit(127);
    }
    close(fd);
    reap(child, "program");
    reap(peer, "client");
}

static void inetd_own(int listener) { inetd(listener, self, (char *[]){ "echo", "0", "echo", NULL }); }
static void inetd_cat(int listener) { inetd(listener, "/bin/cat", (char *[]){ "cat", NULL }); }

/* A new image goes on with a connection that has long been in use. */
static void exec_after(int listener)
{
    pid_t peer = client(ROUNDS, listener);
    pid_t server = MUST(fork());
    if (server == 0) {
        char number[16];
        int fd = answer(listener);
        serve(fd, 0, WARM);
        inherit(fd);
        snprintf(number, sizeof number, "%d", fd);
        execl(self, "resume", number, "resume", (char *)NULL);
        _exit(127);
    }
    reap(server, "server");
    reap(peer, "client");
}

/* The same through fork, with the forking process closing its own copy. */
static void fork_exec_after(int listener)
{
    pid_t peer = client(ROUNDS, listener);
    int fd = answer(listener);
    serve(fd, 0, WARM);
    pid_t child = MUST(fork());
    if (child == 0) {
        char number[16];
        inherit(fd);
        snprintf(number, sizeof number, "%d", fd);
        execl(self, "resume", number, "resume", (char *)NULL);
        _exit(127);
    }
    close(fd);
    reap(child, "program");
    reap(peer, "client");
}

/* exec of a close-on-exec connection is its close. */
static void exec_closes(int listener)
{
    pid_t peer = client(WARM, listener);
    pid_t server = MUST(fork());
    if (server == 0) {
        int fd = answer(listener);
        MUST(fcntl(fd, F_SETFD, FD_CLOEXEC));
        serve(fd, 0, WARM);
        char c;
        if (recv(fd, &c, 1, 0) != 0)
            _exit(5);
        execl("/bin/true", "true", (char *)NULL);
        _exit(127);
    }
    reap(server, "server");
    reap(peer, "client");
}

/* What Python's subprocess does: the child shares our memory while it rearranges and closes descriptors. */
static void vfork_close_range(int listener)
{
    pid_t peer = client(ROUNDS, listener);
    int fd = answer(listener), from = 0;
    for (int i = 0; i < 3; i++, from += WARM) {
        serve(fd, from, from + WARM);
        pid_t child = vfork();
        if (child == 0) {
            dup2(2, 1);
            close(fd);
            if (i == 1)
                close_range(3, ~0u, 0);
            if (i == 2)
                close_range(3, ~0u, CLOSE_RANGE_CLOEXEC);
            execl("/bin/true", "true", (char *)NULL);
            _exit(127);
        }
        MUST(child);
        reap(child, "child");
    }
    serve(fd, from, ROUNDS);
    finish(fd);
    reap(peer, "client");
}

static void spawning(int listener)
{
    pid_t peer = client(ROUNDS, listener), child;
    int fd = answer(listener);
    char *args[] = { "true", NULL }, line[32] = "";
    serve(fd, 0, WARM);
    if (posix_spawn(&child, "/bin/true", NULL, NULL, args, environ) != 0)
        die("posix_spawn");
    reap(child, "spawned");
    serve(fd, WARM, WARM + 20);
    int status = system("exit 3");
    report("system: %d", WEXITSTATUS(status));
    serve(fd, WARM + 20, WARM + 40);
    FILE *f = popen("echo hello", "r");
    if (!f || !fgets(line, sizeof line, f))
        die("popen");
    status = pclose(f);
    report("popen: %s", strtok(line, "\n"));
    report("pclose: %d", status);
    serve(fd, WARM + 40, ROUNDS);
    finish(fd);
    reap(peer, "client");
}

/* posix_spawn's own dup2 actions never pass through the dynamic symbol. */
static void spawn_cat(int listener)
{
    pid_t peer = client(ROUNDS, listener), child;
    int fd = answer(listener);
    char *args[] = { "cat", NULL };
    posix_spawn_file_actions_t actions;
    posix_spawn_file_actions_init(&actions);
    posix_spawn_file_actions_adddup2(&actions, fd, 0);
    posix_spawn_file_actions_adddup2(&actions, fd, 1);
    posix_spawn_file_actions_addclose(&actions, fd);
    if (posix_spawn(&child, "/bin/cat", &actions, NULL, args, environ) != 0)
        die("posix_spawn");
    posix_spawn_file_actions_destroy(&actions);
    close(fd);
    reap(child, "cat");
    reap(peer, "client");
}

static void exec_in_client(int listener)
{
    pid_t server = MUST(fork());
    if (server == 0) {
        int fd = answer(listener);
        serve(fd, 0, ROUNDS);
        finish(fd);
        _exit(0);
    }
    pid_t peer = MUST(fork());
    if (peer == 0) {
        char number[16];
        int fd = dial(port);
        talk(fd, 0, WARM);
        inherit(fd);
        snprintf(number, sizeof number, "%d", fd);
        execl(self, "talk-on", number, "talk-on", (char *)NULL);
        _exit(127);
    }
    reap(peer, "client");
    reap(server, "server");
}

int main(int argc, char **argv)
{
    static const struct scene scenes[] = {
        { "inetd-own", inetd_own }, { "inetd-cat", inetd_cat }, { "exec-after", exec_after },
        { "fork-exec-after", fork_exec_after }, { "exec-closes", exec_closes }, { "vfork-close-range", vfork_close_range },
        { "spawning", spawning }, { "spawn-cat", spawn_cat }, { "exec-in-client", exec_in_client }, { NULL, NULL } };
    if (argc > 2 && strcmp(argv[2], "echo") == 0) {
        echo_until_end(0, 1);
        return 0;
    }
    if (argc > 2 && strcmp(argv[2], "resume") == 0) {
        int fd = atoi(argv[1]);
        serve(fd, WARM, ROUNDS);
        finish(fd);
        return 0;
    }
    if (argc > 2 && strcmp(argv[2], "talk-on") == 0) {
        int fd = atoi(argv[1]);
        talk(fd, WARM, ROUNDS);
        MUST(shutdown(fd, SHUT_WR));
        finish(fd);
        return 0;
    }
    return play(argc, argv, scenes);
}
