// Allocates from many stacks in one thread, and frees in others.
//
// Prints "ready". "own N" hands N objects, each from a stack of its own, to a thread that allocates,
// too; "bare N" to one that only frees. Both print "ok". "expected" prints what is counted.
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MOST = 4096, DEPTH = 12, BYTES = 100 };

static void *objects[MOST];
static int count, made;

__attribute__((noinline, noclone)) void *site_handed(void) {
    void *p = malloc(BYTES);
    memset(p, 1, BYTES);
    made++;
    return p;
}

void *left(int bits, int depth);
void *right(int bits, int depth);

__attribute__((noinline)) void *further(int bits, int depth) {
    if (depth == 0) return site_handed();
    return bits & 1 ? right(bits >> 1, depth - 1) : left(bits >> 1, depth - 1);
}

// What follows each call keeps it from being a tail call, and the two functions from being one.
__attribute__((noinline, noclone)) void *left(int bits, int depth) {
    void *p = further(bits, depth);
    __asm__ volatile("" : : "r"(p) : "memory");
    return p;
}

__attribute__((noinline, noclone)) void *right(int bits, int depth) {
    void *p = further(bits, depth);
    __asm__ volatile("nop" : : "r"(p) : "memory");
    return p;
}

static void *frees(void *allocates) {
    if (allocates) free(malloc(1));
    for (int i = 0; i < count; i++) free(objects[i]);
    return NULL;
}

static void hand(int n, int allocates) {
    pthread_t thread;
    count = n < MOST ? n : MOST;
    for (int i = 0; i < count; i++) objects[i] = left(i, DEPTH);
    if (pthread_create(&thread, NULL, frees, allocates ? objects : NULL)) abort();
    pthread_join(thread, NULL);
}

int main(void) {
    char line[100];
    int n;
    setvbuf(stdout, NULL, _IOLBF, 1024);
    puts("ready");
    while (fgets(line, sizeof line, stdin)) {
        if (sscanf(line, "own %d", &n) == 1)
            hand(n, 1);
        else if (sscanf(line, "bare %d", &n) == 1)
            hand(n, 0);
        else
            printf("site site_handed %d %d 0 0\n", made, made * BYTES);
        puts("ok");
    }
}
