/* SPDX-License-Identifier: Apache-2.0 OR MIT
 *
 * The rsockets API, as librdmacm publishes it, in Shortwire's implementation: over shared memory between
 * processes of one machine. Link with -lshortwire_rsocket, or preload the library into a program that was
 * linked with -lrdmacm. See rsocket(7).
 */
#ifndef SHORTWIRE_RDMA_RSOCKET_H
#define SHORTWIRE_RDMA_RSOCKET_H

#include <errno.h>
#include <poll.h>
#include <sys/epoll.h>
#include <sys/mman.h>
#include <sys/select.h>
#include <sys/socket.h>
#include <sys/types.h>
#include <sys/uio.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Level and options of rsetsockopt and rgetsockopt; the values are ints. */
#define SOL_RDMA 0x10000
enum {
	RDMA_SQSIZE,    /* entries of the send queue */
	RDMA_RQSIZE,    /* entries of the receive queue: credits of the peer */
	RDMA_INLINE,    /* largest inline send; no effect over shared memory */
	RDMA_IOMAPSIZE, /* buffers that the peer may map for our riowrite */
	RDMA_ROUTE      /* path records; accepted and ignored over shared memory */
};

int rsocket(int domain, int type, int protocol);
int rbind(int socket, const struct sockaddr *addr, socklen_t addrlen);
int rlisten(int socket, int backlog);
int raccept(int socket, struct sockaddr *addr, socklen_t *addrlen);
int rconnect(int socket, const struct sockaddr *addr, socklen_t addrlen);
int rshutdown(int socket, int how);
int rclose(int socket);

ssize_t rrecv(int socket, void *buf, size_t len, int flags);
ssize_t rrecvfrom(int socket, void *buf, size_t len, int flags, struct sockaddr *src_addr, socklen_t *addrlen);
ssize_t rrecvmsg(int socket, struct msghdr *msg, int flags);
ssize_t rsend(int socket, const void *buf, size_t len, int flags);
ssize_t rsendto(int socket, const void *buf, size_t len, int flags, const struct sockaddr *dest_addr,
		socklen_t addrlen);
ssize_t rsendmsg(int socket, const struct msghdr *msg, int flags);
ssize_t rread(int socket, void *buf, size_t count);
ssize_t rreadv(int socket, const struct iovec *iov, int iovcnt);
ssize_t rwrite(int socket, const void *buf, size_t count);
ssize_t rwritev(int socket, const struct iovec *iov, int iovcnt);

int rpoll(struct pollfd *fds, nfds_t nfds, int timeout);
int rselect(int nfds, fd_set *readfds, fd_set *writefds, fd_set *exceptfds, struct timeval *timeout);

/* As epoll_create1, epoll_ctl and epoll_wait, for rsockets and other descriptors in one set. rclose ends it. */
int repoll_create(int flags);
int repoll_ctl(int set, int op, int fd, struct epoll_event *event);
int repoll_wait(int set, struct epoll_event *events, int maxevents, int timeout);

int rgetpeername(int socket, struct sockaddr *addr, socklen_t *addrlen);
int rgetsockname(int socket, struct sockaddr *addr, socklen_t *addrlen);
int rsetsockopt(int socket, int level, int optname, const void *optval, socklen_t optlen);
int rgetsockopt(int socket, int level, int optname, void *optval, socklen_t *optlen);
int rfcntl(int socket, int cmd, ... /* arg */);

/* Direct writes into the peer's buffers. */
off_t riomap(int socket, void *buf, size_t len, int prot, int flags, off_t offset);
int riounmap(int socket, void *buf, size_t len);
size_t riowrite(int socket, const void *buf, size_t count, off_t offset, int flags);

#ifdef __cplusplus
}
#endif

#endif
