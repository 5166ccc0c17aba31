// A library whose code at one place differs with VARIANT.
#include <alloca.h>
#include <stddef.h>

__attribute__((noinline)) static void inner(void (*allocate)(size_t), int n) {
#ifdef VARIANT
    volatile char block[8 + VARIANT];
#else
    volatile char block[200];
#endif
    block[0] = n;
    allocate(16 + block[0]);
    if (n > 0)
        inner(allocate, n - 1);
    block[1] = n;
}

void entry(void (*allocate)(size_t)) {
    inner(allocate, 4);
    allocate(8);
}
