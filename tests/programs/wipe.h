// For programs that lose objects: nothing of their addresses is to stay behind.
#ifndef WIPE_H
#define WIPE_H

#include <string.h>

// Leaves nothing of the pointers in unused parts of the stack and in registers.
static __attribute__((noinline)) void wipe() {
    char local[1 << 16];
    memset(local, 1, sizeof local);
    asm volatile("" : : "r"(local) : "memory");
#if defined(__x86_64__)
    asm volatile(
        "pxor %%xmm0, %%xmm0\n\tpxor %%xmm1, %%xmm1\n\tpxor %%xmm2, %%xmm2\n\t"
        "pxor %%xmm3, %%xmm3\n\tpxor %%xmm4, %%xmm4\n\tpxor %%xmm5, %%xmm5"
        :
        :
        : "xmm0", "xmm1", "xmm2", "xmm3", "xmm4", "xmm5");
#endif
}

#endif
