/* What arch/arm64/lib/csum.c of Linux takes for granted beside compiler.h, for the bench. */
#include <asm/checksum.h>

typedef uint8_t __u8;
typedef uint32_t __u32;
struct in6_addr {
	uint8_t s6_addr[16];
};

static inline u32 swab32(u32 word)
{
	return __builtin_bswap32(word);
}

static inline u32 htonl(u32 word)
{
	return __builtin_bswap32(word);
}
