/* The kernel's own reads on where the next page is missing; the bench's memory goes on. */
static inline unsigned long load_unaligned_zeropad(const void *at)
{
	unsigned long word;
	memcpy(&word, at, sizeof word);
	return word;
}
