/* One end of an exchange, over AF_SMC of the kernel or over TCP:
     smc_peer server|client smc|tcp PORT SEND RECEIVED GO [ADDRESS]
   Sends the file SEND and keeps what comes in RECEIVED, both at once, in many small calls. Then says what the kernel thinks of an
   AF_SMC socket, waits for the file GO, and closes. */
#include <arpa/inet.h>
#include <err.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/inet_diag.h>
#include <linux/netlink.h>
#include <linux/smc_diag.h>
#include <linux/sock_diag.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#ifndef AF_SMC
#define AF_SMC 43
#endif

static unsigned port_of(int fd, int (*name)(int, struct sockaddr *, socklen_t *))
{
	struct sockaddr_in a;
	socklen_t len = sizeof a;
	if (name(fd, (struct sockaddr *)&a, &len))
		err(1, "name");
	return a.sin_port;
}

/* Asks sock_diag for mode and fallback reason of the AF_SMC socket with these ports. */
static void diagnose(unsigned local, unsigned peer)
{
	struct {
		struct nlmsghdr head;
		struct smc_diag_req req;
	} ask = {
		.head = { .nlmsg_len = sizeof ask, .nlmsg_type = SOCK_DIAG_BY_FAMILY, .nlmsg_flags = NLM_F_REQUEST | NLM_F_DUMP },
		.req = { .diag_family = AF_SMC, .diag_ext = 1 << (SMC_DIAG_FALLBACK - 1) },
	};
	static char reply[1 << 16];
	int fd = socket(AF_NETLINK, SOCK_RAW, NETLINK_SOCK_DIAG);
	if (fd < 0 || send(fd, &ask, sizeof ask, 0) < 0)
		err(1, "sock_diag");
	for (;;) {
		int n = recv(fd, reply, sizeof reply, 0);
		if (n <= 0)
			err(1, "answer of sock_diag");
		for (struct nlmsghdr *h = (void *)reply; NLMSG_OK(h, (unsigned)n); h = NLMSG_NEXT(h, n)) {
			if (h->nlmsg_type == NLMSG_DONE)
				errx(1, "the socket is not listed");
			if (h->nlmsg_type == NLMSG_ERROR)
				errx(1, "sock_diag: error %d", ((struct nlmsgerr *)NLMSG_DATA(h))->error);
			struct smc_diag_msg *msg = NLMSG_DATA(h);
			if (msg->id.idiag_sport != local || msg->id.idiag_dport != peer)
				continue;
			int rest = h->nlmsg_len - NLMSG_LENGTH(sizeof *msg);
			struct smc_diag_fallback why = { 0, 0 };
			struct nlattr *a = (void *)((char *)msg + NLMSG_ALIGN(sizeof *msg));
			while (rest >= (int)sizeof *a && a->nla_len >= sizeof *a && a->nla_len <= rest) {
				if (a->nla_type == SMC_DIAG_FALLBACK)
					memcpy(&why, a + 1, sizeof why);
				rest -= NLA_ALIGN(a->nla_len);
				a = (void *)((char *)a + NLA_ALIGN(a->nla_len));
			}
			printf("mode %u reason 0x%08x peer 0x%08x\n", msg->diag_mode, why.reason, why.peer_diagnosis);
			close(fd);
			return;
		}
	}
}

int main(int argc, char **argv)
{
	if (argc != 7 && argc != 8)
		errx(2, "usage: server|client smc|tcp PORT SEND RECEIVED GO [ADDRESS]");
	int smc = !strcmp(argv[2], "smc");
	struct sockaddr_in a = { .sin_family = AF_INET, .sin_port = htons(atoi(argv[3])), .sin_addr = { htonl(INADDR_LOOPBACK) } };
	if (argc == 8 && !inet_aton(argv[7], &a.sin_addr))
		errx(2, "%s is no address", argv[7]);
	int s = socket(smc ? AF_SMC : AF_INET, SOCK_STREAM, 0), one = 1;
	if (s < 0)
		err(1, "socket");
	int domain = 0;
	socklen_t domain_len = sizeof domain;
	if (getsockopt(s, SOL_SOCKET, SO_DOMAIN, &domain, &domain_len))
		err(1, "domain");
	printf("domain %d\n", domain);
	if (!strcmp(argv[1], "server")) {
		setsockopt(s, SOL_SOCKET, SO_REUSEADDR, &one, sizeof one);
		if (bind(s, (void *)&a, sizeof a) || listen(s, 1))
			err(1, "listen");
		puts("listening");
		fflush(stdout);
		int c = accept(s, NULL, NULL);
		if (c < 0)
			err(1, "accept");
		close(s);
		s = c;
	} else {
		for (int tries = 0; connect(s, (void *)&a, sizeof a); tries++) {
			if (errno != ECONNREFUSED || tries > 3000)
				err(1, "connect");
			usleep(100000);
		}
	}
	unsigned local = port_of(s, getsockname), peer = port_of(s, getpeername);
	int in = open(argv[4], O_RDONLY), out = open(argv[5], O_WRONLY | O_CREAT | O_TRUNC, 0600);
	struct stat st;
	if (in < 0 || out < 0 || fstat(in, &st))
		err(1, "files");
	/* Both ends send as much, so each knows when it has all. */
	off_t sent = 0, got = 0;
	while (sent < st.st_size || got < st.st_size) {
		char buffer[4096];
		/* Never far ahead: beside a peer that is held up all calls would be made before its first one. */
		int may_send = sent < st.st_size && sent <= got + (1 << 16);
		struct pollfd p = { s, POLLIN | (may_send ? POLLOUT : 0), 0 };
		if (poll(&p, 1, 60000) <= 0)
			errx(1, "stuck after %lld sent, %lld received", (long long)sent, (long long)got);
		if (p.revents & POLLOUT) {
			ssize_t n = pread(in, buffer, sizeof buffer, sent);
			if (n <= 0 || (n = send(s, buffer, n, MSG_DONTWAIT | MSG_NOSIGNAL)) < 0) {
				if (errno != EAGAIN)
					err(1, "send");
			} else {
				sent += n;
			}
		}
		if (p.revents & (POLLIN | POLLHUP | POLLERR)) {
			ssize_t n = recv(s, buffer, sizeof buffer, MSG_DONTWAIT);
			if (n == 0)
				errx(1, "the peer ended after %lld bytes", (long long)got);
			if (n < 0 && errno != EAGAIN)
				err(1, "recv");
			if (n > 0 && write(out, buffer, n) != n)
				err(1, "write");
			got += n > 0 ? n : 0;
		}
	}
	if (smc)
		diagnose(local, peer);
	puts("exchanged");
	fflush(stdout);
	for (int tries = 0; access(argv[6], F_OK); tries++) {
		if (tries > 3000)
			errx(1, "nobody says go");
		usleep(100000);
	}
	return 0;
}
