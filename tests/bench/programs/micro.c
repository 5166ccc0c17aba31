// Pairs of malloc and free, 16 to 256 bytes, at the bottom of a stack of a given depth.
//
//   micro DEPTH THREADS PAIRS
//
// DEPTH counts all frames, of libc's start too; PAIRS is for each thread. With one thread
// the main one works; otherwise that many new ones, all with one and the same stack.
// Compiled without frame pointers.
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

enum { SLOTS = 64, OUTER = 5 };  // _start, two of libc, main, work: not deep()'s

static int depth;
static long pairs;

static uint64_t next(uint64_t *state) {
    *state ^= *state << 13;
    *state ^= *state >> 7;
    *state ^= *state << 17;
    return *state;
}

__attribute__((noinline, noclone)) static void work(long count) {
    char *slots[SLOTS] = {0};
    uint64_t state = 88172645463325252u;
    for (long i = 0; i < count; i++) {
        uint64_t random = next(&state);
        char **slot = &slots[random % SLOTS];
        free(*slot);
        *slot = malloc(16 + (random >> 8) % 241);
        **slot = 1;
    }
    for (int i = 0; i < SLOTS; i++) free(slots[i]);
}

__attribute__((noinline, noclone)) static int deep(int frames, long count) {
    volatile char frame[16];
    frame[0] = (char)frames;
    if (frames <= 1)
        work(count);
    else
        deep(frames - 1, count);
    return frame[0];  // not a tail call
}

static void *thread(void *unused) {
    (void)unused;
    deep(depth - OUTER, pairs);
    return NULL;
}

int main(int argc, char **argv) {
    if (argc != 4) return 2;
    depth = atoi(argv[1]);
    int threads = atoi(argv[2]);
    pairs = atol(argv[3]);
    if (depth <= OUTER || threads < 1 || threads > 64) return 2;
    if (threads == 1) {
        deep(depth - OUTER, pairs);
        return 0;
    }
    pthread_t ids[64];
    for (int i = 0; i < threads; i++)
        if (pthread_create(&ids[i], NULL, thread, NULL)) return 1;
    for (int i = 0; i < threads; i++) pthread_join(ids[i], NULL);
    return 0;
}
