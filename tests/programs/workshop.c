// A program of several kinds of histories, and so many allocations that the cost of sampling them is limited:
//
//   site_hot      300,000 objects of 100 bytes in each step, each freed at once
//   site_late     100 objects of 1000 bytes in each step from the fourth on, which are kept
//   site_cache    500 objects of 2000 bytes more in each step; every third step empties the cache first
//   site_chain    20 objects in each step, each resized from 100 bytes to twice as many until 12,800, and kept
//   site_aligned  10 objects of 5000 bytes in each step, aligned to 4096, which are kept
//   site_huge     one of 40 MiB
//   site_handed   400 objects of 700 bytes in each step, of which another thread frees every other one
//
// Talks in lines: "begin" allocates the huge object, "step" takes a step, "expected" prints a line per site;
// "ok" after each.
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define SITE __attribute__((noinline, noclone))

struct site { const char *name; long objects, bytes, live, live_bytes; };
enum { HOT, LATE, CACHE, CHAIN, ALIGNED, HUGE, HANDED, SITES };
static struct site sites[SITES] = {
    {.name = "site_hot"}, {.name = "site_late"}, {.name = "site_cache"}, {.name = "site_chain"},
    {.name = "site_aligned"}, {.name = "site_huge"}, {.name = "site_handed"},
};

static void *count(int site, void *p, long bytes) {
    if (!p) abort();
    sites[site].objects++, sites[site].bytes += bytes;
    sites[site].live++, sites[site].live_bytes += bytes;
    return p;
}

static void *release(int site, void *p, long bytes) {
    free(p);
    sites[site].live--, sites[site].live_bytes -= bytes;
    return NULL;
}

// Not tail calls: each site has to stay on the stack.
#define DEFINE(name, site) \
    SITE static void *name(size_t bytes) { \
        char *volatile p = malloc(bytes); \
        return count(site, p, (long)bytes); \
    }
DEFINE(site_hot, HOT)
DEFINE(site_late, LATE)
DEFINE(site_cache, CACHE)
DEFINE(site_huge, HUGE)
DEFINE(site_handed, HANDED)

SITE static void *site_chain(void *old, size_t old_bytes, size_t bytes) {
    char *volatile p = realloc(old, bytes);
    if (old) sites[CHAIN].live--, sites[CHAIN].live_bytes -= (long)old_bytes;
    return count(CHAIN, p, (long)bytes);
}

SITE static void *site_aligned(size_t bytes) {
    void *p = NULL;
    if (posix_memalign(&p, 4096, bytes)) abort();
    char *volatile kept = p;
    return count(ALIGNED, kept, (long)bytes);
}

enum { STEPS = 60, HOT_OBJECTS = 300000, LATE_OBJECTS = 100, CACHE_OBJECTS = 500, CHAINS = 20, BLOCKS = 10,
       HANDED_OBJECTS = 400, FIRST_LATE = 4, CLEARED_EVERY = 3 };
// Not static, or the compiler leaves out what is never read.
void *late[STEPS * LATE_OBJECTS], *cache[CLEARED_EVERY * CACHE_OBJECTS], *chains[STEPS * CHAINS],
    *blocks[STEPS * BLOCKS], *handed[STEPS * HANDED_OBJECTS], *huge;
static int step, cached, handed_out;

// Frees every other object of the last step.
static void *receive(void *nothing) {
    for (int i = handed_out - HANDED_OBJECTS; i < handed_out; i += 2)
        handed[i] = release(HANDED, handed[i], 700);
    return nothing;
}

static void take_step(void) {
    if (step++ == STEPS) abort();
    for (int i = 0; i < HOT_OBJECTS; i++) release(HOT, site_hot(100), 100);
    for (int i = 0; i < LATE_OBJECTS && step >= FIRST_LATE; i++)
        late[step * LATE_OBJECTS + i - LATE_OBJECTS] = site_late(1000);
    if (step % CLEARED_EVERY == 0)
        while (cached) cached--, cache[cached] = release(CACHE, cache[cached], 2000);
    for (int i = 0; i < CACHE_OBJECTS; i++) cache[cached++] = site_cache(2000);
    for (int i = 0; i < CHAINS; i++) {
        void *p = site_chain(NULL, 0, 100);
        for (size_t bytes = 100; bytes < 12800; bytes *= 2) p = site_chain(p, bytes, 2 * bytes);
        chains[step * CHAINS + i - CHAINS] = p;
    }
    for (int i = 0; i < BLOCKS; i++) blocks[step * BLOCKS + i - BLOCKS] = site_aligned(5000);
    for (int i = 0; i < HANDED_OBJECTS; i++) handed[handed_out++] = site_handed(700);
    pthread_t thread;
    if (pthread_create(&thread, NULL, receive, NULL) || pthread_join(thread, NULL)) abort();
}

int main(void) {
    char line[64];
    static char input[64], output[4096];
    setvbuf(stdin, input, _IOLBF, sizeof input);
    setvbuf(stdout, output, _IOLBF, sizeof output);
    puts("ready");
    while (fgets(line, sizeof line, stdin)) {
        if (!strcmp(line, "begin\n")) huge = site_huge(40 << 20);
        else if (!strcmp(line, "step\n")) take_step();
        else
            for (struct site *s = sites; s < sites + SITES; s++)
                printf("site %s %ld %ld %ld %ld\n", s->name, s->objects, s->bytes, s->live, s->live_bytes);
        puts("ok");
    }
    return 0;
}
