#include <shortwire_csum.h>
#include <stdio.h>
#include <string.h>

#define CHECK(condition)                                                          \
	do {                                                                      \
		if (!(condition)) {                                               \
			printf("line %d: %s does not hold\n", __LINE__, #condition); \
			return 1;                                                 \
		}                                                                 \
	} while (0)

static uint16_t naive(const uint8_t *data, size_t length)
{
	uint64_t sum = 0;
	for (size_t place = 0; place < length; place++) {
		uint8_t pair[2] = {place % 2 ? 0 : data[place], place % 2 ? data[place] : 0};
		uint16_t word;
		memcpy(&word, pair, 2);
		sum += word;
	}
	while (sum > 0xffff)
		sum = (sum & 0xffff) + (sum >> 16);
	return (uint16_t)~sum;
}

int main(void)
{
	uint8_t data[3001], copy[3001];
	for (size_t place = 0; place < sizeof data; place++)
		data[place] = (uint8_t)(place * 7 + place / 256);
	uint16_t whole = naive(data, sizeof data);

	CHECK(shortwire_csum_partial(NULL, 0, 5) == 5);
	CHECK(shortwire_csum_fold(shortwire_csum_partial(data, sizeof data, 0)) == whole);
	CHECK(shortwire_csum_fold(shortwire_csum_partial_latency(data, sizeof data, 0)) == whole);
	for (size_t length = 0; length < 500; length++)
		CHECK(shortwire_csum_fold(shortwire_csum_partial_latency(data + length, length, 0)) == naive(data + length, length));
	for (size_t place = 0; place < 500; place++) {
		CHECK(shortwire_csum_header20(data + place) == naive(data + place, 20));
		CHECK(shortwire_csum_header40(data + place) == naive(data + place, 40));
	}
	memset(copy, 0xff, 40);
	CHECK(shortwire_csum_header20(copy) == 0 && shortwire_csum_header40(copy) == 0);
	CHECK(shortwire_csum_fold(shortwire_csum_and_copy(data, copy, sizeof data, 0)) == whole);
	CHECK(memcmp(data, copy, sizeof data) == 0);
	memset(copy, 0, sizeof copy);
	CHECK(shortwire_csum_fold(shortwire_csum_and_copy_nt(data, copy, sizeof data, 0)) == whole);
	CHECK(memcmp(data, copy, sizeof data) == 0);

	struct iovec parts[] = {{data, 77}, {data + 77, 0}, {data + 77, sizeof data - 77}};
	CHECK(shortwire_csum_fold(shortwire_csum_chain(parts, 3, 0)) == whole);
	uint32_t sums[3] = {0, 0, 0};
	shortwire_csum_batch(parts, sums, 3);
	CHECK(shortwire_csum_fold(sums[0]) == naive(data, 77) && sums[1] == 0);
	uint32_t joined = shortwire_csum_block_add(sums[0], sums[2], 77);
	CHECK(shortwire_csum_fold(joined) == whole);
	uint32_t back = shortwire_csum_sub(joined, shortwire_csum_block_add(0, sums[2], 77));
	CHECK(shortwire_csum_fold(back) == naive(data, 77));
	CHECK(shortwire_csum_add(0xffffffff, 2) == 2);

	uint8_t pseudo[40];
	memcpy(pseudo, data, 32);
	memcpy(pseudo + 32, "\0\0\1\4\0\0\0\x3a", 8);
	CHECK(shortwire_csum_fold(shortwire_csum_ipv6_nofold(data, data + 16, 260, 58, 0)) == naive(pseudo, 40));
	memcpy(pseudo + 8, "\0\x11\1\4", 4);
	CHECK(shortwire_csum_fold(shortwire_csum_tcpudp_nofold(data, data + 4, 260, 17, 0)) == naive(pseudo, 12));

	static const uint8_t after[16] = {9, 8, 7, 6, 5, 4, 3, 2, 1, 2, 3, 4, 5, 6, 7, 8};
	memcpy(copy + 100, after, 2);
	CHECK(shortwire_csum_replace2(whole, data + 100, after) == naive(copy, sizeof copy));
	memcpy(copy + 100, after, 4);
	CHECK(shortwire_csum_replace4(whole, data + 100, after) == naive(copy, sizeof copy));
	memcpy(copy + 100, after, 6);
	CHECK(shortwire_csum_replace6(whole, data + 100, after) == naive(copy, sizeof copy));
	memcpy(copy + 100, after, 16);
	CHECK(shortwire_csum_replace16(whole, data + 100, after) == naive(copy, sizeof copy));

	uint8_t packet[28] = {0x45, 0, 0, 28, 0, 0, 0, 0, 1, 1, 0, 0, 127, 0, 0, 1, 127, 0, 0, 1, 8};
	CHECK(shortwire_csum_verify(packet, sizeof packet) == SHORTWIRE_CSUM_BAD_HEADER);
	CHECK(shortwire_csum_fill(packet, sizeof packet) == SHORTWIRE_CSUM_COMPLETE);
	CHECK(shortwire_csum_verify(packet, sizeof packet) == SHORTWIRE_CSUM_COMPLETE);
	CHECK(shortwire_csum_verify(packet, 27) == SHORTWIRE_CSUM_TRUNCATED);

	CHECK(shortwire_csum_select("no such kernel") == -1);
	CHECK(shortwire_csum_select("portable") == 0);
	CHECK(strcmp(shortwire_csum_kernel(), "portable") == 0);
	CHECK(shortwire_csum_fold(shortwire_csum_partial(data, sizeof data, 0)) == whole);
	CHECK(shortwire_csum_set_profile("not a profile") == -1);
	CHECK(shortwire_csum_set_profile("shortwire checksum profile 1\nprocessor = nobody 1 2\nin-packet = 0\n"
					 "next-packet-lines = 8\npackets-ahead = 2\nend\n") == -2);
	puts("all right");
	return 0;
}
