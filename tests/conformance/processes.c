/* Connections and other processes: fork, vfork, spawn, exec of programs that are preloaded, static, or change user; streams. */
#include "frame.h"
#include "run.h"
#include <spawn.h>
#include <sys/auxv.h>
#include <sys/stat.h>

extern char **environ;

/* The other roles of this program: what stands behind an exec. */
int role_main(int argc, char **argv)
{
    char buf[64];
    if (argc != 3)
        die("no role %s", argc > 1 ? argv[1] : "");
    int fd = atoi(argv[2]), n;
    if (strcmp(argv[1], "echo") == 0) {
        while ((n = MUST(read(fd, buf, sizeof buf))) > 0)
            MUST(write(fd == 0 ? 1 : fd, buf, n));
        return getauxval(AT_SECURE) ? 7 : 0;
    }
    die("no role %s", argv[1]);
    return 1;
}

/* Lines out, the same lines back: the other process has the connection. */
static void lines(int n)
{
    for (int i = 0; i < n; i++) {
        struct reply r = ask('t', 20, 0);
        if (r.value != 20)
            say("round %d: %ld bytes come back", i, r.value);
    }
    say("the peer ends: %ld", ask('T', 0, 0).value);
}

static const char *numbered(int fd)
{
    static char text[16];
    snprintf(text, sizeof text, "%d", fd);
    return text;
}

static void exec_as(int fd, const char *program)
{
    MUST(fcntl(fd, F_SETFD, 0));
    pid_t child = fork();
    if (child == 0) {
        execl(program, "conformance", "echo", numbered(fd), (char *)NULL);
        _exit(127);
    }
    close(fd);
    lines(20);
    reap(child, "program");
}

CASE(exec_preloaded) { exec_as(fresh(), self_path()); }

CASE(exec_static)
{
    const char *program = getenv("CONFORMANCE_STATIC");
    if (!program || access(program, X_OK) < 0)
        skip_rest("no static program: libc.a is not installed");
    exec_as(fresh(), program);
}

CASE(exec_setuid)
{
    char path[200], buf[1 << 16];
    const char *dir = getenv("TMPDIR");
    snprintf(path, sizeof path, "%s/conformance-%d", dir ? dir : "/tmp", getpid());
    int in = MUST(open("/proc/self/exe", O_RDONLY)), out = MUST(open(path, O_WRONLY | O_CREAT | O_EXCL, 0755)), n;
    while ((n = read(in, buf, sizeof buf)) > 0)
        if (write(out, buf, n) != n)
            die("copy");
    close(in);
    int r = fchown(out, 65534, 65534) < 0 || fchmod(out, 06755) < 0;
    close(out);
    if (r) {
        unlink(path);
        skip_rest("only root can make a program that changes user");
    }
    exec_as(fresh(), path);
    unlink(path);
}

/* Unread bytes are the next program's. */
CASE(exec_with_unread)
{
    int fd = fresh();
    MUST(fcntl(fd, F_SETFD, 0));
    pid_t child = fork();
    if (child == 0) {
        nap(30);
        execl(self_path(), "conformance", "echo", numbered(fd), (char *)NULL);
        _exit(127);
    }
    close(fd);
    lines(20);
    reap(child, "program");
}

CASE(exec_close_on_exec)
{
    int fd = fresh();
    MUST(fcntl(fd, F_SETFD, FD_CLOEXEC));
    pid_t child = fork();
    if (child == 0) {
        put(fd, 10, 0);
        execl("/bin/true", "true", (char *)NULL);
        _exit(127);
    }
    close(fd);
    peer_reads_to_end();
    reap(child, "program");
}

CASE(exec_fails)
{
    int fd = fresh();
    MUST(fcntl(fd, F_SETFD, 0));
    char *args[] = { "nothing", NULL };
    R(execv("/no/such/program", args));
    R(execve("/etc/passwd", args, environ));
    tell('w', 5);
    R(take(fd, 5, 0));
    R(put(fd, 5, 0));
    say("the peer reads %ld", tell('r', 5));
}

/* What is to be its descriptor is named before it has carried a byte. */
CASE_PLAN(spawn_named_early, STAYS_TCP)
{
    int fd = cold();
    posix_spawn_file_actions_t actions;
    pid_t child;
    char *args[] = { "conformance", "echo", "0", NULL };
    MUST(fcntl(fd, F_SETFD, FD_CLOEXEC));
    posix_spawn_file_actions_init(&actions);
    posix_spawn_file_actions_adddup2(&actions, fd, 0);
    posix_spawn_file_actions_adddup2(&actions, fd, 1);
    warm_slot(0);
    say("spawned %d", posix_spawn(&child, self_path(), &actions, NULL, args, environ));
    close(fd);
    lines(20);
    reap(child, "program");
}

