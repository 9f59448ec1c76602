/* Calls every function of the header once with success. Prints what does not hold. */
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <rdma/rsocket.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>

static int wrong;

#define HOLDS(what) \
	do { \
		if (!(what)) { \
			printf("line %d: not %s (errno %d)\n", __LINE__, #what, errno); \
			wrong = 1; \
		} \
	} while (0)

/* Both ends in one thread: c is connected to s. */
static void stream(int *c, int *s)
{
	struct sockaddr_in6 at = { 0 }, name = { 0 };
	socklen_t len = sizeof at;
	struct pollfd entry;
	int one = 1, error = -1;
	int l = rsocket(AF_INET6, SOCK_STREAM, 0);

	at.sin6_family = AF_INET6;
	at.sin6_addr = in6addr_loopback;
	HOLDS(rbind(l, (struct sockaddr *) &at, sizeof at) == 0);
	HOLDS(rgetsockname(l, (struct sockaddr *) &at, &len) == 0 && at.sin6_port != 0);
	HOLDS(rlisten(l, 1) == 0);
	*c = rsocket(AF_INET6, SOCK_STREAM, 0);
	HOLDS(rsetsockopt(*c, SOL_RDMA, RDMA_IOMAPSIZE, &one, sizeof one) == 0);
	HOLDS(rfcntl(*c, F_SETFL, O_NONBLOCK) == 0);
	HOLDS(rconnect(*c, (struct sockaddr *) &at, sizeof at) == -1 && errno == EINPROGRESS);
	len = sizeof name;
	*s = raccept(l, (struct sockaddr *) &name, &len);
	HOLDS(*s >= 0);
	entry.fd = *c;
	entry.events = POLLOUT;
	HOLDS(rpoll(&entry, 1, -1) == 1 && entry.revents == POLLOUT);
	len = sizeof error;
	HOLDS(rgetsockopt(*c, SOL_SOCKET, SO_ERROR, &error, &len) == 0 && error == 0);
	HOLDS(rfcntl(*c, F_SETFL, 0) == 0 && (rfcntl(*c, F_GETFL) & O_NONBLOCK) == 0);
	len = sizeof name;
	HOLDS(rgetpeername(*c, (struct sockaddr *) &name, &len) == 0 && name.sin6_port == at.sin6_port);
	HOLDS(rclose(l) == 0);
}

static void data(int c, int s)
{
	char a[4] = "", b[4] = "";
	struct iovec out[2] = { { "ab", 2 }, { "cde", 3 } }, in[2] = { { a, 3 }, { b, 2 } };
	struct msghdr message = { 0 };
	struct timeval now = { 0, 0 };
	struct sockaddr_in6 from;
	socklen_t len = sizeof from;
	fd_set readable, writable;

	FD_ZERO(&readable);
	FD_ZERO(&writable);
	FD_SET(s, &readable);
	FD_SET(s, &writable);
	HOLDS(rselect(s + 1, &readable, &writable, NULL, &now) == 1);
	HOLDS(!FD_ISSET(s, &readable) && FD_ISSET(s, &writable));
	HOLDS(rwritev(c, out, 2) == 5);
	FD_SET(s, &readable);
	HOLDS(rselect(s + 1, &readable, NULL, NULL, NULL) == 1 && FD_ISSET(s, &readable));
	HOLDS(rrecv(s, a, 3, MSG_PEEK | MSG_WAITALL) == 3 && memcmp(a, "abc", 3) == 0);
	HOLDS(rreadv(s, in, 2) == 5 && memcmp(a, "abc", 3) == 0 && memcmp(b, "de", 2) == 0);
	message.msg_iov = out;
	message.msg_iovlen = 2;
	HOLDS(rsendmsg(s, &message, 0) == 5);
	message.msg_iov = in;
	HOLDS(rrecvmsg(c, &message, MSG_WAITALL) == 5 && memcmp(b, "de", 2) == 0);
	HOLDS(rwrite(c, "x", 1) == 1 && rread(s, a, 4) == 1 && a[0] == 'x');
	HOLDS(rsendto(c, "y", 1, 0, NULL, 0) == 1);
	HOLDS(rrecvfrom(s, a, 4, 0, (struct sockaddr *) &from, &len) == 1 && a[0] == 'y');
	HOLDS(rrecv(s, a, 4, MSG_DONTWAIT) == -1 && errno == EAGAIN);
}

static void sets(int c, int s)
{
	struct epoll_event event = { EPOLLIN | EPOLLET, { .fd = s } };
	char byte[4];
	int set = repoll_create(EPOLL_CLOEXEC);

	HOLDS(set >= 0 && repoll_ctl(set, EPOLL_CTL_ADD, s, &event) == 0);
	HOLDS(repoll_wait(set, &event, 1, 0) == 0);
	HOLDS(rsend(c, "set", 3, 0) == 3);
	HOLDS(repoll_wait(set, &event, 1, -1) == 1 && event.data.fd == s && event.events == EPOLLIN);
	HOLDS(repoll_wait(set, &event, 1, 0) == 0);
	HOLDS(rrecv(s, byte, 4, 0) == 3);
	HOLDS(repoll_ctl(set, EPOLL_CTL_DEL, s, NULL) == 0);
	HOLDS(repoll_ctl(set, EPOLL_CTL_MOD, s, &event) == -1 && errno == ENOENT);
	HOLDS(rclose(set) == 0);
}

/* s maps, c writes: the peer of a map gives it room by RDMA_IOMAPSIZE. */
static void direct(int c, int s)
{
	char byte[4];
	char *map = mmap(NULL, 8192, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

	HOLDS(riomap(s, map, 8192, PROT_WRITE, 0, 4096) == 4096);
	HOLDS(rsend(s, "map", 3, 0) == 3 && rrecv(c, byte, 4, 0) == 3);
	HOLDS(riowrite(c, "direct", 6, 4096 + 100, 0) == 6);
	HOLDS(rsend(c, "!", 1, 0) == 1 && rrecv(s, byte, 4, 0) == 1);
	HOLDS(memcmp(map + 100, "direct", 6) == 0);
	HOLDS(riounmap(s, map, 8192) == 0);
}

static void datagrams(void)
{
	struct sockaddr_in at = { 0 };
	socklen_t len = sizeof at;
	char byte[4];
	int a = rsocket(AF_INET, SOCK_DGRAM, 0), b = rsocket(AF_INET, SOCK_DGRAM, 0);

	at.sin_family = AF_INET;
	at.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
	HOLDS(rbind(a, (struct sockaddr *) &at, sizeof at) == 0);
	HOLDS(rgetsockname(a, (struct sockaddr *) &at, &len) == 0);
	HOLDS(rsendto(b, "dgm", 3, 0, (struct sockaddr *) &at, len) == 3);
	HOLDS(rrecvfrom(a, byte, 4, 0, (struct sockaddr *) &at, &len) == 3);
	HOLDS(rconnect(b, (struct sockaddr *) &at, len) == 0);
	HOLDS(rclose(a) == 0 && rclose(b) == 0);
}

int main(void)
{
	char byte;
	int c = -1, s = -1;

	stream(&c, &s);
	data(c, s);
	sets(c, s);
	direct(c, s);
	HOLDS(rshutdown(c, SHUT_WR) == 0 && rrecv(s, &byte, 1, 0) == 0);
	HOLDS(rclose(s) == 0 && rrecv(c, &byte, 1, 0) == 0 && rclose(c) == 0);
	datagrams();
	if (!wrong)
		puts("all right");
	return wrong;
}
