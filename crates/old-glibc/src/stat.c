/* The functions of today's C library that an old one has under other names. */

#ifdef __x86_64__
#define STAT_VERSION 1
#else
#define STAT_VERSION 0
#endif
#define OWN __attribute__((visibility("hidden")))

/* Until 2.33 these were inline functions around ones that are told the version of struct stat. */
int __fxstat64(int version, int file, void *status);
int __xstat64(int version, const char *path, void *status);
int __lxstat64(int version, const char *path, void *status);
int __fxstatat64(int version, int directory, const char *path, void *status, int flags);

OWN int fstat64(int file, void *status) { return __fxstat64(STAT_VERSION, file, status); }
OWN int stat64(const char *path, void *status) { return __xstat64(STAT_VERSION, path, status); }
OWN int lstat64(const char *path, void *status) { return __lxstat64(STAT_VERSION, path, status); }
OWN int fstatat64(int directory, const char *path, void *status, int flags) {
    return __fxstatat64(STAT_VERSION, directory, path, status, flags);
}
/* On 64-bit machines the two structures are one. */
OWN int fstat(int file, void *status) __attribute__((alias("fstat64")));
OWN int stat(const char *path, void *status) __attribute__((alias("stat64")));
OWN int lstat(const char *path, void *status) __attribute__((alias("lstat64")));
OWN int fstatat(int directory, const char *path, void *status, int flags) __attribute__((alias("fstatat64")));
