/* Fills a UDP packet, checks it, rewrites its source address as a router does, and checks it again. */
#include <inttypes.h>
#include <shortwire_csum.h>
#include <stdio.h>
#include <string.h>

int main(void)
{
	uint8_t packet[] = {
		0x45, 0, 0, 33, 0, 0, 0, 0, 64, 17, 0, 0, 192, 0, 2, 1, 198, 51, 100, 7, /* IPv4 */
		0x30, 0x39, 0, 53, 0, 13, 0, 0, 'h', 'e', 'l', 'l', 'o',                 /* UDP */
	};
	const uint8_t before[4] = {192, 0, 2, 1}, after[4] = {203, 0, 113, 5};

	if (shortwire_csum_fill(packet, sizeof packet) != SHORTWIRE_CSUM_COMPLETE)
		return 1;
	printf("filled: IPv4 %02x%02x, UDP %02x%02x, verify %d\n", packet[10], packet[11], packet[26], packet[27],
	       shortwire_csum_verify(packet, sizeof packet));

	/* Both checksums cover the address. */
	for (size_t field = 10; field <= 26; field += 16) {
		uint16_t check;
		memcpy(&check, packet + field, 2);
		check = shortwire_csum_replace4(check, before, after);
		memcpy(packet + field, &check, 2);
	}
	memcpy(packet + 12, after, 4);
	printf("rewritten: IPv4 %02x%02x, UDP %02x%02x, verify %d\n", packet[10], packet[11], packet[26], packet[27],
	       shortwire_csum_verify(packet, sizeof packet));

	/* The same by hand: the payload in two buffers of odd lengths, then the pseudo header. */
	struct iovec parts[] = {{packet + 20, 11}, {packet + 31, 2}};
	uint32_t sum = shortwire_csum_chain(parts, 2, 0);
	sum = shortwire_csum_tcpudp_nofold(packet + 12, packet + 16, 13, 17, sum);
	printf("by hand: %04x\n", (unsigned)shortwire_csum_fold(sum));

	packet[30] ^= 1;
	printf("damaged: verify %d\n", shortwire_csum_verify(packet, sizeof packet));
	return 0;
}
