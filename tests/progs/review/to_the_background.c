// A program goes to the background, as daemons do, with a connection that it has opened before: the parent exits behind its fork. Plain: done.
#include "t.h"
// What is left of the program has both ends alone.
static int rest(int a, int b)
{
    int c, d;
    pairup(&c, &d);
    warmup(c, d);
    int is_new = onring(c, d) && onring(d, c), is_old = 0;
    for(int i = 0; i < 50 && !is_old; i++) {
        warmup(a, b);
        is_old = onring(a, b) && onring(b, a);
    }
    fprintf(stderr, "# on ring: %d %d\n", is_new, is_old);
    return is_new && !is_old;
}
int main()
{
    int ends[2];
    rescue();
    if(pipe(ends)) {
        perror("pipe");
        return 1;
    }
    pid_t p = fork();
    if(p == 0) {
        int a, b;
        char x = 1;
        pairup(&a, &b);
        // Too little for an upgrade, enough for both ends to be known.
        if(send(a, &x, 1, 0) != 1 || recv(b, &x, 1, 0) != 1)perror("first");
        pid_t program = getpid();
        if(fork() == 0) {
            // Until the parent is gone.
            while(getppid() == program)ms(1);
            ms(50);
            x = rest(a, b);
            if(write(ends[1], &x, 1) != 1)perror("write");
            _exit(0);
        }
        exit(0);
    }
    int status;
    waitpid(p, &status, 0);
    close(ends[1]);
    char x = 2;
    if(read(ends[0], &x, 1) != 1)perror("read");
    printf("%s\n", x == 0 ? "done" : x == 1 ? "what it had opened stays on TCP" : "it has ended");
    return 0;
}
