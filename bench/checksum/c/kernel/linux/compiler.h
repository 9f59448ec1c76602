/* What arch/x86/lib/csum-partial_64.c of Linux takes for granted, for the bench. */
#include <stdint.h>
#include <string.h>

typedef uint64_t u64;
typedef uint32_t u32;
typedef uint16_t u16;
typedef uint32_t __wsum;
typedef uint16_t __sum16;
#define __force
#define likely(x) __builtin_expect(!!(x), 1)
#define unlikely(x) __builtin_expect(!!(x), 0)

static inline u64 ror64(u64 word, unsigned shift)
{
	return word >> (shift & 63) | word << (-shift & 63);
}

static inline unsigned add32_with_carry(unsigned a, unsigned b)
{
	unsigned sum = a + b;
	return sum + (sum < b);
}
