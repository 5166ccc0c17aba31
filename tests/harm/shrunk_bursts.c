// guards: a program that fills and frees its heap more than once does not keep that memory: it is returned soon after each time, while the program does little
// seconds: 300
// modes: idle, 1024, 1
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>
#include "lib/resident.h"

enum { KIB = 1 << 10, MIB = 1 << 20, TOTAL = 64 * MIB, MOST_MIB = 32, SECONDS = 60 };

static void fill_and_free(size_t total, size_t bytes)
{
    size_t count = total / bytes;
    char **objects = malloc(count * sizeof *objects);
    for (size_t i = 0; i < count; i++) {
        objects[i] = malloc(bytes);
        memset(objects[i], 1, bytes);
    }
    for (size_t i = 0; i < count; i++)
        free(objects[i]);
    free(objects);
}

static void *of_thread(void *bytes)
{
    fill_and_free(TOTAL / 4, (size_t)bytes);
    return NULL;
}

static void burst(size_t bytes, int threads)
{
    pthread_t ids[4];
    if (!threads)
        fill_and_free(TOTAL, bytes);
    for (int i = 0; i < threads; i++)
        pthread_create(&ids[i], NULL, of_thread, (void *)bytes);
    for (int i = 0; i < threads; i++)
        pthread_join(ids[i], NULL);
}

// Uses small objects until little is resident. Returns what is resident at the end.
static long work(void)
{
    struct timespec start, now;
    long mib;
    clock_gettime(CLOCK_MONOTONIC, &start);
    do {
        for (int i = 0; i < 10000; i++)
            free(malloc(1 + i % 300));
        usleep(5000);
        mib = resident_mib();
        clock_gettime(CLOCK_MONOTONIC, &now);
    } while (mib > MOST_MIB && now.tv_sec - start.tv_sec < SECONDS);
    return mib;
}

struct Case {
    size_t bytes;
    int threads;
    // Bursts before the heap is looked at for the first time, and in all.
    int first, bursts;
};

// Exits with 1 if much stays resident after a burst.
static void run(const struct Case *c)
{
    for (int i = 1; i <= c->bursts; i++) {
        burst(c->bytes, c->threads);
        if (i < c->first)
            continue;
        long mib = work();
        if (mib >= 0 && mib <= MOST_MIB)
            continue;
        fprintf(stderr, "%zu bytes, %d threads, burst %d: %ld MiB stay\n", c->bytes, c->threads, i, mib);
        _exit(1);
    }
    _exit(0);
}

int main(void)
{
    static const struct Case cases[] = {
        {1000, 0, 1, 3},       {4096, 0, 1, 3},       {4096, 0, 4, 4},  {20000, 0, 2, 3},
        {200 * KIB, 0, 1, 3},  {3 * MIB, 0, 2, 3},    {4096, 4, 2, 3},  {20000, 4, 2, 3},
    };
    enum { CASES = sizeof cases / sizeof *cases };
    int failures = 0;
    pid_t children[CASES];
    // All at once: most of the time is spent waiting.
    for (int i = 0; i < CASES; i++)
        if (!(children[i] = fork()))
            run(&cases[i]);
    for (int i = 0; i < CASES; i++) {
        int status = -1;
        waitpid(children[i], &status, 0);
        failures += status != 0;
    }
    puts(failures ? "too much is kept" : "ok");
    return failures != 0;
}
