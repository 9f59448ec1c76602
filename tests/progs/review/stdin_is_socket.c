// dup2(socket, 0) and fgets(stdin). Plain: "line one", "then line two".
#include "t.h"
int main()
{
    int a, b;
    setvbuf(stdout, 0, _IOLBF, 0);
    ready2(&a, &b);
    dup2(a, 0);
    send(b, "line one\nline two\n", 18, 0);
    ms(10);
    alarm(HANGS);
    char c[64] = {0};
    char*r = fgets(c, 64, stdin);
    printf("fgets(stdin) after dup2(socket,0): %s", r ? r : "(none)\n");
    r = fgets(c, 64, stdin);
    printf("then %s", r ? r : "(none)\n");
    return 0;
}
