/*
 * The Internet checksum (RFC 1071). Link with -lshortwire_csum.
 *
 * A partial sum is a ones' complement sum of 16-bit words in native byte order, held in 32 bits. Only its value modulo
 * 0xffff and whether it is 0 mean anything: compare folded sums. A checksum is folded, complemented and in native byte
 * order: store it with memcpy, not with htons. Addresses and fields are passed as bytes as they lie in the packet. Data
 * may begin at any address and have any length.
 */
#ifndef SHORTWIRE_CSUM_H
#define SHORTWIRE_CSUM_H

#include <stddef.h>
#include <stdint.h>
#include <string.h>
#include <sys/uio.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Adds data to a partial sum, which is 0 at first, or that of data of even length before. */
uint32_t shortwire_csum_partial(const void *data, size_t length, uint32_t sum);

/* The same for a sum that is needed at once, and not one of many: a header that is about to be written, say. With the kernel
 * avx512vnni it takes less time for up to 128 bytes then, and more time if it is called for many. */
uint32_t shortwire_csum_partial_latency(const void *data, size_t length, uint32_t sum);

/* Copies and adds, in one pass over memory. The two must not overlap, and the source must not change meanwhile: some bytes are read
 * twice. The second form's stores go past the caches: for a destination that is in no cache, or for 1 MiB and more; several times
 * slower otherwise. */
uint32_t shortwire_csum_and_copy(const void *source, void *destination, size_t length, uint32_t sum);
uint32_t shortwire_csum_and_copy_nt(const void *source, void *destination, size_t length, uint32_t sum);

/* Adds buffers as if they were one; any of them may have an odd length. */
uint32_t shortwire_csum_chain(const struct iovec *buffers, size_t count, uint32_t sum);

/* Adds each packet to the sum at the same place, while the next packets are prefetched. */
void shortwire_csum_batch(const struct iovec *packets, uint32_t *sums, size_t count);

/* Folds to 16 bits and complements: what goes into the header; 0 over data that hold their right checksum. */
static inline uint16_t shortwire_csum_fold(uint32_t sum)
{
	return (uint16_t)(~(sum + (sum << 16 | sum >> 16)) >> 16);
}

static inline uint32_t shortwire_csum_add(uint32_t a, uint32_t b)
{
	uint32_t sum = a + b;
	return sum + (sum < b);
}

static inline uint32_t shortwire_csum_sub(uint32_t sum, uint32_t part)
{
	return shortwire_csum_add(sum, ~part);
}

/* Adds the sum of a block that lies offset bytes, perhaps an odd number, behind the beginning. */
static inline uint32_t shortwire_csum_block_add(uint32_t sum, uint32_t part, size_t offset)
{
	return shortwire_csum_add(sum, offset & 1 ? part >> 8 | part << 24 : part);
}

/* The checksum of a header of 20 bytes (IPv4 without options) or 40 (IPv6; IPv4 and TCP without options), without a call;
 * 0 over one that holds its right checksum. */
static inline uint16_t shortwire_csum_header20(const void *header)
{
	uint32_t words[5];
	uint64_t sum;
	memcpy(words, header, sizeof words);
	/* Words of 32 bits leave room for the carries: plain additions, which need not wait for each other's flags. */
	sum = ((uint64_t)words[0] + words[1]) + ((uint64_t)words[2] + words[3]) + words[4];
	return shortwire_csum_fold((uint32_t)((sum + (sum << 32 | sum >> 32)) >> 32));
}

static inline uint16_t shortwire_csum_header40(const void *header)
{
	uint32_t words[10];
	uint64_t sum;
	memcpy(words, header, sizeof words);
	sum = ((uint64_t)words[0] + words[1]) + ((uint64_t)words[2] + words[3]) + ((uint64_t)words[4] + words[5]) +
	      ((uint64_t)words[6] + words[7]) + ((uint64_t)words[8] + words[9]);
	return shortwire_csum_fold((uint32_t)((sum + (sum << 32 | sum >> 32)) >> 32));
}

/* Add a pseudo header (RFC 768, RFC 8200). length: bytes of the transport header and its data, in host byte order. */
uint32_t shortwire_csum_tcpudp_nofold(const uint8_t source[4], const uint8_t destination[4], uint16_t length,
				      uint8_t protocol, uint32_t sum);
uint32_t shortwire_csum_ipv6_nofold(const uint8_t source[16], const uint8_t destination[16], uint32_t length,
				    uint8_t protocol, uint32_t sum);

/* Incremental updates (RFC 1624): check is the field as it lies in the packet, and so is the result. The bytes replaced
 * lie at an even offset. A UDP checksum of 0 means none: leave it, and send a result of 0 as 0xffff. */
uint16_t shortwire_csum_replace2(uint16_t check, const uint8_t before[2], const uint8_t after[2]);
uint16_t shortwire_csum_replace4(uint16_t check, const uint8_t before[4], const uint8_t after[4]);
uint16_t shortwire_csum_replace6(uint16_t check, const uint8_t before[6], const uint8_t after[6]);
uint16_t shortwire_csum_replace16(uint16_t check, const uint8_t before[16], const uint8_t after[16]);

enum shortwire_csum_result {
	SHORTWIRE_CSUM_COMPLETE = 0,        /* every checksum of the packet */
	SHORTWIRE_CSUM_NONE = 1,            /* UDP over IPv4 without a checksum */
	SHORTWIRE_CSUM_FRAGMENT = 2,        /* one of several fragments: the IPv4 header's only */
	SHORTWIRE_CSUM_OTHER_PROTOCOL = 3,  /* neither TCP, UDP nor ICMP: the IPv4 header's only */
	SHORTWIRE_CSUM_TRUNCATED = -1,      /* fewer bytes than the headers say */
	SHORTWIRE_CSUM_VERSION = -2,        /* neither IPv4 nor IPv6 */
	SHORTWIRE_CSUM_LENGTH = -3,         /* a length in a header does not fit */
	SHORTWIRE_CSUM_ROUTING_HEADER = -4, /* unknown routing header with segments left */
	SHORTWIRE_CSUM_BAD_HEADER = -5,     /* wrong IPv4 header checksum */
	SHORTWIRE_CSUM_BAD_TRANSPORT = -6,  /* wrong TCP, UDP, ICMP or ICMPv6 checksum */
	SHORTWIRE_CSUM_MISSING = -7         /* UDP over IPv6 without a checksum */
};

/* Check, or write, all checksums of a packet that begins with its IP header. If fill returns less than 0, it has written
 * nothing. */
enum shortwire_csum_result shortwire_csum_verify(const void *packet, size_t length);
enum shortwire_csum_result shortwire_csum_fill(void *packet, size_t length);

/* The kernel in use: the fastest of this processor. */
const char *shortwire_csum_kernel(void);

/* Uses a kernel by name, for tests: 0, -1 if there is none of that name, -2 if this processor cannot run it. */
int shortwire_csum_select(const char *name);

/* Uses a prefetch profile, the text of a file that `shortwire tune checksum` wrote: 0, -1 if it is damaged, -2 if it is of
 * another processor; then the profile in use stays. */
int shortwire_csum_set_profile(const char *text);

#ifdef __cplusplus
}
#endif

#endif
