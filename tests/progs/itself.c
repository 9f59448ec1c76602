/*
 * itself [again | gone]   opens, looks at and executes its own file by the names that /proc has for it, and prints what
 *                         it got: the same as without anything in between. gone: the same of a file that it has unlinked
 */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

/* Not every libc has the headers of it. */
struct open_how {
    uint64_t flags, mode, resolve;
};
#ifndef SYS_openat2
#define SYS_openat2 437
#endif
enum { NO_XDEV = 1, NO_MAGICLINKS = 2, NO_SYMLINKS = 4, BENEATH = 8, IN_ROOT = 16 };

static struct stat own;

static const char *which(int ok, ino_t inode)
{
    return !ok ? strerror(errno) : inode == own.st_ino ? "own" : "another";
}

static void opened(const char *how, int fd)
{
    struct stat st = { 0 };
    int saved = errno;
    if (fd >= 0)
        fstat(fd, &st);
    errno = saved;
    printf("%s: %s", how, which(fd >= 0, st.st_ino));
    if (fd >= 0) {
        char mark[4] = { 0 };
        int n = read(fd, mark, sizeof mark);
        printf(" flags %x %x, %s", fcntl(fd, F_GETFL), fcntl(fd, F_GETFD), n < 0 ? strerror(errno) : mark + 1);
        close(fd);
    }
    printf("\n");
}

static void started(const char *how, int folder, const char *path, int flags)
{
    int status;
    fflush(stdout);
    pid_t child = fork();
    if (!child) {
        char *words[] = { "itself", "again", NULL };
        if (folder == -1)
            execv(path, words);
        else
            syscall(SYS_execveat, folder, path, words, environ, flags);
        printf("%s: %s\n", how, strerror(errno));
        fflush(stdout);
        _exit(3);
    }
    waitpid(child, &status, 0);
    printf("%s: %d\n", how, WEXITSTATUS(status));
}

int main(int argc, char **argv)
{
    char numbered[64], link[PATH_MAX] = { 0 };
    if (argc > 1 && !strcmp(argv[1], "again"))
        return printf("again\n") < 0;
    if (argc > 1) {
        unlink(argv[0]);
        printf("open: %s\n", open("/proc/self/exe", O_RDONLY) < 0 ? strerror(errno) : "done");
        readlink("/proc/self/exe", link, sizeof link);
        printf("name ends in (deleted): %d\n", strstr(link, " (deleted)") != NULL);
        return 0;
    }
    if (stat(argv[0], &own))
        return 1;
    snprintf(numbered, sizeof numbered, "/proc/%d/exe", getpid());
    const char *names[] = { "/proc/self/exe", "/proc/thread-self/exe", numbered };
    static const struct {
        const char *name;
        int flags;
    } ways[] = {
        { "read", O_RDONLY }, { "cloexec", O_RDONLY | O_CLOEXEC }, { "nonblock", O_RDONLY | O_NONBLOCK },
        { "path", O_PATH }, { "path for writing", O_PATH | O_RDWR }, { "link", O_RDONLY | O_NOFOLLOW },
        { "path of link", O_PATH | O_NOFOLLOW | O_CLOEXEC | O_DIRECTORY }, { "write", O_WRONLY }, { "both", O_RDWR },
        { "cut", O_RDONLY | O_TRUNC }, { "append", O_WRONLY | O_APPEND }, { "make", O_RDONLY | O_CREAT },
        { "make new", O_WRONLY | O_CREAT | O_EXCL }, { "folder", O_RDONLY | O_DIRECTORY },
    };
    for (int i = 0; i < 3; i++)
        for (size_t k = 0; k < sizeof ways / sizeof *ways; k++) {
            opened(ways[k].name, syscall(SYS_openat, AT_FDCWD, names[i], ways[k].flags, 0644));
            opened(ways[k].name, syscall(SYS_open, names[i], ways[k].flags, 0644));
        }
    opened("creat", syscall(SYS_creat, names[0], 0600));
    int self = open("/proc/self", O_RDONLY | O_DIRECTORY), proc = open("/proc", O_PATH), root = open("/", O_PATH);
    opened("from self", openat(self, "exe", O_RDONLY));
    opened("from proc", openat(proc, "self/exe", O_RDONLY));
    opened("from root", openat(root, "/proc/self/exe", O_RDONLY));
    opened("from nothing", openat(-7, "exe", O_RDONLY));
    static const unsigned limits[] = { 0, NO_XDEV, NO_MAGICLINKS, NO_SYMLINKS, BENEATH, IN_ROOT };
    for (size_t i = 0; i < sizeof limits / sizeof *limits; i++) {
        struct open_how how = { .flags = O_RDONLY | O_CLOEXEC, .resolve = limits[i] };
        opened("openat2", syscall(SYS_openat2, root, "/proc/self/exe", &how, sizeof how));
    }
    struct open_how wrong = { .flags = O_RDONLY, .mode = 0644 };
    opened("mode", syscall(SYS_openat2, AT_FDCWD, names[0], &wrong, sizeof wrong));
    opened("short", syscall(SYS_openat2, AT_FDCWD, names[0], &wrong, 8));
    opened("no name", syscall(SYS_openat, AT_FDCWD, NULL, O_RDONLY));
    opened("bad name", syscall(SYS_openat, AT_FDCWD, (char *)-1, O_RDONLY));

    struct stat st;
    uint64_t more[32]; /* A struct statx, with the number of the file in its fifth word. */
    for (int i = 0; i < 3; i++) {
        int r = stat(names[i], &st);
        printf("stat: %s\n", which(r == 0, st.st_ino));
        r = syscall(SYS_stat, names[i], &st);
        printf("by number: %s\n", which(r == 0, st.st_ino));
        r = syscall(SYS_statx, AT_FDCWD, names[i], 0, 0x100, more);
        printf("statx: %s\n", which(r == 0, more[4]));
        r = lstat(names[i], &st);
        printf("lstat: %s, link %d\n", which(r == 0, st.st_ino), S_ISLNK(st.st_mode));
        printf("access: %d %d %d\n", access(names[i], R_OK), access(names[i], X_OK),
               faccessat(self, "exe", R_OK, AT_EACCESS));
        ssize_t n = readlink(names[i], link, sizeof link);
        printf("readlink: %d\n", n > 0 && !stat(link, &st) && st.st_ino == own.st_ino);
    }
    printf("short link: %zd\n", readlink(names[0], link, 3));

    started("execve", -1, names[0], 0);
    started("numbered", -1, "/proc/thread-self/exe", 0);
    started("execveat", AT_FDCWD, names[0], 0);
    started("execveat from self", proc, "self/exe", 0);
    started("execveat of a link", AT_FDCWD, names[0], AT_SYMLINK_NOFOLLOW);
    int fd = open(names[0], O_PATH | O_CLOEXEC);
    started("fexecve", fd, "", AT_EMPTY_PATH);
    return 0;
}
