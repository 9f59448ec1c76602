// A connection to itself, and a line of its input: for a C library that Shortwire is not for.
#include <arpa/inet.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

int main(void)
{
    struct sockaddr_in at = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t len = sizeof at;
    int listener = socket(AF_INET, SOCK_STREAM, 0), client = socket(AF_INET, SOCK_STREAM, 0);
    if (bind(listener, (struct sockaddr *)&at, len) || listen(listener, 1) ||
        getsockname(listener, (struct sockaddr *)&at, &len) || connect(client, (struct sockaddr *)&at, len))
        return 1;
    int server = accept(listener, 0, 0);
    char line[100], echo[100] = "";
    if (!fgets(line, sizeof line, stdin))
        return 2;
    for (int i = 0; i < 100; i++) {
        if (send(client, line, strlen(line), 0) < 0 || recv(server, echo, sizeof echo, 0) < 0 ||
            send(server, echo, strlen(echo), 0) < 0 || recv(client, echo, sizeof echo, 0) < 0)
            return 3;
    }
    printf("%s", echo);
    return 7;
}
