/*
 * csum_partial as Linux kernels compute it on x86-64, 64-bit words added with carry, in two forms. "2x4": 64 bytes per turn
 * in two accumulators of four words each, the carries in a third register; 40 bytes have a way of their own. "2x5": 80
 * bytes per turn in two accumulators of five words each. Written for this benchmark from these descriptions.
 *
 * And the one chain that the kernel had in 2013, with a prefetch at a distance that is given: "dumb" asks for memory past
 * the end of the data, "smart" does not.
 */
#include <stddef.h>
#include <stdint.h>
#include <string.h>

static inline uint64_t add_carry(uint64_t a, uint64_t b)
{
	uint64_t sum;
	return __builtin_add_overflow(a, b, &sum) ? sum + 1 : sum;
}

/* 0..7 bytes as a word; what lies behind them is not read. */
static inline uint64_t last_bytes(const uint8_t *at, size_t length)
{
	uint64_t word = 0;
	if (length & 4) {
		uint32_t four;
		memcpy(&four, at, 4);
		word = four;
		at += 4;
	}
	if (length & 3) {
		unsigned shift = (length & 4) * 8;
		uint32_t rest = at[0];
		if (length & 2) {
			uint16_t two;
			memcpy(&two, at, 2);
			rest = two;
			if (length & 1)
				rest |= (uint32_t)at[2] << 16;
		}
		word |= (uint64_t)rest << shift;
	}
	return word;
}

static inline uint64_t add_tail(uint64_t sum, const uint8_t *at, size_t length)
{
	if (length & 32) {
		asm("addq 0(%[at]), %[sum]\n\tadcq 8(%[at]), %[sum]\n\tadcq 16(%[at]), %[sum]\n\tadcq 24(%[at]), %[sum]\n\t"
		    "adcq $0, %[sum]"
		    : [sum] "+r"(sum) : [at] "r"(at), "m"(*(const uint8_t(*)[32])at) : "cc");
		at += 32;
	}
	if (length & 16) {
		asm("addq 0(%[at]), %[sum]\n\tadcq 8(%[at]), %[sum]\n\tadcq $0, %[sum]"
		    : [sum] "+r"(sum) : [at] "r"(at), "m"(*(const uint8_t(*)[16])at) : "cc");
		at += 16;
	}
	if (length & 8) {
		uint64_t word;
		memcpy(&word, at, 8);
		sum = add_carry(sum, word);
		at += 8;
	}
	return length & 7 ? add_carry(sum, last_bytes(at, length & 7)) : sum;
}

static inline uint32_t to_32(uint64_t sum)
{
	return (sum + (sum >> 32 | sum << 32)) >> 32;
}

static inline uint64_t add_five(uint64_t sum, const uint8_t *at)
{
	asm("addq 0(%[at]), %[sum]\n\tadcq 8(%[at]), %[sum]\n\tadcq 16(%[at]), %[sum]\n\tadcq 24(%[at]), %[sum]\n\t"
	    "adcq 32(%[at]), %[sum]\n\tadcq $0, %[sum]"
	    : [sum] "+r"(sum) : [at] "r"(at), "m"(*(const uint8_t(*)[40])at) : "cc");
	return sum;
}

uint32_t rival_linux_2x4(const uint8_t *at, size_t length, uint32_t start)
{
	uint64_t first = start, second = 0, carries = 0;
	size_t left = length;

	if (left == 40)
		return to_32(add_five(first, at));
	for (; left >= 64; left -= 64, at += 64)
		asm("addq 0(%[at]), %[first]\n\tadcq 8(%[at]), %[first]\n\tadcq 16(%[at]), %[first]\n\t"
		    "adcq 24(%[at]), %[first]\n\tadcq $0, %[carries]\n\t"
		    "addq 32(%[at]), %[second]\n\tadcq 40(%[at]), %[second]\n\tadcq 48(%[at]), %[second]\n\t"
		    "adcq 56(%[at]), %[second]\n\tadcq $0, %[carries]"
		    : [first] "+r"(first), [second] "+r"(second), [carries] "+r"(carries)
		    : [at] "r"(at), "m"(*(const uint8_t(*)[64])at) : "cc");
	first = add_carry(add_carry(first, second), carries);
	return to_32(add_tail(first, at, left));
}

