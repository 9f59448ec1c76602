/* What smc_run of smc-tools preloads, in short: sockets of TCP become the kernel's SMC. As that does, it takes libc's own
   function, past all other libraries. */
// cc: -shared -fPIC
#include <dlfcn.h>
#include <gnu/lib-names.h>
#include <netinet/in.h>
#include <stddef.h>
#include <sys/socket.h>

#ifndef AF_SMC
#define AF_SMC 43
#endif

int socket(int domain, int type, int protocol)
{
	static int (*of_libc)(int, int, int);
	int is_ip = domain == AF_INET || domain == AF_INET6;
	if (of_libc == NULL)
		*(void **)&of_libc = dlsym(dlopen(LIBC_SO, RTLD_LAZY), "socket");
	if (is_ip && (type & 0xf) == SOCK_STREAM && (protocol == 0 || protocol == IPPROTO_TCP))
		return of_libc(AF_SMC, type, domain == AF_INET6);
	return of_libc(domain, type, protocol);
}
