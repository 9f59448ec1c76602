// Connections that a child has over fork and exec, as a program that knows of none does, are over when the parent closes them. Plain: nothing.
#include "t.h"
int main()
{
    int a, b, first = 0;
    rescue();
    for(int i = 0; i < 40; i++) {
        pairup(&a, &b);
        warmup(a, b);
        int is = onring(a, b) && onring(b, a);
        if(i == 0)first = is;
        if(first && !is) {
            printf("connection %d stays on TCP\n", i);
            break;
        }
        pid_t p = fork();
        if(p == 0) {
            execl("/bin/true", "true", (char*)0);
            _exit(1);
        }
        int status;
        waitpid(p, &status, 0);
        if(status)printf("child %d: %x\n", i, status);
        char c = 7;
        if(send(a, &c, 1, 0) != 1 || recv(b, &c, 1, 0) != 1 || c != 7)printf("connection %d is broken\n", i);
        close(a);
        close(b);
    }
    fprintf(stderr, "# on ring: %d\n", first);
    printf("done\n");
    return 0;
}
