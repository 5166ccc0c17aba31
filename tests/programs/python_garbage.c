/* Writes garbage over words of the interpreter's data, allocates, and puts them back: what a
 * profiler may meet that reads them in between. Called through ctypes with the GIL held, so that
 * nobody else reads them. */
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

static uint64_t state = 88172645463325252u;

static uint64_t next(void) {
    state ^= state << 13;
    state ^= state >> 7;
    return state ^= state << 17;
}

static uint64_t garbage(uint64_t was) {
    switch (next() % 9) {
    case 0: return 0;
    case 1: return next();
    case 2: return next() & 0x7fffffffffff;
    case 3: return was ^ 1u << next() % 32;
    case 4: return was + 8 * (int64_t)(next() % 64) - 256;
    case 5: return was + 4096 * (int64_t)(next() % 64) - 131072;
    case 6: return ~(uint64_t)0 - next() % 64;
    case 7: return (uint64_t)&state;
    default: return was & ~0xfffu;
    }
}

/* Each round spoils one to three of the words at `places`. */
void spoil(uint64_t **places, size_t count, size_t rounds) {
    for (size_t round = 0; round < rounds; round++) {
        uint64_t *at[3], was[3];
        size_t words = 1 + next() % 3;
        for (size_t i = 0; i < words; i++) {
            at[i] = places[next() % count];
            memcpy(&was[i], at[i], 8);
            uint64_t bad = garbage(was[i]);
            memcpy(at[i], &bad, 8);
        }
        void *block = malloc(100 + next() % 1000);
        void *volatile other = realloc(block, 5000);
        for (size_t i = words; i-- > 0;)
            memcpy(at[i], &was[i], 8);
        free(other);
    }
}
