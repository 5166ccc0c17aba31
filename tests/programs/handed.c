// Allocates from many stacks in one thread, and frees in others.
//
// Prints "ready". "own N" hands N objects, each from a stack of its own, to a thread that allocates,
// too; "bare N" to one that only frees; "few N" to many that free some each. "expected" prints what is
// counted. All end with "ok".
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

// A thread that frees more than FEW objects gets records of its own.
enum { MOST = 1024, FEW = 50, DEPTH = 5, BYTES = 100 };

static void *objects[MOST];
static int made;

__attribute__((noinline, noclone)) void *site_handed(void) {
    void *p = malloc(BYTES);
    memset(p, 1, BYTES);
    made++;
    return p;
}

void *north(int path, int depth);
void *east(int path, int depth);
void *south(int path, int depth);
void *west(int path, int depth);

static inline __attribute__((always_inline)) void *further(int path, int depth) {
    if (depth == 0) return site_handed();
    switch (path & 3) {
        case 0: return north(path >> 2, depth - 1);
        case 1: return east(path >> 2, depth - 1);
        case 2: return south(path >> 2, depth - 1);
        default: return west(path >> 2, depth - 1);
    }
}

// Four functions that call on: a few levels of them make many stacks of few frames. What follows each
// call keeps it from being a tail call, and the functions from being one.
#define CALLS_ON(NAME, INSTRUCTION)                                      \
    __attribute__((noinline, noclone)) void *NAME(int path, int depth) { \
        void *p = further(path, depth);                                  \
        __asm__ volatile(INSTRUCTION : : "r"(p) : "memory");             \
        return p;                                                        \
    }
CALLS_ON(north, "")
CALLS_ON(east, "nop")
CALLS_ON(south, "nop; nop")
CALLS_ON(west, "nop; nop; nop")

// Objects from `from` to `until`, to be freed by a thread; with `allocates`, one that allocates, too.
struct Part {
    int from, until, allocates;
};

static void *frees(void *data) {
    struct Part *part = data;
    if (part->allocates) free(malloc(1));
    for (int i = part->from; i < part->until; i++) free(objects[i]);
    return NULL;
}

// Hands n objects to threads that free `share` of them each.
static void hand(int n, int share, int allocates) {
    int count = n < MOST ? n : MOST;
    for (int i = 0; i < count; i++) objects[i] = further(i, DEPTH);
    for (int from = 0; from < count; from += share) {
        struct Part part = {from, from + share < count ? from + share : count, allocates};
        pthread_t thread;
        if (pthread_create(&thread, NULL, frees, &part)) abort();
        pthread_join(thread, NULL);
    }
}

int main(void) {
    char line[100];
    int n;
    setvbuf(stdout, NULL, _IOLBF, 1024);
    puts("ready");
    while (fgets(line, sizeof line, stdin)) {
        if (sscanf(line, "own %d", &n) == 1)
            hand(n, MOST, 1);
        else if (sscanf(line, "bare %d", &n) == 1)
            hand(n, MOST, 0);
        else if (sscanf(line, "few %d", &n) == 1)
            hand(n, FEW, 0);
        else
            printf("site site_handed %d %d 0 0\n", made, made * BYTES);
        puts("ok");
    }
}
