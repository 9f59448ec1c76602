// Every segment of a stream is signed with a key that both ends know (TCP-MD5, RFC 2385): it stays on TCP, also where the listener alone was told the key.
#include "t.h"
static int sign(int fd, struct sockaddr_in peer)
{
    struct tcp_md5sig key = {.tcpm_keylen = 6};
    peer.sin_port = 0;
    memcpy(&key.tcpm_addr, &peer, sizeof peer);
    memcpy(key.tcpm_key, "secret", 6);
    return setsockopt(fd, IPPROTO_TCP, TCP_MD5SIG, &key, sizeof key);
}
int main()
{
    struct sockaddr_in s = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t n = sizeof s;
    int l = socket(AF_INET, SOCK_STREAM, 0), b = socket(AF_INET, SOCK_STREAM, 0);
    bind(l, (void *)&s, n);
    if (sign(l, s) || sign(b, s)) {
        printf("no keys: %s\n", strerror(errno));
        return 0;
    }
    listen(l, 1);
    getsockname(l, (void *)&s, &n);
    if (connect(b, (void *)&s, n)) {
        printf("connect: %s\n", strerror(errno));
        return 0;
    }
    int a = accept(l, 0, 0);
    warmup(a, b);
    char big[9000] = {0};
    unsigned long long before[2] = {tcpsent(a), tcpsent(b)};
    send(a, big, sizeof big, 0);
    recv(b, big, sizeof big, MSG_WAITALL);
    send(b, big, sizeof big, 0);
    recv(a, big, sizeof big, MSG_WAITALL);
    printf("signed: %d %d\n", tcpsent(a) - before[0] >= sizeof big, tcpsent(b) - before[1] >= sizeof big);
    return 0;
}
