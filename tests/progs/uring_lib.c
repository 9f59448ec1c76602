/* The same as uring.c by the functions of liburing, which enter the kernel by instruction. */
// cc: -l:liburing.so.2
#define LIBURING
#include "uring.c"
