// 512 functions that each allocate small and large objects through one stack, and free
// every third. What each holds at the end is the same, and printed.
#include <stdio.h>
#include <stdlib.h>

static const struct {
    size_t bytes;
    int objects;
} kinds[] = {{16, 6000}, {64, 1200}, {512, 180}, {4096, 18}};

static void *volatile sink;

#define SITE(n)                                                               \
    __attribute__((noinline, noclone)) void site_##n(void) {                  \
        for (unsigned k = 0; k < sizeof kinds / sizeof *kinds; k++)           \
            for (int i = 0; i < kinds[k].objects; i++) {                      \
                sink = malloc(kinds[k].bytes);                                \
                if (i % 3 == 0) free(sink);                                   \
            }                                                                 \
    }
#define SITES_4(n) SITE(n##0) SITE(n##1) SITE(n##2) SITE(n##3)
#define SITES_16(n) SITES_4(n##0) SITES_4(n##1) SITES_4(n##2) SITES_4(n##3)
#define SITES_64(n) SITES_16(n##0) SITES_16(n##1) SITES_16(n##2) SITES_16(n##3)
SITES_64(_0) SITES_64(_1) SITES_64(_2) SITES_64(_3)
SITES_64(_4) SITES_64(_5) SITES_64(_6) SITES_64(_7)

#define CALL(n) site_##n();
#define CALLS_4(n) CALL(n##0) CALL(n##1) CALL(n##2) CALL(n##3)
#define CALLS_16(n) CALLS_4(n##0) CALLS_4(n##1) CALLS_4(n##2) CALLS_4(n##3)
#define CALLS_64(n) CALLS_16(n##0) CALLS_16(n##1) CALLS_16(n##2) CALLS_16(n##3)

int main(void) {
    long objects = 0, bytes = 0;
    for (unsigned k = 0; k < sizeof kinds / sizeof *kinds; k++) {
        long live = kinds[k].objects - (kinds[k].objects + 2) / 3;
        objects += live, bytes += live * (long)kinds[k].bytes;
    }
    CALLS_64(_0) CALLS_64(_1) CALLS_64(_2) CALLS_64(_3)
    CALLS_64(_4) CALLS_64(_5) CALLS_64(_6) CALLS_64(_7)
    printf("%ld %ld\n", objects, bytes);
    return 0;
}
