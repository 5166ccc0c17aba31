// A program that holds a bit of everything, each kind at a site of its own, in known numbers:
//
//   site_once     40 objects of 64 KiB, and 20 more
//   site_power    4 objects of each power of two from 1 byte to 1 MiB
//   site_holes    8192 objects of 512 bytes, of which every other one is freed again
//   site_churn    2000 objects of 300 bytes, each replaced 4 times; later every other one is freed
//   site_moment   3000 objects of 200 bytes, each freed at once
//   site_crew     1000, 2000 and 3000 objects of 100 bytes, of threads that live on
//   site_lost     400 objects of 2000 bytes that no pointer leads to
//   site_chain    10 objects of 1500 bytes that lead to each other in a row; no pointer leads to the first
//
// Talks in lines: "hold" allocates all of these, "more" does what comes later, "moment" allocates and frees an
// object of site_moment, "fork" makes a child that holds 200 objects of 700 bytes by site_child, prints
// "child PID" and leaves it waiting, "map" maps 24 MiB and writes to each page, "expected" prints a line per
// site; "ok" after each. With an argument it does "hold" alone and ends, with all that it holds.
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <unistd.h>

#include "wipe.h"

#define SITE __attribute__((noinline, noclone))

struct site { const char *name; long objects, bytes, live, live_bytes; };

// Each is written by one thread at a time.
#define DEFINE(place) \
    static struct site totals_##place = {.name = #place}; \
    SITE static void *place(size_t bytes) { \
        char *volatile p = malloc(bytes); \
        if (!p) abort(); \
        memset(p, 0, bytes); \
        totals_##place.objects++, totals_##place.bytes += (long)bytes; \
        totals_##place.live++, totals_##place.live_bytes += (long)bytes; \
        return p; \
    }
DEFINE(site_once)
DEFINE(site_power)
DEFINE(site_holes)
DEFINE(site_churn)
DEFINE(site_moment)
DEFINE(site_crew)
DEFINE(site_lost)
DEFINE(site_chain)
DEFINE(site_child)

static struct site *all[] = {
    &totals_site_once, &totals_site_power, &totals_site_holes, &totals_site_churn, &totals_site_moment,
    &totals_site_crew, &totals_site_lost, &totals_site_chain, &totals_site_child,
};

static void release(struct site *site, void *p, long bytes) {
    free(p);
    site->live--, site->live_bytes -= bytes;
}

enum { ONCE = 40, MORE = 20, POWERS = 21, OF_POWER = 4, HOLES = 8192, CHURN = 2000, ROUNDS = 5, MOMENT = 3000, CREW = 3 };
// Not static, or the compiler leaves out what is never read.
void *once[ONCE + MORE], *power[POWERS][OF_POWER], *holes[HOLES], *churn[CHURN], *crew[1000 * 6], *of_child[200];

// A thread that keeps its objects; the caller goes on when it has them.
static pthread_barrier_t done;
static void *live_on(void *number) {
    static int kept;
    char name[16];
    long n = (long)number;
    snprintf(name, sizeof name, "crew-%ld", n);
    prctl(PR_SET_NAME, name);
    for (long i = 0; i < 1000 * n; i++) crew[kept++] = site_crew(100);
    pthread_barrier_wait(&done);
    for (;;) pause();
    return NULL;
}

SITE static void lose(void) {
    for (int i = 0; i < 400; i++) site_lost(2000);
    void *first = NULL;
    for (int i = 0; i < 10; i++) {
        void **p = site_chain(1500);
        *p = first;
        first = p;
    }
}

SITE static void hold(void) {
    for (int i = 0; i < ONCE; i++) once[i] = site_once(64 << 10);
    for (int k = 0; k < POWERS; k++)
        for (int i = 0; i < OF_POWER; i++) power[k][i] = site_power((size_t)1 << k);
    for (int i = 0; i < HOLES; i++) holes[i] = site_holes(512);
    for (int i = 0; i < HOLES; i += 2) {
        release(&totals_site_holes, holes[i], 512);
        holes[i] = NULL;
    }
    for (int round = 0; round < ROUNDS; round++)
        for (int i = 0; i < CHURN; i++) {
            if (round) release(&totals_site_churn, churn[i], 300);
            churn[i] = site_churn(300);
        }
    for (int i = 0; i < MOMENT; i++) release(&totals_site_moment, site_moment(200), 200);
    pthread_barrier_init(&done, NULL, 2);
    for (long n = 1; n <= CREW; n++) {
        pthread_t thread;
        if (pthread_create(&thread, NULL, live_on, (void *)n)) abort();
        pthread_barrier_wait(&done);
    }
    lose();
}

SITE static void more(void) {
    for (int i = ONCE; i < ONCE + MORE; i++) once[i] = site_once(64 << 10);
    for (int i = 0; i < CHURN; i += 2) {
        release(&totals_site_churn, churn[i], 300);
        churn[i] = NULL;
    }
}

static void fork_one(void) {
    int ready[2];
    char byte;
    if (pipe(ready)) abort();
    pid_t child = fork();
    if (child < 0) abort();
    if (child == 0) {
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        for (int i = 0; i < 200; i++) of_child[i] = site_child(700);
        if (write(ready[1], "x", 1) != 1) _exit(1);
        for (;;) pause();
    }
    if (read(ready[0], &byte, 1) != 1) abort();
    printf("child %d\n", (int)child);
}

static char *volatile mapped;

static void map(void) {
    size_t bytes = 24 << 20;
    mapped = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (mapped == MAP_FAILED) abort();
    memset(mapped, 1, bytes);
}

int main(int count, char **arguments) {
    static char line[64], output[4096];
    (void)arguments;
    if (count > 1) {
        hold();
        wipe();
        return 0;
    }
    setvbuf(stdin, NULL, _IONBF, 0);
    setvbuf(stdout, output, _IOLBF, sizeof output);
    puts("ready");
    while (fgets(line, sizeof line, stdin)) {
        if (!strcmp(line, "hold\n")) {
            hold();
            wipe();
        } else if (!strcmp(line, "more\n")) more();
        else if (!strcmp(line, "moment\n")) release(&totals_site_moment, site_moment(200), 200);
        else if (!strcmp(line, "fork\n")) fork_one();
        else if (!strcmp(line, "map\n")) map();
        else
            for (size_t i = 0; i < sizeof all / sizeof *all; i++)
                printf("site %s %ld %ld %ld %ld\n", all[i]->name, all[i]->objects, all[i]->bytes,
                       all[i]->live, all[i]->live_bytes);
        puts("ok");
    }
    return 0;
}
