/*
 * later PORT LIBRARY HOW ROUNDS   a client of `many server`, which sends and receives by code of a library that it maps
 *                                 when it is connected already. HOW: dlopen; mapped, as code at once; protected, made code
 *                                 later; again, mapped and unmapped many times before; beside, so by several threads, which
 *                                 run it
 */
#include "common.h"
#include <dlfcn.h>
#include <pthread.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>

typedef long any_call(long number, long a, long b, long c);

struct library {
    int fd;
    size_t len, offset;
};

static char *mapped(const struct library *library, int access)
{
    char *code = mmap(NULL, library->len, access, MAP_PRIVATE, library->fd, 0);
    if (code == MAP_FAILED)
        die("mmap");
    return code;
}

/* What another thread has unmapped lies where this one maps, and the reverse. */
static void *beside(void *arg)
{
    const struct library *library = arg;
    for (int i = 0; i < 3000; i++) {
        char *code = mapped(library, PROT_READ | PROT_EXEC);
        if (((any_call *)(code + library->offset))(SYS_close, -1, 0, 0) >= 0)
            die("close");
        MUST(munmap(code, library->len));
    }
    return NULL;
}

static any_call *found(const char *path, const char *how)
{
    void *library = dlopen(path, RTLD_NOW);
    Dl_info at;
    void *symbol = library ? dlsym(library, "any_call") : NULL;
    if (!symbol || !dladdr(symbol, &at))
        die("%s", dlerror());
    if (!strcmp(how, "dlopen"))
        return (any_call *)symbol;
    struct library in = {.offset = (char *)symbol - (char *)at.dli_fbase};
    struct stat st;
    int is_later = !strcmp(how, "protected");
    in.fd = MUST(open(path, O_RDONLY | O_CLOEXEC));
    MUST(fstat(in.fd, &st));
    in.len = st.st_size;
    pthread_t threads[4];
    int n = strcmp(how, "beside") ? 0 : 4;
    for (int i = 0; i < n; i++)
        if (pthread_create(&threads[i], NULL, beside, &in))
            die("pthread_create");
    for (int i = 0; i < n; i++)
        pthread_join(threads[i], NULL);
    int how_much = strcmp(how, "again") ? 1 : 2000;
    char *code = NULL;
    while (how_much--) {
        if (code)
            munmap(code, in.len);
        code = mapped(&in, PROT_READ | (is_later ? 0 : PROT_EXEC));
    }
    if (is_later)
        MUST(mprotect(code, in.len, PROT_READ | PROT_EXEC));
    close(in.fd);
    return (any_call *)(code + in.offset);
}

static long pages(void)
{
    long n = 0;
    FILE *f = fopen("/proc/self/statm", "r");
    if (!f || fscanf(f, "%ld", &n) != 1)
        die("statm");
    fclose(f);
    return n;
}

int main(int argc, char **argv)
{
    unsigned char out[64], in[64];
    if (argc != 5)
        return 2;
    int fd = dial(atoi(argv[1])), rounds = atoi(argv[4]);
    long before = pages();
    any_call *call = found(argv[2], argv[3]);
    if (!strcmp(argv[3], "again") && pages() > before + 1000)
        die("%ld pages, %ld before", pages(), before);
    for (int i = 0; i < rounds; i++) {
        size_t got = 0;
        fill(out, 7, i * sizeof out, sizeof out);
        if (call(SYS_write, fd, (long)out, sizeof out) != sizeof out)
            die("write");
        while (got < sizeof in) {
            long n = call(SYS_read, fd, (long)(in + got), sizeof in - got);
            if (n <= 0)
                die("read: %ld", n);
            got += n;
        }
        if (memcmp(in, out, sizeof in))
            die("round %d differs", i);
        if (i % 100 == 0)
            usleep(1000);
    }
    printf("done\n");
    return 0;
}
