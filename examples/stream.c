/* A stream of rsockets and its echo. cc stream.c -lshortwire_rsocket */
#include <arpa/inet.h>
#include <rdma/rsocket.h>
#include <stdio.h>
#include <sys/wait.h>
#include <unistd.h>

int main(void)
{
	struct sockaddr_in address = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
	socklen_t length = sizeof address;
	char text[64];
	ssize_t n;

	int listener = rsocket(AF_INET, SOCK_STREAM, 0);
	if (rbind(listener, (struct sockaddr *)&address, length) || rlisten(listener, 1) ||
	    rgetsockname(listener, (struct sockaddr *)&address, &length))
		return perror("rlisten"), 1;

	pid_t child = fork();
	if (!child) {
		int stream = raccept(listener, NULL, NULL);
		while ((n = rrecv(stream, text, sizeof text, 0)) > 0)
			rsend(stream, text, n, 0);
		rclose(stream);
		return 0;
	}

	int stream = rsocket(AF_INET, SOCK_STREAM, 0);
	if (rconnect(stream, (struct sockaddr *)&address, length))
		return perror("rconnect"), 1;
	rsend(stream, "there and back", 14, 0);
	n = rrecv(stream, text, 14, MSG_WAITALL);
	printf("%.*s\n", (int)n, text);
	rclose(stream);
	return waitpid(child, NULL, 0) < 0;
}
