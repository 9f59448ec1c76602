/* What smcd and smc_pnet of smc-tools do, in short:
     smc_admin ueid NAME             both ends of a connection need an EID in common
     smc_admin pnet NAME card|rdma DEVICE    the card, or port 1 of the RDMA device, is on the network NAME */
#include <err.h>
#include <errno.h>
#include <linux/genetlink.h>
#include <linux/netlink.h>
#include <linux/smc.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

static struct {
	struct nlmsghdr head;
	struct genlmsghdr gen;
	char room[512];
} ask;

static void begin(int family, int command)
{
	memset(&ask, 0, sizeof ask);
	ask.head.nlmsg_len = NLMSG_LENGTH(GENL_HDRLEN);
	ask.head.nlmsg_type = family;
	ask.head.nlmsg_flags = NLM_F_REQUEST | NLM_F_ACK;
	ask.gen.cmd = command;
	ask.gen.version = 1;
}

static void put(int type, const void *value, size_t len)
{
	struct nlattr *a = (void *)((char *)&ask + NLMSG_ALIGN(ask.head.nlmsg_len));
	if (NLMSG_ALIGN(ask.head.nlmsg_len) + NLA_HDRLEN + len > sizeof ask)
		errx(2, "too long");
	a->nla_type = type;
	a->nla_len = NLA_HDRLEN + len;
	memcpy(a + 1, value, len);
	ask.head.nlmsg_len = NLMSG_ALIGN(ask.head.nlmsg_len) + NLA_ALIGN(a->nla_len);
}

/* Sends the request. The id of the family that it asked for, if it did. */
static int answer(int s)
{
	char reply[8192];
	int id = 0;
	if (send(s, &ask, ask.head.nlmsg_len, 0) < 0)
		err(1, "send");
	for (;;) {
		int n = recv(s, reply, sizeof reply, 0);
		if (n <= 0)
			err(1, "recv");
		for (struct nlmsghdr *h = (void *)reply; NLMSG_OK(h, (unsigned)n); h = NLMSG_NEXT(h, n)) {
			if (h->nlmsg_type == NLMSG_ERROR) {
				errno = -((struct nlmsgerr *)NLMSG_DATA(h))->error;
				return errno ? -1 : id;
			}
			struct nlattr *a = (void *)((char *)NLMSG_DATA(h) + GENL_HDRLEN);
			int rest = h->nlmsg_len - NLMSG_LENGTH(GENL_HDRLEN);
			while (rest >= (int)sizeof *a && a->nla_len >= sizeof *a && a->nla_len <= rest) {
				if (a->nla_type == CTRL_ATTR_FAMILY_ID)
					id = *(unsigned short *)(a + 1);
				rest -= NLA_ALIGN(a->nla_len);
				a = (void *)((char *)a + NLA_ALIGN(a->nla_len));
			}
		}
	}
}

static int family(int s, const char *name)
{
	begin(GENL_ID_CTRL, CTRL_CMD_GETFAMILY);
	put(CTRL_ATTR_FAMILY_NAME, name, strlen(name) + 1);
	int id = answer(s);
	if (id <= 0)
		err(1, "%s", name);
	return id;
}

int main(int argc, char **argv)
{
	int s = socket(AF_NETLINK, SOCK_RAW, NETLINK_GENERIC);
	if (s < 0)
		err(1, "netlink");
	if (argc == 3 && !strcmp(argv[1], "ueid")) {
		/* 32 characters, filled up with spaces. */
		char eid[33];
		snprintf(eid, sizeof eid, "%-32s", argv[2]);
		begin(family(s, SMC_GENL_FAMILY_NAME), SMC_NETLINK_ADD_UEID);
		put(SMC_NLA_EID_TABLE_ENTRY, eid, sizeof eid);
	} else if (argc == 5 && !strcmp(argv[1], "pnet")) {
		unsigned char port = 1;
		int id = family(s, SMCR_GENL_FAMILY_NAME), is_card = !strcmp(argv[3], "card");
		begin(id, SMC_PNETID_ADD);
		put(SMC_PNETID_NAME, argv[2], strlen(argv[2]) + 1);
		put(is_card ? SMC_PNETID_ETHNAME : SMC_PNETID_IBNAME, argv[4], strlen(argv[4]) + 1);
		if (!is_card)
			put(SMC_PNETID_IBPORT, &port, 1);
	} else {
		errx(2, "usage: smc_admin ueid NAME | pnet NAME card|rdma DEVICE");
	}
	if (answer(s) < 0)
		err(1, "%s %s", argv[1], argv[2]);
	return 0;
}
