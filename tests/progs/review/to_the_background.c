// A program goes to the background, as daemons do, with a connection that it has opened before: the parent exits behind its fork, or daemon(3) does both. Plain: done, done, then "0 0".
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
static int ends[2];
static void goes(int by_daemon)
{
    int a, b;
    char x = 1;
    pairup(&a, &b);
    // Too little for an upgrade, enough for both ends to be known.
    if(send(a, &x, 1, 0) != 1 || recv(b, &x, 1, 0) != 1)perror("first");
    pid_t program = getpid();
    if(by_daemon ? daemon(1, 1) : fork())exit(0);
    // Until the parent is gone.
    while(getppid() == program)ms(1);
    ms(50);
    x = rest(a, b);
    if(write(ends[1], &x, 1) != 1)perror("write");
    _exit(0);
}
// What was at one of the first three numbers is not what is there then.
static void leaves_stdio()
{
    int a, b;
    char x[2] = {1, 1};
    ready2(&a, &b);
    dup2(a, 0);
    close(a);
    daemon(1, 0);
    x[0] = recv(b, &x[0], 1, 0);
    x[1] = read(0, &x[1], 1);
    if(write(ends[1], x, 2) != 2)perror("write");
    _exit(0);
}
int main()
{
    rescue();
    if(pipe(ends)) {
        perror("pipe");
        return 1;
    }
    for(int by_daemon = 0; by_daemon < 2; by_daemon++) {
        if(fork() == 0)goes(by_daemon);
        char x = 2;
        wait(0);
        if(read(ends[0], &x, 1) != 1)perror("read");
        printf("%s\n", x == 0 ? "done" : x == 1 ? "what it had opened stays on TCP" : "it has ended");
    }
    if(fork() == 0)leaves_stdio();
    char x[2] = {2, 2};
    wait(0);
    if(read(ends[0], x, 2) != 2)perror("read");
    printf("%d %d\n", x[0], x[1]);
    return 0;
}
