// Blocks of 16 to 256 bytes that one thread allocates, at the bottom of a stack of a given depth, and
// another frees.
//
//   handed DEPTH THREADS PAIRS
//
// DEPTH counts all frames of those that allocate, of libc's start too; half of the threads do, and each
// hands its blocks, a batch at a time, to one of the other half. PAIRS is for each that allocates.
// Compiled without frame pointers.
#include <pthread.h>
#include <stdint.h>
#include <stdlib.h>

enum { BATCH = 1024, OUTER = 4 };  // start of a thread, two of libc, work: not deep()'s

// Two batches: one is filled while the other is emptied.
struct belt {
    char *blocks[2][BATCH];
    int full[2];
    pthread_mutex_t lock;
    pthread_cond_t turn;
};

static int depth;
static long batches;

static uint64_t next(uint64_t *state) {
    *state ^= *state << 13;
    *state ^= *state >> 7;
    *state ^= *state << 17;
    return *state;
}

// Waits until a batch is full or empty, as wanted.
static void await(struct belt *belt, int side, int full) {
    pthread_mutex_lock(&belt->lock);
    while (belt->full[side] != full) pthread_cond_wait(&belt->turn, &belt->lock);
    pthread_mutex_unlock(&belt->lock);
}

static void pass(struct belt *belt, int side, int full) {
    pthread_mutex_lock(&belt->lock);
    belt->full[side] = full;
    pthread_cond_signal(&belt->turn);
    pthread_mutex_unlock(&belt->lock);
}

__attribute__((noinline, noclone)) static void work(struct belt *belt) {
    uint64_t state = 88172645463325252u;
    for (long batch = 0; batch < batches; batch++) {
        int side = batch & 1;
        await(belt, side, 0);
        for (int i = 0; i < BATCH; i++) {
            char *block = malloc(16 + (next(&state) >> 8) % 241);
            *block = 1;
            belt->blocks[side][i] = block;
        }
        pass(belt, side, 1);
    }
}

__attribute__((noinline, noclone)) static int deep(int frames, struct belt *belt) {
    volatile char frame[16];
    frame[0] = (char)frames;
    if (frames <= 1)
        work(belt);
    else
        deep(frames - 1, belt);
    return frame[0];  // not a tail call
}

static void *allocate(void *belt) {
    deep(depth - OUTER, belt);
    return NULL;
}

static void *release(void *argument) {
    struct belt *belt = argument;
    for (long batch = 0; batch < batches; batch++) {
        int side = batch & 1;
        await(belt, side, 1);
        for (int i = 0; i < BATCH; i++) free(belt->blocks[side][i]);
        pass(belt, side, 0);
    }
    return NULL;
}

int main(int argc, char **argv) {
    if (argc != 4) return 2;
    depth = atoi(argv[1]);
    int threads = atoi(argv[2]);
    batches = atol(argv[3]) / BATCH;
    if (depth <= OUTER || threads < 2 || threads > 64 || threads % 2) return 2;
    static struct belt belts[32];
    pthread_t ids[64];
    for (int i = 0; i < threads; i++) {
        struct belt *belt = &belts[i / 2];
        if (i % 2 == 0) {
            pthread_mutex_init(&belt->lock, NULL);
            pthread_cond_init(&belt->turn, NULL);
        }
        if (pthread_create(&ids[i], NULL, i % 2 ? release : allocate, belt)) return 1;
    }
    for (int i = 0; i < threads; i++) pthread_join(ids[i], NULL);
    return 0;
}