uint32_t rival_linux_2x5(const uint8_t *at, size_t length, uint32_t start)
{
	uint64_t first = start, second = 0;
	size_t left = length;

	for (; left >= 80; left -= 80, at += 80) {
		first = add_five(first, at);
		second = add_five(second, at + 40);
	}
	first = add_carry(first, second);
	if (left >= 40) {
		first = add_five(first, at);
		at += 40;
		left -= 40;
	}
	return to_32(add_tail(first, at, left));
}

/* As the kernel copies: eight words loaded, added with carry in one chain, and stored. */
uint32_t rival_linux_copy(const uint8_t *from, uint8_t *to, size_t length)
{
	uint64_t sum = 0, a, b, c, d;
	size_t left = length;

	for (; left >= 64; left -= 64, from += 64, to += 64)
		for (int half = 0; half < 64; half += 32)
			asm volatile("movq 0(%[from]), %[a]\n\tmovq 8(%[from]), %[b]\n\tmovq 16(%[from]), %[c]\n\t"
				     "movq 24(%[from]), %[d]\n\taddq %[a], %[sum]\n\tadcq %[b], %[sum]\n\t"
				     "adcq %[c], %[sum]\n\tadcq %[d], %[sum]\n\tadcq $0, %[sum]\n\t"
				     "movq %[a], 0(%[to])\n\tmovq %[b], 8(%[to])\n\tmovq %[c], 16(%[to])\n\t"
				     "movq %[d], 24(%[to])"
				     : [sum] "+r"(sum), [a] "=&r"(a), [b] "=&r"(b), [c] "=&r"(c), [d] "=&r"(d)
				     : [from] "r"(from + half), [to] "r"(to + half) : "cc", "memory");
	sum = add_tail(sum, from, left);
	for (; left >= 8; left -= 8, from += 8, to += 8)
		memcpy(to, from, 8);
	if (left & 4) {
		memcpy(to, from, 4);
		from += 4;
		to += 4;
	}
	if (left & 2) {
		memcpy(to, from, 2);
		from += 2;
		to += 2;
	}
	if (left & 1)
		*to = *from;
	return to_32(sum);
}

static inline uint64_t add_block(uint64_t sum, const uint8_t *at)
{
	asm("addq 0(%[at]), %[sum]\n\tadcq 8(%[at]), %[sum]\n\tadcq 16(%[at]), %[sum]\n\tadcq 24(%[at]), %[sum]\n\t"
	    "adcq 32(%[at]), %[sum]\n\tadcq 40(%[at]), %[sum]\n\tadcq 48(%[at]), %[sum]\n\tadcq 56(%[at]), %[sum]\n\t"
	    "adcq $0, %[sum]"
	    : [sum] "+r"(sum) : [at] "r"(at), "m"(*(const uint8_t(*)[64])at) : "cc");
	return sum;
}

uint32_t one_chain(const uint8_t *at, size_t length)
{
	uint64_t sum = 0;
	size_t left = length;

	for (; left >= 64; left -= 64, at += 64)
		sum = add_block(sum, at);
	return to_32(add_tail(sum, at, left));
}

uint32_t one_chain_dumb(const uint8_t *at, size_t length, size_t distance)
{
	uint64_t sum = 0;
	size_t left = length;

	for (; left >= 64; left -= 64, at += 64) {
		__builtin_prefetch((const void *)((uintptr_t)at + distance));
		sum = add_block(sum, at);
	}
	return to_32(add_tail(sum, at, left));
}

uint32_t one_chain_smart(const uint8_t *at, size_t length, size_t distance)
{
	uint64_t sum = 0;
	size_t left = length;

	for (; left >= 64 + distance; left -= 64, at += 64) {
		__builtin_prefetch(at + distance);
		sum = add_block(sum, at);
	}
	for (; left >= 64; left -= 64, at += 64)
		sum = add_block(sum, at);
	return to_32(add_tail(sum, at, left));
}
