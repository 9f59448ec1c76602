static inline __sum16 csum_fold(__wsum sum)
{
	return (__sum16)(~(sum + (sum << 16 | sum >> 16)) >> 16);
}
