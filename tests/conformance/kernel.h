#ifndef KERNEL_H
#define KERNEL_H
#include <stdint.h>

/*
 * The state, payload that TCP was given and has delivered here, segments under way, bytes that it could not send yet, and how
 * many more the peer would take (0 of a kernel that does not say).
 */
struct counts { int state, unacked, unsent; unsigned window; uint64_t sent, received; };
int kernel_counts(int fd, struct counts *c);
#endif
