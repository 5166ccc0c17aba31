// Allocates on a given number of different stacks of about thirty frames: on one stack in four
// objects of mixed sizes, on the others all of one size. Keeps one object in four.
//
//   stacks COUNT [ROUND_MS]
//
// Once all stacks were met it says "ready" and waits; with ROUND_MS it keeps allocating
// on all of them, a round in a given number of milliseconds.
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

#define DEPTH 26
#define SITE __attribute__((noinline, noclone))

static uint32_t state = 1;

static uint32_t noise(void) { return state = state * 1664525u + 1013904223u; }

static uint32_t stack;

SITE static void allocate(int often) {
    for (int i = 0; i < often; i++) {
        uint32_t choice = stack % 4 ? stack >> 2 : noise() >> 24;
        void *p = malloc(16u << choice % 9);
        if (!p) abort();
        if (noise() >> 30) free(p);
    }
}

// One of two places to call on from, for each bit that this depth stands for.
SITE static void walk(uint32_t bits, int depth, int often) {
    if (depth == 0) {
        allocate(often);
    } else if (depth * 17 / DEPTH != (depth - 1) * 17 / DEPTH && bits & 1) {
        walk(bits >> 1, depth - 1, often);
        __asm__ volatile("nop");
    } else {
        int used = depth * 17 / DEPTH != (depth - 1) * 17 / DEPTH;
        walk(bits >> used, depth - 1, often);
        __asm__ volatile("nop; nop");
    }
}

int main(int count, char **arguments) {
    uint32_t stacks = count > 1 ? (uint32_t)atoi(arguments[1]) : 1000;
    int pause_ms = count > 2 ? atoi(arguments[2]) : 0;
    // Enough of each size for every stack to be sampled.
    for (stack = 0; stack < stacks; stack++)
        walk(stack, DEPTH, 10 + 8192 / (16 << (stack >> 2) % 9));
    printf("ready\n");
    fflush(stdout);
    struct timespec pause = {pause_ms / 1000, pause_ms % 1000 * 1000000L};
    while (pause_ms) {
        for (stack = 0; stack < stacks; stack++) walk(stack, DEPTH, 1);
        nanosleep(&pause, NULL);
    }
    return getchar() == EOF ? 0 : 1;
}
