/* How a program starts. An object of its own: whoever has a __libc_start_main does without this one. */

#ifdef __x86_64__
#define BASE "GLIBC_2.2.5"
#else
#define BASE "GLIBC_2.17"
#endif
#define OWN __attribute__((visibility("hidden")))

/* Until 2.34 a program brought the function that calls its constructors, and start files of today bring none. A new C
   library calls what it is given, too. */
typedef void function(int count, char **arguments, char **environment);
extern OWN function *__init_array_start[], *__init_array_end[];
extern OWN void _init(void);

static void constructors(int count, char **arguments, char **environment) {
    _init();
    for (function **next = __init_array_start; next < __init_array_end; next++)
        (*next)(count, arguments, environment);
}

__asm__(".symver libc_start, __libc_start_main@" BASE);
int libc_start(void *main, int count, char **arguments, function *init, void *fini, void *loader_fini, void *stack_end);

OWN int __libc_start_main(void *main, int count, char **arguments, function *init, void *fini, void *loader_fini,
                          void *stack_end) {
    return libc_start(main, count, arguments, init ? init : constructors, fini, loader_fini, stack_end);
}
