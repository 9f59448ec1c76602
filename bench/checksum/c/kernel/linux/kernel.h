/* Of arch/arm64/lib/csum.c: nothing of it is needed. */
