// A server that leaks a little: each request renders a page, which is freed, and opens a
// session, one of ten of which is forgotten. It starts with tables that it keeps, and fills a
// cache once. Told by lines on its input: "tables N", "serve" starts it, "cache N", "until N"
// waits for that number of requests; answers "ok".
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define SITE __attribute__((noinline, noclone))
#define PAGES 64
#define SESSIONS 1000
#define NS_PER_REQUEST 50000L

static char *pages[PAGES];
static char *sessions[SESSIONS];
static char **tables, **cache;
static _Atomic long served;
static long cached;

static char *full(char *p, size_t bytes) {
    if (!p) abort();
    memset(p, 1, bytes);
    return p;
}

SITE void load_tables(long n) {
    tables = calloc(n, sizeof *tables);
    for (long i = 0; i < n; i++) tables[i] = full(malloc(2000), 2000);
}

SITE void fill_cache(long n) {
    cache = realloc(cache, (cached + n) * sizeof *cache);
    for (long i = 0; i < n; i++) cache[cached++] = full(malloc(1500), 1500);
}

SITE void render_page(void) {
    char **page = &pages[served % PAGES];
    free(*page);
    *page = full(malloc(3000 + served % 700), 3000);
}

SITE void open_session(void) {
    char **session = &sessions[served % SESSIONS];
    if (served % 10) free(*session);  // and the tenth?
    *session = full(malloc(300), 300);
}

static long now_ns(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec * 1000000000L + t.tv_nsec;
}

// As many requests as are due by the clock, whatever else keeps the machine busy.
static void *serve(void *unused) {
    long start = now_ns();
    for (;;) {
        for (long due = (now_ns() - start) / NS_PER_REQUEST; served < due; served++) {
            render_page();
            open_session();
        }
        nanosleep(&(struct timespec){0, 1000000}, NULL);
    }
    return unused;
}

int main(void) {
    setvbuf(stdout, NULL, _IOLBF, 0);
    puts("ready");
    char line[64];
    while (fgets(line, sizeof line, stdin)) {
        long n = 0;
        pthread_t thread;
        if (sscanf(line, "tables %ld", &n) == 1) load_tables(n);
        else if (sscanf(line, "cache %ld", &n) == 1) fill_cache(n);
        else if (!strcmp(line, "serve\n")) pthread_create(&thread, NULL, serve, NULL);
        else if (sscanf(line, "until %ld", &n) == 1)
            while (served < n) nanosleep(&(struct timespec){0, 1000000}, NULL);
        else break;
        puts("ok");
    }
    return 0;
}
