// Has an allocator of its own, built with -DPREFIX=NAME: NAMEmalloc and so on.
// -DPASSES_ON makes it ask the C library for the memory. -DLIBRARY makes it a library.
// "busy" computes, "allocate N" takes N objects of 100 bytes, "library N" lets the C library
// take N.
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define JOIN(a, b) a##b
#define NAME(a, b) JOIN(a, b)
#ifdef HIDDEN
#define VISIBLE __attribute__((visibility("hidden"), noinline))
#else
#define VISIBLE __attribute__((noinline))
#endif

#ifdef MESSAGE
const char message[] __attribute__((used)) = MESSAGE;
#endif

#ifdef PREFIX
#ifdef PASSES_ON
static void *(*next)(size_t);
VISIBLE void *NAME(PREFIX, malloc)(size_t bytes) {
    if (!next) *(void **)&next = dlsym(RTLD_NEXT, "malloc");
    return next(bytes);
}
#else
static char pool[64 << 20];
static size_t used = 16;

VISIBLE void *NAME(PREFIX, malloc)(size_t bytes) {
    size_t at = __atomic_fetch_add(&used, (bytes + 31) & ~(size_t)15, __ATOMIC_RELAXED);
    if (at + bytes > sizeof pool) return NULL;
    *(size_t *)(pool + at - 16) = bytes;
    return pool + at;
}
VISIBLE void NAME(PREFIX, free)(void *p) { (void)p; }
VISIBLE void *NAME(PREFIX, calloc)(size_t n, size_t bytes) { return NAME(PREFIX, malloc)(n * bytes); }
VISIBLE void *NAME(PREFIX, realloc)(void *old, size_t bytes) {
    void *p = NAME(PREFIX, malloc)(bytes);
    if (p && old) {
        size_t before = ((size_t *)old)[-2];
        memcpy(p, old, before < bytes ? before : bytes);
    }
    return p;
}
#endif
#define TAKE NAME(PREFIX, malloc)
#else
#define TAKE malloc
#endif

#ifndef LIBRARY
static void *volatile kept;

int main(void) {
    char line[64], copy[100];
    setvbuf(stdout, NULL, _IONBF, 0);
    puts("ready");
    while (fgets(line, sizeof line, stdin)) {
        int n = atoi(line + strcspn(line, " "));
        volatile unsigned long turns = 0;
        if (!strncmp(line, "busy", 4))
            while (turns < 400000000) turns++;
        memset(copy, 'x', sizeof copy - 1);
        copy[sizeof copy - 1] = 0;
        for (int i = 0; i < n; i++) kept = line[0] == 'l' ? strdup(copy) : TAKE(100);
        puts("ok");
    }
    return 0;
}
#endif