static void spawn_as(int fd, int to_stdio)
{
    posix_spawn_file_actions_t actions;
    pid_t child;
    posix_spawn_file_actions_init(&actions);
    if (to_stdio) {
        posix_spawn_file_actions_adddup2(&actions, fd, 0);
        posix_spawn_file_actions_adddup2(&actions, fd, 1);
        posix_spawn_file_actions_addclose(&actions, fd);
    } else {
        MUST(fcntl(fd, F_SETFD, 0));
    }
    char number[16], *args[] = { "conformance", "echo", number, NULL };
    snprintf(number, sizeof number, "%d", to_stdio ? 0 : fd);
    say("spawned %d", posix_spawn(&child, self_path(), &actions, NULL, args, environ));
    close(fd);
    lines(20);
    reap(child, "program");
}

CASE(spawn_inherits) { spawn_as(fresh(), 0); }
CASE(spawn_as_stdio) { spawn_as(fresh(), 1); }

CASE(spawn_others)
{
    int fd = fresh();
    pid_t child;
    char *args[] = { "true", NULL };
    say("spawn %d", posix_spawnp(&child, "true", NULL, NULL, args, environ));
    reap(child, "true");
    say("system %d", system("exit 3") >> 8);
    FILE *f = popen("echo hello", "r");
    char line[20] = "";
    say("popen %s", f && fgets(line, sizeof line, f) ? strtok(line, "\n") : "fails");
    say("pclose %d", pclose(f));
    tell('w', 5);
    R(take(fd, 5, 0));
    R(put(fd, 5, 0));
    say("the peer reads %ld", tell('r', 5));
}

CASE(vfork_closes)
{
    int fd = fresh();
    for (int i = 0; i < 3; i++) {
        pid_t child = vfork();
        if (child == 0) {
            if (i)
                close(fd);
            if (i == 2)
                close_range(3, 700, 0);
            _exit(0);
        }
        reap(child, "child");
        tell('w', 5);
        R(take(fd, 5, 0));
        R(put(fd, 5, 0));
        say("the peer reads %ld", tell('r', 5));
    }
}

CASE(vfork_execs)
{
    int fd = fresh();
    MUST(fcntl(fd, F_SETFD, 0));
    pid_t child = vfork();
    if (child == 0) {
        execl(self_path(), "conformance", "echo", numbered(fd), (char *)NULL);
        _exit(127);
    }
    close(fd);
    lines(20);
    reap(child, "program");
}

/* Parent and child take turns on one connection, each reading a part of what came. */
CASE(fork_turns)
{
    int fd = fresh(), mine[2], yours[2];
    char c = 0;
    /* Over verbs bytes unread at the fork may stay away (differences.txt): this limit ends the wait for them. */
    limit_life(10);
    MUST(pipe(mine));
    MUST(pipe(yours));
    tell('w', 60);
    pid_t child = fork();
    if (child == 0) {
        for (int i = 0; i < 3; i++) {
            (void)!read(yours[0], &c, 1);
            from_peer[0] = from_subject[0] = i * 20 + 10;
            say("child: recv %s", result(take(fd, 10, 0)));
            say("child: send %s", result(put(fd, 10, 0)));
            (void)!write(mine[1], &c, 1);
        }
        _exit(0);
    }
    for (int i = 0; i < 3; i++) {
        from_peer[0] = from_subject[0] = i * 20;
        say("parent: recv %s", result(take(fd, 10, 0)));
        say("parent: send %s", result(put(fd, 10, 0)));
        (void)!write(yours[1], &c, 1);
        (void)!read(mine[0], &c, 1);
    }
    reap(child, "child");
    say("the peer reads %ld", tell('r', 60));
    look(fd, "in the end");
}

CASE(fork_then_child_closes)
{
    int fd = fresh();
    for (int i = 0; i < 3; i++) {
        pid_t child = fork();
        if (child == 0) {
            if (i == 0)
                close(fd);
            if (i == 1)
                exit(0);
            _exit(0);
        }
        reap(child, "child");
        look(fd, "afterwards");
        tell('w', 5);
        R(take(fd, 5, 0));
    }
    R(put(fd, 5, 0));
    say("the peer reads %ld", tell('r', 5));
}

