// Requests more than it may have (the caller limits its address space to less than 512 GiB), in every way and
// of every order of magnitude, each time before it keeps an object of 64 bytes. Says "ready", and at a line of input does so and prints what its dump should have.
#include "expected.h"
#include <errno.h>
#include <malloc.h>
#include <stdint.h>
#include <string.h>

TOTALS(kept)

// None of them is optimised away.
static void *volatile result;

SITE void site_kept(void) {
    result = malloc(64);
    if (!result) abort();
    born(&totals_kept, 64);
}

// `before`: what is resized.
SITE void site_refused(int way, size_t size, void *before) {
    void *object = before;
    errno = 0;
    int failure = ENOMEM;
    switch (way) {
    case 0: object = malloc(size); break;
    case 1: object = calloc(size / 16, 16); break;
    case 2:
    case 3:
    case 4: object = realloc(before, size); break;
    case 5: object = memalign(64, size); break;
    case 6: object = aligned_alloc(4096, size & ~(size_t)4095); break;
    case 7: failure = posix_memalign(&object, 64, size); break;
    }
    if (object || failure != ENOMEM || (way != 7 && errno != ENOMEM)) abort();
    free(before);
}

int main(void) {
    enum { WAYS = 8, ROUNDS = 80 };
    const size_t sizes[] = {
        (size_t)1 << 39,  (size_t)1 << 40,        (size_t)1 << 41,     (size_t)1 << 62, PTRDIFF_MAX,
        (size_t)1 << 63, ((size_t)1 << 63) + 4096, (size_t)3 << 62, SIZE_MAX - 65536, SIZE_MAX - 4096,
    };
    say("ready");
    if (getchar() == EOF) return 1;
    for (int round = 0; round < ROUNDS; round++)
        for (int way = 0; way < WAYS; way++)
            for (size_t at = 0; at < sizeof sizes / sizeof *sizes; at++) {
                site_refused(way, sizes[at], way == 2 || way == 3 ? malloc(way == 2 ? 100 : 100000) : NULL);
                site_kept();
            }
    print_expected();
    say("done");
    while (getchar() != EOF) {
    }
    return 0;
}
