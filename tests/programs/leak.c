// A library with a leak, for programs that load it.
#include <stdlib.h>
#include <string.h>

static void *last;

__attribute__((noinline, noclone)) int site_leak(long bytes) {
    void *p = malloc(bytes);
    if (!p) return 1;
    memset(p, 1, bytes);
    last = p;
    return 0;
}

// Leaks count objects of 100, 101, 102, … bytes, at most 900.
int leak_many(long count) {
    for (long i = 0; i < count; i++)
        if (site_leak(100 + i % 801)) return 1;
    return 0;
}
