/* What smc_run of smc-tools preloads, in short: sockets of TCP become the kernel's SMC. */
// cc: -shared -fPIC
#include <netinet/in.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

#ifndef AF_SMC
#define AF_SMC 43
#endif

int socket(int domain, int type, int protocol)
{
	int is_ip = domain == AF_INET || domain == AF_INET6;
	if (is_ip && (type & 0xf) == SOCK_STREAM && (protocol == 0 || protocol == IPPROTO_TCP))
		return syscall(SYS_socket, AF_SMC, type, domain == AF_INET6);
	return syscall(SYS_socket, domain, type, protocol);
}
