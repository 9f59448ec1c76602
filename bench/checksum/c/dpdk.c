/* DPDK's own routine, from its installed headers. */
#include <rte_ip.h>

uint16_t rival_dpdk_raw_cksum(const void *at, size_t length)
{
	return rte_raw_cksum(at, length);
}