CASE(fork_then_parent_closes)
{
    int fd = fresh();
    pid_t child = fork();
    if (child == 0) {
        nap(20);
        when_asleep('w', 5, 0);
        say("child: recv %s", result(take(fd, 10, 0)));
        say("child: send %s", result(put(fd, 10, 0)));
        _exit(0);
    }
    close(fd);
    reap(child, "child");
    peer_reads_to_end();
}

/* The shutdown of one is the end for both. */
CASE(fork_then_child_shuts)
{
    int fd = fresh();
    pid_t child = fork();
    if (child == 0) {
        shutdown(fd, SHUT_WR);
        _exit(0);
    }
    reap(child, "child");
    on(SIGPIPE, count_hit, 0);
    outcome("send", put(fd, 5, 0));
    peer_reads_to_end();
    tell('w', 5);
    R(take(fd, 5, 0));
}

/* A child that is killed holds nothing any more: the parent's close is the last, and a reset if it is to be one. */
CASE(fork_killed_then_reset)
{
    int fd = fresh();
    struct linger now = { 1, 0 };
    pid_t child = fork();
    if (child == 0) {
        R(put(fd, 10, 0));
        kill(getpid(), SIGKILL);
    }
    reap(child, "child");
    say("the peer reads %ld", ask('r', 10, 0).value);
    MUST(setsockopt(fd, SOL_SOCKET, SO_LINGER, &now, sizeof now));
    close(fd);
    peer_reads_to_end();
}

static void talk_on(int fd, const char *who, int rounds)
{
    for (int i = 0; i < 4; i++) {
        put(fd, 10, 0);
        ask('r', 10, 0);
        tell('w', 100);
        say("%s %d, %d: %s", who, rounds, i, result(take(fd, 100, MSG_WAITALL)));
    }
}

/* The other process may come in at any step of an upgrade, also between the two ends of one. */
CASE_PLAN(fork_at_any_step, STAYS_TCP)
{
    int was = settings.warm;
    /* Where two processes share memory already, others are upgraded through it. */
    settings.warm = 40;
    fresh_slot(1);
    for (int rounds = 0; rounds < 24; rounds++) {
        settings.warm = rounds / 2;
        int fd = fresh();
        /* Half a round trip more is another step. */
        if (rounds % 2) {
            tell('w', 3);
            take(fd, 3, MSG_WAITALL);
        }
        pid_t child = fork();
        if (child == 0) {
            talk_on(fd, "child", rounds);
            _exit(0);
        }
        reap(child, "child");
        /* What the child has moved. */
        from_subject[0] += 4 * 10;
        from_peer[0] += 4 * 100;
        talk_on(fd, "parent", rounds);
        close(fd);
    }
    settings.warm = was;
}

CASE(fork_blocked_in_both)
{
    int fd = fresh();
    pid_t child = fork();
    if (child == 0) {
        char c;
        _exit(recv(fd, &c, 1, 0) == 1 ? 0 : 9);
    }
    nap(20);
    /* Two bytes, one for each. */
    when_asleep('V', 1, 1);
    char c;
    R(recv(fd, &c, 1, 0));
    reap(child, "child");
}

/* Streams on a connection. */
static void stream(int fd)
{
    FILE *f = fdopen(fd, "r+");
    char line[64];
    say("number is the same %d", f && fileno(f) == fd);
    setvbuf(f, NULL, _IOLBF, 0);
    for (int i = 0; i < 20; i++) {
        fprintf(f, "line %d\n", i);
        fflush(f);
        ask('E', 0, 0);
        if (!fgets(line, sizeof line, f))
            strcpy(line, "nothing\n");
        if (i % 7 == 0)
            say("back comes %.*s", (int)strcspn(line, "\n"), line);
    }
    ask('s', SHUT_WR, 0);
    say("end %d", fgetc(f) == EOF && feof(f));
    say("closed %d", fclose(f));
    peer_reads_to_end();
}

CASE_PLAN(stdio_from_the_start, STAYS_TCP) { stream(cold()); }
CASE(stdio_late) { stream(fresh()); }

CASE(stdio_getline_and_dprintf)
{
    int fd = fresh(), copy = MUST(dup(fd));
    char *line = NULL;
    size_t room = 0;
    for (int i = 0; i < 5; i++) {
        R(dprintf(fd, "number %d\n", i));
        ask('E', 0, 0);
        char c[10] = "";
        recv_all(fd, c, 9);
        say("%.8s", c);
    }
    FILE *f = fdopen(copy, "r");
    dprintf(fd, "last\n");
    ask('E', 0, 0);
    R(getline(&line, &room, f));
    say("%.4s", line);
    R(fclose(f));
    R(close(fd));
    peer_reads_to_end();
}
