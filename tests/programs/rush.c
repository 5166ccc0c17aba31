// Threads that all begin to allocate at the same moment, and keep what they allocate: RUSH objects each.
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>

enum { THREADS = 16, RUSH = 1000 };

static pthread_barrier_t barrier;
static void *kept[THREADS][RUSH];

__attribute__((noinline)) void site_rush(void **slots) {
    for (int i = 0; i < RUSH; i++) {
        slots[i] = malloc(500);
        if (!slots[i]) abort();
    }
    __asm__ volatile("");
}

static void *run(void *slots) {
    pthread_barrier_wait(&barrier);
    site_rush(slots);
    pthread_barrier_wait(&barrier);
    return NULL;
}

int main(void) {
    char line[16];
    pthread_t ids[THREADS];
    pthread_barrier_init(&barrier, NULL, THREADS + 1);
    for (int i = 0; i < THREADS; i++)
        if (pthread_create(&ids[i], NULL, run, kept[i])) abort();
    puts("ready");
    fflush(stdout);
    if (!fgets(line, sizeof line, stdin)) return 1;
    pthread_barrier_wait(&barrier);
    pthread_barrier_wait(&barrier);
    puts("done");
    fflush(stdout);
    while (fgets(line, sizeof line, stdin)) {}
    for (int i = 0; i < THREADS; i++) pthread_join(ids[i], NULL);
    return 0;
}
