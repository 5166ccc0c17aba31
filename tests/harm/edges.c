// guards: every function of the allocator at the edges of its arguments: null, errno, alignment, room
// build: -fno-builtin
// seconds: 180
#define _GNU_SOURCE
#include <errno.h>
#include <malloc.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

// Repeated, so that some of them are sampled in every session.
enum { TIMES = 16 };

static const char *name_of(int number)
{
    switch (number) {
    case 0: return "-";
    case ENOMEM: return "ENOMEM";
    case EINVAL: return "EINVAL";
    default: return "another";
    }
}

struct result {
    void *p;
    int error;
    // Of what was asked for, where that is a product of both numbers.
    int is_product;
};

static size_t room(void *p, size_t size)
{
    size_t usable = malloc_usable_size(p);
    memset(p, 0x55, size < usable ? size : usable);
    return usable;
}

// What a program may rely on: whether there is memory, aligned as asked, with room, and errno.
static void show(const char *call, size_t first_number, size_t size, struct result (*make)(size_t, size_t))
{
    char first[200] = "";
    for (int i = 0; i < TIMES; i++) {
        char line[200];
        size_t align = first_number;
        errno = 0;
        struct result got = make(align, size);
        size_t bytes = got.is_product ? align * size : size;
        if (got.is_product) align = 1;
        size_t least = align ? align : 1;
        while (least & (least - 1)) least &= least - 1;
        if (got.p && least < 16) least = 16;
        snprintf(line, sizeof line, "%s %zx %zx: %s %s%s%s", call, first_number, size, got.p ? "memory" : "null",
                 name_of(got.error), got.p && (uintptr_t)got.p % least ? " MISALIGNED" : "",
                 got.p && room(got.p, bytes) < bytes ? " SMALL" : "");
        if (i == 0) puts(strcpy(first, line));
        else if (strcmp(first, line)) printf("once: %s\n", line);
        free(got.p);
        // Whatever comes next lies elsewhere.
        void *volatile other = malloc(1 + i * 8);
        if (i % 3) free(other);
    }
}

#define MAKE(name, call)                                        \
    static struct result name(size_t a, size_t n)               \
    {                                                           \
        (void)a;                                                \
        void *p = call;                                         \
        return (struct result){p, errno};                       \
    }
MAKE(do_malloc, malloc(n))
MAKE(do_realloc_null, realloc(NULL, n))
MAKE(do_realloc, realloc(malloc(a), n))
MAKE(do_aligned_alloc, aligned_alloc(a, n))
MAKE(do_memalign, memalign(a, n))
MAKE(do_valloc, valloc(n))
MAKE(do_pvalloc, pvalloc(n))
static struct result do_calloc(size_t a, size_t n)
{
    void *p = calloc(a, n);
    return (struct result){p, errno, 1};
}
static struct result do_reallocarray(size_t a, size_t n)
{
    void *p = reallocarray(NULL, a, n);
    return (struct result){p, errno, 1};
}
static struct result do_posix_memalign(size_t a, size_t n)
{
    void *p = (void *)1;
    int error = posix_memalign(&p, a, n);
    return (struct result){error ? NULL : p, error};
}
// One that fails leaves the old object and its text as they were.
static struct result do_realloc_kept(size_t a, size_t n)
{
    char *old = malloc(a);
    memset(old, 7, a);
    char *p = realloc(old, n);
    int error = errno;
    for (size_t i = 0; !p && n && i < a; i++)
        if (old[i] != 7) puts("the old object has changed");
    if (!p && n) free(old);
    return (struct result){p, error};
}

static const size_t sizes[] = {0, 1, 7, 8, 15, 16, 17, 24, 100, 4095, 4096, 4097, 100000, 300000};
static const size_t huge[] = {SIZE_MAX, SIZE_MAX - 1, SIZE_MAX - 15, SIZE_MAX - 4095, SIZE_MAX - 4096, SIZE_MAX / 2 + 2,
                              SIZE_MAX / 2 + 1, SIZE_MAX / 2, SIZE_MAX / 2 - 4096, (size_t)1 << 62, (size_t)1 << 50};
static const size_t aligns[] = {0, 1, 2, 3, 4, 5, 8, 12, 16, 24, 31, 32, 48, 64, 100, 128, 4095, 4096, 4097, 8192, 65536,
                                1 << 21, SIZE_MAX, SIZE_MAX / 2, SIZE_MAX / 2 + 1, SIZE_MAX / 2 + 2, (size_t)1 << 62,
                                (size_t)1 << 60};
#define COUNT(of) (int)(sizeof of / sizeof *of)

static size_t size(int i)
{
    return i < COUNT(sizes) ? sizes[i] : huge[i - COUNT(sizes)];
}

int main(void)
{
    for (int i = 0; i < COUNT(sizes) + COUNT(huge); i++) {
        show("malloc", 0, size(i), do_malloc);
        show("realloc(null)", 0, size(i), do_realloc_null);
        show("valloc", 4096, size(i), do_valloc);
        show("pvalloc", 4096, size(i), do_pvalloc);
        for (int j = 0; j < COUNT(aligns); j++) {
            show("memalign", aligns[j], size(i), do_memalign);
            show("aligned_alloc", aligns[j], size(i), do_aligned_alloc);
            show("posix_memalign", aligns[j], size(i), do_posix_memalign);
        }
        for (int j = 0; j < COUNT(sizes) - 6; j++) {
            show("calloc", size(j), size(i), do_calloc);
            show("reallocarray", size(j), size(i), do_reallocarray);
            show("realloc", size(j), size(i), do_realloc);
            if (size(i)) show("realloc kept", size(j), size(i), do_realloc_kept);
        }
    }
    show("calloc", SIZE_MAX / 16 + 1, 16, do_calloc);
    show("calloc", (size_t)1 << 32, (size_t)1 << 32, do_calloc);
    show("reallocarray", (size_t)1 << 32, (size_t)1 << 32, do_reallocarray);
    show("pvalloc", 4096, SIZE_MAX - 4094, do_pvalloc);
    printf("usable size of null %zu\n", malloc_usable_size(NULL));
    free(NULL);
    printf("whole pages %d\n", malloc_usable_size(pvalloc(5000)) >= 8192);
    return 0;
}
