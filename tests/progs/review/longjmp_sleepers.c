// siglongjmp out of a blocked send, then a blocked recv. Plain: cpu below 0.3 s: yes.
#include "t.h"
static int a, b;
static jmp_buf j;
static void h(int s)
{
    siglongjmp(j, 1);
}
static void *sendlater(void*_)
{
    ms(1500);
    send(b, "x", 1, 0);
    return 0;
}
int main()
{
    setvbuf(stdout, 0, _IOLBF, 0);
    ready2(&a, &b);
    signal(SIGALRM, h);
    static char big[32 << 20];
    char buf[1 << 16];
    if(!sigsetjmp(j, 1)) {
        ualarm(200000, 0);
        send(a, big, sizeof big, 0);
    }
// now drain everything at b
    while(recv(b, buf, sizeof buf, MSG_DONTWAIT) > 0 || ({ms(5); recv(b, buf, sizeof buf, MSG_DONTWAIT) > 0;}));
    for(int i = 0; i < 3; i++) {
        send(b, "y", 1, 0);
        recv(a, buf, 1, 0);
    }
    pthread_t t;
    pthread_create(&t, 0, sendlater, 0);
    double c0 = cpu(), s = now();
    ssize_t r = recv(a, buf, 1, 0);
    printf("after longjmp out of a blocked send: recv %zd, cpu below 0.3 s: %s\n", r, cpu() - c0 < 0.3 ? "yes" : "no");
    fprintf(stderr, "# %.2f s, cpu %.2f\n", now() - s, cpu() - c0);
    pthread_join(t, 0);
// longjmp out of blocked recv, then blocked send
    if(!sigsetjmp(j, 1)) {
        ualarm(200000, 0);
        recv(a, buf, 1, 0);
    }
    send(b, "z", 1, 0);
    ms(10);
    printf("recv after longjmp %zd\n", recv(a, buf, 1, 0));
    c0 = cpu();
    pthread_create(&t, 0, sendlater, 0);
    s = now();
    r = recv(a, buf, 1, 0);
    printf("after longjmp out of a blocked recv: recv %zd, cpu below 0.3: %s\n", r, cpu() - c0 < .3 ? "yes" : "no");
    pthread_join(t, 0);
    return 0;
}
