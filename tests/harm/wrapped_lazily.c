// guards: a program that wraps `malloc` and looks up each of the wrapped functions when it is first called
// build: -fno-builtin
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static long calls;

// Defines a wrapper, as many programs and libraries do that count or log what is allocated.
#define WRAPPER(result, name, parameters, arguments)               \
    result name parameters {                                       \
        static result(*next) parameters;                           \
        calls++;                                                   \
        if (!next) *(void **)&next = dlsym(RTLD_NEXT, #name);      \
        return next arguments;                                     \
    }

WRAPPER(void *, malloc, (size_t size), (size))
WRAPPER(void, free, (void *p), (p))
WRAPPER(void *, realloc, (void *p, size_t size), (p, size))
WRAPPER(int, posix_memalign, (void **p, size_t align, size_t size), (p, align, size))
WRAPPER(void *, aligned_alloc, (size_t align, size_t size), (align, size))

int main(void) {
    for (int i = 0; i < 1000; i++) {
        char *p = malloc(i + 1);
        p = realloc(p, 2000);
        memset(p, 1, 2000);
        free(p);
        free(calloc(3, i + 1));
        free(strdup("a copy"));
        void *aligned = NULL;
        if (posix_memalign(&aligned, 64, 100) == 0) free(aligned);
        free(aligned_alloc(64, 640));
    }
    printf("%s\n", calls >= 9000 ? "wrapped" : "not wrapped");
    return 0;
}
