// jemalloc's calls, where the program finds them, mixed with those of the C library: whatever one
// gives, the other takes. Says "ok", or ends with the line that failed.
#include <errno.h>
#include <malloc.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define WEAK __attribute__((weak))
void *mallocx(size_t, int) WEAK;
void *rallocx(void *, size_t, int) WEAK;
size_t xallocx(void *, size_t, size_t, int) WEAK;
size_t sallocx(const void *, int) WEAK;
void dallocx(void *, int) WEAK;
void sdallocx(void *, size_t, int) WEAK;
size_t nallocx(size_t, int) WEAK;
int mallctl(const char *, void *, size_t *, void *, size_t) WEAK;

enum { ZERO = 0x40, ROUNDS = 1000 };

static void check(int holds, int line) {
    if (holds) return;
    printf("line %d\n", line);
    exit(1);
}
#define CHECK(holds) check((holds) != 0, __LINE__)

static void *dirty(size_t bytes) {
    void *p = malloc(bytes);
    CHECK(p);
    return memset(p, 0xa5, bytes);
}

static int is_zero(const char *p, size_t bytes) {
    for (size_t i = 0; i < bytes; i++)
        if (p[i]) return 0;
    return 1;
}

static void mix(size_t bytes) {
    free(dirty(bytes));
    char *p = mallocx(bytes, ZERO);
    CHECK(p && is_zero(p, bytes) && sallocx(p, 0) >= bytes);
    free(p);

    for (int lg = 0; lg <= 13; lg++) {
        free(dirty(bytes));
        p = mallocx(bytes, lg | ZERO);
        CHECK(p && (uintptr_t)p % (1ul << lg) == 0 && is_zero(p, bytes));
        memset(p, 1, bytes);
        p = rallocx(p, 3 * bytes, lg);
        CHECK(p && (uintptr_t)p % (1ul << lg) == 0 && p[0] == 1 && p[bytes - 1] == 1);
        p = realloc(p, 5 * bytes);
        CHECK(p && p[bytes - 1] == 1);
        dallocx(p, 0);
    }

    p = dirty(bytes);
    size_t usable = malloc_usable_size(p);
    CHECK(xallocx(p, bytes, 0, 0) >= bytes);
    p = rallocx(p, usable + 5000, ZERO);
    CHECK(p && (unsigned char)p[bytes - 1] == 0xa5 && is_zero(p + usable, 5000));
    sdallocx(p, usable + 5000, 0);
    CHECK(nallocx(bytes, 0) >= bytes && nallocx(bytes, 12) % 4096 == 0);
}

int main(void) {
    CHECK(mallocx && rallocx && xallocx && sallocx && dallocx && sdallocx && nallocx && mallctl);
    for (size_t i = 1; i <= ROUNDS; i++) mix(i * 7);
    size_t value = 0, length = sizeof value;
    int code = mallctl("stats.allocated", &value, &length, NULL, 0);
    CHECK(code == 0 || code == ENOENT);
    puts("ok");
    return 0;
}
