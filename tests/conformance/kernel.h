#ifndef KERNEL_H
#define KERNEL_H
#include <stdint.h>

/* The state, payload that TCP was given and has delivered here, and segments under way. */
struct counts { int state, unacked; uint64_t sent, received; };
int kernel_counts(int fd, struct counts *c);
#endif
