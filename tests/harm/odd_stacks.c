// guards: calls from code that does not align the stack to 16 bytes, as hand-written assembly and -mpreferred-stack-boundary=3
// seconds: 180
#include <malloc.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <unistd.h>

#ifdef __x86_64__
// Calls f(a, b, c) with a stack pointer 8 bytes off.
__attribute__((naked)) static void *odd(void *f, size_t a, size_t b, size_t c)
{
    __asm__("push %rbp\n mov %rsp, %rbp\n and $-16, %rsp\n sub $8, %rsp\n"
            "mov %rdi, %rax\n mov %rsi, %rdi\n mov %rdx, %rsi\n mov %rcx, %rdx\n"
            "call *%rax\n mov %rbp, %rsp\n pop %rbp\n ret");
}
#else
static void *odd(void *f, size_t a, size_t b, size_t c) { return ((void *(*)(size_t, size_t, size_t))f)(a, b, c); }
#endif

enum { SLOTS = 500, ROUNDS = 60, LARGE = 9 << 20 };

static void *slots[SLOTS];

static void *take(int way, void *old, size_t size)
{
    void *made = NULL;
    switch (way) {
    case 0: return odd(malloc, size, 0, 0);
    case 1: return odd(calloc, 1, size, 0);
    case 2: return odd(memalign, 64, size, 0);
    case 3: return odd(aligned_alloc, 256, (size + 255) / 256 * 256, 0);
    case 4: return odd(valloc, size, 0, 0);
    case 5: return odd(pvalloc, size, 0, 0);
    case 6: return odd(posix_memalign, (size_t)&made, 4096, size) ? NULL : made;
    case 7: return odd(realloc, (size_t)old, size, 0);
    default: return odd(reallocarray, (size_t)old, size, 1);
    }
}

int main(void)
{
    int bad = 0;
    for (int way = 0; way < 9; way++)
        for (int round = 0; round < ROUNDS; round++)
            for (int i = 0; i < SLOTS; i++) {
                size_t size = (i * 977 + round * 31) % (i % 100 ? 3000 : 300000) + 1;
                void *old = slots[i];
                if (way < 7) {
                    odd(free, (size_t)old, 0, 0);
                    old = NULL;
                }
                slots[i] = take(way, old, size);
                bad += !slots[i] || (size_t)odd(malloc_usable_size, (size_t)slots[i], 0, 0) < size;
                if (slots[i])
                    memset(slots[i], way, size);
            }
    // An object that grows by steps of many pages.
    char *large = odd(malloc, LARGE, 0, 0);
    memset(large, 7, LARGE);
    for (size_t size = LARGE; size < 8 * (size_t)LARGE; size += LARGE)
        large = odd(realloc, (size_t)large, size, 0);
    bad += large[LARGE - 1] != 7;
    odd(free, (size_t)large, 0, 0);
    odd(malloc_trim, 0, 0, 0);
    odd(prctl, PR_SET_NAME, (size_t)"odd", 0);
    bad += (size_t)odd(syscall, SYS_getpid, 0, 0) != (size_t)getpid();
    printf("%d bad\n", bad);
    return bad != 0;
}
