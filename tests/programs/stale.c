// Leaves memory behind that looks like the headers of sampled objects, for the allocator to have at
// hand for other objects. Nothing is lost. Reads "plant" and the end of its input.
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { EACH = 400 };

static void *volatile kept[64];

// Size 0 and the record for a full table, of the first session; a birth, of which half are after any
// session's start; a weight.
static void fill(uint64_t *words, size_t count) {
    for (size_t i = 0; i < count; i++) {
        uint64_t born = (uint64_t)(i / 2 % 16) << 28;
        words[i] = i % 2 ? 0x4d00e9da00000000 | born : (uint64_t)1 << 32;
    }
}

static void plant(void) {
    static void *volatile gone[EACH];
    for (size_t bytes = 600; bytes < 13000; bytes += bytes / 2) {
        for (int i = 0; i < EACH; i++) {
            gone[i] = malloc(bytes);
            fill(gone[i], bytes / 8);
        }
        for (int i = 0; i < EACH; i++) {
            free(gone[i]);
            gone[i] = NULL;
        }
    }
    int count = 0;
    for (size_t bytes = 530; bytes < 14000; bytes += bytes / 6)
        kept[count++] = malloc(bytes);
}

int main(void) {
    char line[100];
    puts("ready");
    fflush(stdout);
    while (fgets(line, sizeof line, stdin)) {
        plant();
        puts("planted");
        fflush(stdout);
    }
    return 0;
}
