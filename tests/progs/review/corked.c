// TCP_CORK and MSG_MORE: a peer that sleeps gets the pieces together, at the end of the cork or after 200 ms. Plain: as printed.
#include "t.h"
static int a, b;
static volatile pid_t caller;
static ssize_t got[4];
static volatile double sent;
static int late, is_prompt;
static void*reads(void*_)
{
    static char buf[4096];
    caller = gettid();
    for (int i = 0; i < 4; i++)
        got[i] = recv(b, buf, sizeof buf, 0);
    late = now() - sent > 1;
    return 0;
}
static void cork(int on)
{
    setsockopt(a, IPPROTO_TCP, TCP_CORK, &on, sizeof on);
}
// Pieces that were put off for 200 ms go by themselves: it was no try if this thread got no processor between them.
static void begin(void)
{
    until_it_waits(&caller);
    sent = now();
}
static void end(void)
{
    is_prompt &= now() - sent < 0.15;
}
static void once(void)
{
    static char buf[4096];
    pthread_t t;
    int on = 1;
    ready2(&a, &b);
    caller = 0, is_prompt = 1;
    pthread_create(&t, 0, reads, 0);
    begin();
    cork(1);
    for (int i = 0; i < 3; i++)
        send(a, buf, 100, 0);
    cork(0);
    end();
    begin();
    send(a, buf, 10, MSG_MORE);
    send(a, buf, 20, MSG_MORE);
    send(a, buf, 30, 0);
    end();
    // TCP_NODELAY lets go, too.
    begin();
    cork(1);
    send(a, buf, 7, 0);
    setsockopt(a, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
    cork(0);
    end();
    // Nobody pulls it.
    begin();
    cork(1);
    send(a, buf, 9, 0);
    pthread_join(t, 0);
    close(a), close(b);
}
int main()
{
    setvbuf(stdout, 0, _IOLBF, 0);
    // What nobody lets go would be late each time.
    int tries = 0;
    do
        once();
    while ((!is_prompt || late) && ++tries < 10);
    for (int i = 0; i < 4; i++)
        printf("received %zd%s\n", got[i], i == 3 && late ? ", late" : "");
    return 0;
}
