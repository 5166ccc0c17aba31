// Threads whose destructors of thread-specific data allocate, in every round that there is, also after the
// allocator has given up its own data of the thread. What they keep is checked at the end.
#include <malloc.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define KEYS 8
#define MOST 100000

static pthread_key_t keys[KEYS];
static unsigned char *kept[MOST];
static int count, ended;

static void destroy(void *data) {
    free(data);
    for (int i = 0; i < 200; i++) {
        unsigned char *p = malloc(64 + i * 16);
        memset(p, 1, malloc_usable_size(p));
        if (i % 3) free(p);
        else kept[__atomic_fetch_add(&count, 1, __ATOMIC_RELAXED)] = p;
    }
    int turn = __atomic_fetch_add(&ended, 1, __ATOMIC_RELAXED);
    if (turn % 4 != 3) pthread_setspecific(keys[turn % KEYS], malloc(2064));
}

static void *run(void *unused) {
    for (int i = 0; i < KEYS; i++) pthread_setspecific(keys[i], calloc(1, 2032));
    for (int i = 0; i < 1000; i++) free(malloc(i));
    return unused;
}

int main(void) {
    for (int i = 0; i < KEYS; i++)
        if (pthread_key_create(&keys[i], destroy)) abort();
    for (int i = 0; i < 20; i++) {
        pthread_t thread;
        if (pthread_create(&thread, NULL, run, NULL) || pthread_join(thread, NULL)) abort();
    }
    // Each block is nobody else's: what is written to one stays when all others are.
    for (int i = 0; i < count; i++) memset(kept[i], i % 251, malloc_usable_size(kept[i]));
    for (int i = 0; i < count; i++) {
        size_t bytes = malloc_usable_size(kept[i]);
        for (size_t at = 0; at < bytes; at++)
            if (kept[i][at] != i % 251) return 3;
        free(kept[i]);
    }
    puts("done");
}
