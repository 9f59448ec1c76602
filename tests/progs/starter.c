/* starter PROGRAM: starts it in each way that there is, with the way's name as its argument. */
#define _GNU_SOURCE
#include <fcntl.h>
#include <libgen.h>
#include <spawn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

extern char **environ;
static const char *program, *name;

static char *own[] = { "A=1", "PATH=/bin", NULL };

#define WORDS(way) (char *[]){ (char *)name, way, NULL }

static void by_execve(char *way) { execve(program, WORDS(way), environ); }
static void by_own_environment(char *way) { execve(program, WORDS(way), own); }
static void by_execv(char *way) { execv(program, WORDS(way)); }
static void by_execvp(char *way) { execvp(name, WORDS(way)); }
static void by_execvpe(char *way) { execvpe(name, WORDS(way), own); }
static void by_execl(char *way) { execl(program, name, way, "2", "3", "4", "5", "6", "7", "8", NULL); }
static void by_execlp(char *way) { execlp(name, name, way, NULL); }
static void by_execle(char *way) { execle(program, name, way, "2", "3", "4", "5", "6", NULL, own); }

static void by_fexecve(char *way)
{
    int fd = open(program, O_RDONLY | O_CLOEXEC);
    fexecve(fd, WORDS(way), environ);
}

static void by_execveat(char *way)
{
    char copy[4096];
    strcpy(copy, program);
    int folder = open(dirname(copy), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    syscall(SYS_execveat, folder, name, WORDS(way), own, 0);
}

static void by_relative(char *way)
{
    char copy[4096];
    strcpy(copy, program);
    if (chdir(dirname(copy)) == 0)
        execve(name, WORDS(way), environ);
}

static void by_vfork(char *way)
{
    int status;
    pid_t child = vfork();
    if (child == 0) {
        execve(program, WORDS(way), environ);
        _exit(127);
    }
    waitpid(child, &status, 0);
    _exit(WEXITSTATUS(status));
}

static void spawned(int failed, pid_t child)
{
    int status;
    if (failed)
        _exit(100 + failed);
    waitpid(child, &status, 0);
    _exit(WEXITSTATUS(status));
}

static void by_spawn(char *way)
{
    pid_t child;
    int failed = posix_spawn(&child, program, NULL, NULL, WORDS(way), own);
    spawned(failed, child);
}

static void by_spawnp(char *way)
{
    pid_t child;
    posix_spawn_file_actions_t actions;
    posix_spawn_file_actions_init(&actions);
    posix_spawn_file_actions_addopen(&actions, 0, "/dev/null", O_RDONLY, 0);
    int failed = posix_spawnp(&child, name, &actions, NULL, WORDS(way), environ);
    spawned(failed, child);
}

static void by_system(char *way)
{
    char line[4200];
    snprintf(line, sizeof line, "exec %s %s", program, way);
    _exit(WEXITSTATUS(system(line)));
}

static void by_none(char *way)
{
    if (execvp("no-such-program", WORDS(way)) == -1 && execve("/no/such", WORDS(way), own) == -1 &&
        execl("/no/such", "a", NULL) == -1)
        _exit(0);
}

#define WAY(name) { #name, by_##name }
static const struct {
    char *name;
    void (*start)(char *);
} ways[] = {
    WAY(execve), WAY(own_environment), WAY(execv), WAY(execvp), WAY(execvpe), WAY(execl), WAY(execlp), WAY(execle),
    WAY(fexecve), WAY(execveat), WAY(relative), WAY(vfork), WAY(spawn), WAY(spawnp), WAY(system), WAY(none),
};

int main(int argc, char **argv)
{
    char folder[4096], path[8192];
    if (argc != 2)
        return 2;
    program = argv[1];
    name = strrchr(program, '/') + 1;
    strcpy(folder, program);
    snprintf(path, sizeof path, "/nowhere:%s:/bin:/usr/bin", dirname(folder));
    setenv("PATH", path, 1);
    for (size_t i = 0; i < sizeof ways / sizeof *ways; i++) {
        int status;
        pid_t child = fork();
        if (child == 0) {
            ways[i].start(ways[i].name);
            _exit(99);
        }
        waitpid(child, &status, 0);
        if (status != 0)
            printf("%s: status %x\n", ways[i].name, status), fflush(stdout);
    }
    printf("done\n");
    return 0;
}
