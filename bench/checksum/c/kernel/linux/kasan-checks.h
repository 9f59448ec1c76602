#define kasan_check_read(at, length)
#define __no_sanitize_address
