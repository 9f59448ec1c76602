/* What the kernel says of a TCP connection; its header and libc's exclude each other. */
#include "kernel.h"
#include <linux/tcp.h>
#include <string.h>
#include <sys/socket.h>

int kernel_counts(int fd, struct counts *c)
{
    struct tcp_info t;
    socklen_t len = sizeof t;
    memset(&t, 0, sizeof t);
    int r = getsockopt(fd, 6, TCP_INFO, &t, &len);
    c->state = t.tcpi_state;
    /* Whether it has left or not. */
    c->sent = t.tcpi_bytes_sent - t.tcpi_bytes_retrans + t.tcpi_notsent_bytes;
    c->received = t.tcpi_bytes_received;
    c->unacked = t.tcpi_unacked;
    c->unsent = t.tcpi_notsent_bytes;
    c->window = t.tcpi_snd_wnd;
    return r;
}
