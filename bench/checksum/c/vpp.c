/*
 * The way of VPP's vector code: 32-bit words widened to 64 bits by interleaving with zero and added, blocks of eight
 * 512-bit vectors, then single vectors, then a masked load. Written for this benchmark from that description, with a
 * length of any size (theirs has 16 bits), and with a sum of 32 bits as csum_partial returns it (theirs folds to 16).
 */
#include <immintrin.h>
#include <stddef.h>
#include <stdint.h>

#define WIDE __attribute__((target("avx512f,avx512bw,bmi,bmi2")))

WIDE static inline __m512i widened(__m512i words)
{
	__m512i zero = _mm512_setzero_si512();
	return _mm512_add_epi64(_mm512_unpacklo_epi32(words, zero), _mm512_unpackhi_epi32(words, zero));
}

WIDE uint32_t rival_vpp_csum(const uint8_t *at, size_t length)
{
	__m512i sum = _mm512_setzero_si512();

	for (; length >= 512; length -= 512, at += 512)
		for (int i = 0; i < 8; i++)
			sum = _mm512_add_epi64(sum, widened(_mm512_loadu_si512(at + 64 * i)));
	for (; length >= 64; length -= 64, at += 64)
		sum = _mm512_add_epi64(sum, widened(_mm512_loadu_si512(at)));
	if (length)
		sum = _mm512_add_epi64(sum, widened(_mm512_maskz_loadu_epi8(_bzhi_u64(~0ull, length), at)));
	uint64_t total = _mm512_reduce_add_epi64(sum);
	return (total + (total >> 32 | total << 32)) >> 32;
}

WIDE uint32_t rival_vpp_copy(const uint8_t *from, uint8_t *to, size_t length)
{
	__m512i sum = _mm512_setzero_si512();

	for (; length >= 512; length -= 512, from += 512, to += 512)
		for (int i = 0; i < 8; i++) {
			__m512i words = _mm512_loadu_si512(from + 64 * i);
			_mm512_storeu_si512(to + 64 * i, words);
			sum = _mm512_add_epi64(sum, widened(words));
		}
	for (; length >= 64; length -= 64, from += 64, to += 64) {
		__m512i words = _mm512_loadu_si512(from);
		_mm512_storeu_si512(to, words);
		sum = _mm512_add_epi64(sum, widened(words));
	}
	if (length) {
		__mmask64 mask = _bzhi_u64(~0ull, length);
		__m512i words = _mm512_maskz_loadu_epi8(mask, from);
		_mm512_mask_storeu_epi8(to, mask, words);
		sum = _mm512_add_epi64(sum, widened(words));
	}
	uint64_t total = _mm512_reduce_add_epi64(sum);
	return (total + (total >> 32 | total << 32)) >> 32;
}
