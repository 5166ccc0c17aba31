// A program whose memory history is known by construction. Each site is a function of its own:
//
//   site_once      320 objects of 64 KiB, at the beginning
//   site_steady    200 objects of 500 bytes more in each step
//   site_stopped   256 objects of 4096 bytes more in each of the first four steps
//   site_cache     2048 objects of 4096 bytes from the first step on, a quarter of them replaced in each
//   site_ring      1000 objects of 1000 bytes, all replaced in each step
//   site_shrinks   1000 objects of 4096 bytes, of which each step frees 50
//   site_moment    300 objects of 2000 bytes in each step, freed at once
//
// Talks in lines: "begin", "step" and "ok" after each; "expected" prints for each site the objects and bytes
// in use, and those allocated so far; "age N" lets the ring's objects live N milliseconds each, for a second;
// "map N" makes N mappings, or as many as the kernel allows; "free" frees all objects; "leave" ends it by _exit.
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

#define SITE __attribute__((noinline, noclone))

struct site { const char *name; long live, live_bytes, all, all_bytes; };
enum { ONCE, STEADY, STOPPED, CACHE, RING, SHRINKS, MOMENT, SITES };
static struct site sites[SITES] = {
    {.name = "site_once"}, {.name = "site_steady"}, {.name = "site_stopped"}, {.name = "site_cache"},
    {.name = "site_ring"}, {.name = "site_shrinks"}, {.name = "site_moment"},
};

static void count(int site, long bytes) {
    sites[site].live++, sites[site].live_bytes += bytes;
    sites[site].all++, sites[site].all_bytes += bytes;
}

static void lose(int site, void *p, long bytes) {
    if (!p) return;
    free(p);
    sites[site].live--, sites[site].live_bytes -= bytes;
}

// Not a tail call: the site has to stay on the stack.
#define DEFINE(name, site) \
    SITE static void *name(size_t bytes) { \
        char *volatile p = malloc(bytes); \
        if (!p) abort(); \
        memset(p, 1, bytes); \
        count(site, (long)bytes); \
        return p; \
    }
DEFINE(site_once, ONCE)
DEFINE(site_steady, STEADY)
DEFINE(site_stopped, STOPPED)
DEFINE(site_cache, CACHE)
DEFINE(site_ring, RING)
DEFINE(site_shrinks, SHRINKS)
DEFINE(site_moment, MOMENT)

static void *once[320], *steady[200 * 200], *stopped[256 * 4], *cache[2048], *ring[1000], *shrinks[1000];
static int step;

static void replace_ring(int from, int to) {
    for (int i = from; i < to; i++) {
        lose(RING, ring[i], 1000);
        ring[i] = site_ring(1000);
    }
}

static void begin(void) {
    for (int i = 0; i < 320; i++) once[i] = site_once(64 << 10);
    for (int i = 0; i < 1000; i++) shrinks[i] = site_shrinks(4096);
    replace_ring(0, 1000);
}

static void take_step(void) {
    if (step == 200) abort();
    for (int i = 0; i < 200; i++) steady[step * 200 + i] = site_steady(500);
    for (int i = 0; i < 256 && step < 4; i++) stopped[step * 256 + i] = site_stopped(4096);
    for (int i = 0; i < 2048; i++) {
        if (step && i % 4 != step % 4) continue;
        lose(CACHE, cache[i], 4096);
        cache[i] = site_cache(4096);
    }
    replace_ring(0, 1000);
    for (int i = step * 50; i < (step + 1) * 50 && i < 1000; i++) {
        lose(SHRINKS, shrinks[i], 4096);
        shrinks[i] = NULL;
    }
    for (int i = 0; i < 300; i++) lose(MOMENT, site_moment(2000), 2000);
    step++;
}

// Pages of which every other one may not be read are a mapping each.
static void map(long count) {
    char *pages = mmap(NULL, count * 65536, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (pages == MAP_FAILED) return;
    for (long i = 0; i < count; i += 2)
        if (mprotect(pages + i * 65536, 65536, PROT_NONE)) {
            // Leaves room for two.
            munmap(pages + (i - 2) * 65536, 2 * 65536);
            return;
        }
}

static double now(void) {
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return time.tv_sec * 1e3 + time.tv_nsec / 1e6;
}

// Replaces the ring's objects in turn, so that each lives this long, for a second.
static void turn_ring(double lifetime) {
    static double done;
    double start = now(), begun = done;
    while (now() < start + 1000) {
        double due = begun + (now() - start) / lifetime * 1000;
        for (; done < due; done++) replace_ring((long)done % 1000, (long)done % 1000 + 1);
        struct timespec pause = {.tv_nsec = 500000};
        nanosleep(&pause, NULL);
    }
}

static void free_list(int site, void **list, int count, long bytes) {
    for (int i = 0; i < count; i++) {
        lose(site, list[i], bytes);
        list[i] = NULL;
    }
}

static void free_all(void) {
    free_list(ONCE, once, 320, 64 << 10);
    free_list(STEADY, steady, 200 * 200, 500);
    free_list(STOPPED, stopped, 256 * 4, 4096);
    free_list(CACHE, cache, 2048, 4096);
    free_list(RING, ring, 1000, 1000);
    free_list(SHRINKS, shrinks, 1000, 4096);
}

int main(void) {
    char line[64];
    double lifetime;
    long mappings;
    setvbuf(stdout, NULL, _IOLBF, 0);
    puts("ready");
    while (fgets(line, sizeof line, stdin)) {
        if (!strcmp(line, "begin\n")) begin();
        else if (!strcmp(line, "step\n")) take_step();
        else if (!strcmp(line, "free\n")) free_all();
        else if (!strcmp(line, "leave\n")) _exit(0);
        else if (sscanf(line, "age %lf", &lifetime) == 1) turn_ring(lifetime);
        else if (sscanf(line, "map %ld", &mappings) == 1) map(mappings);
        else
            for (struct site *s = sites; s < sites + SITES; s++)
                printf("%s %ld %ld %ld %ld\n", s->name, s->live, s->live_bytes, s->all, s->all_bytes);
        puts("ok");
    }
    return 0;
}
