/*
 * A library that goes past libc. UNTOLD: with a call, never made, that nothing can be put in the place of.
 */
#include <sys/syscall.h>

/* The number comes in a register, as in a library for any call. */
__attribute__((noinline)) long any_call(long number, long a, long b, long c)
{
#ifdef __aarch64__
    register long r asm("x0") = a, second asm("x1") = b, third asm("x2") = c, n asm("x8") = number;
    __asm__ volatile("svc #0" : "+r"(r) : "r"(second), "r"(third), "r"(n) : "memory");
#else
    long r;
    __asm__ volatile("syscall" : "=a"(r) : "a"(number), "D"(a), "S"(b), "d"(c) : "rcx", "r11", "memory");
#endif
    return r;
}

#ifdef UNTOLD
__asm__(".globl untold\n"
        "untold:\n"
        "    mov %rdi, %rax\n"
        "    test %rsi, %rsi\n"
        "    jz 1f\n"
        "    xor %rsi, %rsi\n"
        "1:  syscall\n"
        "    jmp *%r8\n");
#endif
