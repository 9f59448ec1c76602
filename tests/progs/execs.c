/*
 * execs
 *
 * Starts a shell by each of the functions with as many arguments as the program likes, by more of them than there are
 * registers for. The shell prints what has come.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#define TEXT "echo \"$0 $# $* $WORD\""
#define MANY "1", "2", "3", "4", "5", "6", "7", "8", "9", "10", "11", "12", (char *)NULL

int main(void)
{
    static const char *const names[] = { "execl", "execlp", "execle" };
    char *const environment[] = { "WORD=told", NULL };
    setenv("PATH", "/nowhere:/bin:/usr/bin", 1);
    setenv("WORD", "own", 1);
    for (int i = 0; i < 3; i++) {
        pid_t child = vfork();
        if (child == 0) {
            switch (i) {
            case 0: execl("/bin/sh", "sh", "-c", TEXT, "execl", MANY); break;
            case 1: execlp("sh", "sh", "-c", TEXT, "execlp", MANY); break;
            case 2: execle("/bin/sh", "sh", "-c", TEXT, "execle", MANY, environment); break;
            }
            _exit(1);
        }
        int status = 0;
        if (child < 0 || waitpid(child, &status, 0) != child || status != 0) {
            fprintf(stderr, "%s: %d\n", names[i], status);
            return 1;
        }
    }
    dprintf(1, "%s %d %.1f\n", "dprintf", 7, 2.5);
    return 0;
}
