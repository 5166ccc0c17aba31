// Allocates and frees in several threads for as long as it lives, and keeps the totals of it in a
// file that outlives it.
//
//   crash_target TOTALS THREADS [hog]
//
// Each thread has a line of its own in the file: allocations and frees that it has come
// back from. "hog" frees nothing, and begins with a line on the input where
// CRASH_TARGET_WAITS is set. Another line ends the program as it says: "abort", "segv",
// "_exit" or "exit".
#define _GNU_SOURCE
#include <fcntl.h>
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#define SITE __attribute__((noinline, noclone))
#define BYTES 1000
#define KEPT 4096

// A cache line of its own.
struct totals {
    uint64_t allocated, freed, pad[6];
};

static struct totals *totals;
static int hog;

static void fail(const char *what) {
    perror(what);
    abort();
}

SITE static void *site_crash_target(void) {
    char *p = malloc(BYTES);
    if (!p) abort();
    memset(p, 1, BYTES);
    return p;
}

static void write_down(uint64_t *count) {
    __atomic_store_n(count, *count + 1, __ATOMIC_RELEASE);
}

static void *live(void *number) {
    struct totals *own = &totals[(intptr_t)number];
    static __thread void *kept[KEPT];
    for (uint64_t i = 0;; i++) {
        void **place = &kept[i * 2654435761u % KEPT];
        if (*place && !hog) {
            free(*place);
            write_down(&own->freed);
        }
        *place = site_crash_target();
        write_down(&own->allocated);
    }
    return NULL;
}

static void die(const char *how) {
    if (!strcmp(how, "abort\n")) abort();
    if (!strcmp(how, "segv\n")) *(volatile int *)8 = 1;
    if (!strcmp(how, "_exit\n")) _exit(0);
    exit(0);
}

int main(int count, char **arguments) {
    if (count < 3) return 2;
    int threads = atoi(arguments[2]);
    hog = count > 3;
    int file = open(arguments[1], O_RDWR | O_CREAT | O_TRUNC, 0600);
    size_t size = sizeof(struct totals) * threads;
    if (file < 0 || ftruncate(file, size)) fail("totals");
    totals = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    if (totals == MAP_FAILED) fail("totals");
    char line[64];
    if (getenv("CRASH_TARGET_WAITS")) {
        printf("ready\n");
        fflush(stdout);
        if (!fgets(line, sizeof line, stdin)) return 0;
    }
    for (intptr_t i = 0; i < threads; i++) {
        pthread_t thread;
        if (pthread_create(&thread, NULL, live, (void *)i)) fail("pthread_create");
    }
    printf("ready\n");
    fflush(stdout);
    if (fgets(line, sizeof line, stdin)) die(line);
    return 0;
}
