/* DPDK's own routine, from its installed headers. */

/* Its string functions may come from libbsd, whose headers need not be there; they are not used here. */
#undef RTE_USE_LIBBSD
#include <rte_ip.h>

uint16_t rival_dpdk_raw_cksum(const void *at, size_t length)
{
	return rte_raw_cksum(at, length);
}
