/* Writes garbage over words of the interpreter's data, allocates, and puts them back: what a
 * profiler may meet that reads them in between. Called through ctypes with the GIL held, so that
 * nobody else reads them. */
#include <pthread.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

static _Thread_local uint64_t state = 88172645463325252u;

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

/* Each round corrupts one to three of the words at `places`. */
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

static struct {
    uint64_t **places, *were;
    size_t count;
    uint64_t seed;
    atomic_int stop;
} shared;

/* Writes garbage over the words, one after the other, and what was there every other time. */
static void *scribble(void *ignored) {
    state = shared.seed | 1;
    while (!atomic_load(&shared.stop)) {
        size_t at = next() % shared.count;
        uint64_t value = next() % 2 ? garbage(shared.were[at]) : shared.were[at];
        __atomic_store_n(shared.places[at], value, __ATOMIC_RELAXED);
    }
    return ignored;
}

/* Allocates while another thread scribbles on the words at `places`, which are put back behind it.
 * `were`: room for what they were. */
void disturb(uint64_t **places, uint64_t *were, size_t count, size_t rounds) {
    for (size_t i = 0; i < count; i++)
        were[i] = *places[i];
    shared.places = places;
    shared.were = were;
    shared.count = count;
    shared.seed = next();
    atomic_store(&shared.stop, 0);
    pthread_t thread;
    if (pthread_create(&thread, NULL, scribble, NULL))
        abort();
    for (size_t round = 0; round < rounds; round++) {
        void *block = malloc(100 + next() % 1000);
        void *volatile other = realloc(block, 5000);
        free(other);
    }
    atomic_store(&shared.stop, 1);
    pthread_join(thread, NULL);
    for (size_t i = 0; i < count; i++)
        *places[i] = were[i];
}
