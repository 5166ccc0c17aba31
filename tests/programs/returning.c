// returning WHAT: what programs count on of an allocator when memory is large or scarce.
#include <errno.h>
#include <malloc.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

// Bytes in use that belong to no file.
static long resident(void) {
    long all, in_memory, shared;
    FILE *file = fopen("/proc/self/statm", "r");
    if (!file || fscanf(file, "%ld %ld %ld", &all, &in_memory, &shared) != 3) abort();
    fclose(file);
    return (in_memory - shared) * sysconf(_SC_PAGESIZE);
}

static long faults(void) {
    struct rusage usage;
    getrusage(RUSAGE_SELF, &usage);
    return usage.ru_minflt;
}

// Four times what the machine has.
static void refused(void) {
    size_t bytes = 4 * (size_t)sysconf(_SC_PHYS_PAGES) * sysconf(_SC_PAGESIZE);
    errno = 0;
    void *p = malloc(bytes);
    printf("%s %s ", p ? "granted" : "refused", errno == ENOMEM ? "ENOMEM" : "-");
    p = realloc(malloc(100), bytes);
    printf("%s ", p ? "granted" : "refused");
    p = calloc(bytes / 8, 8);
    puts(p ? "granted" : "refused");
}

// What is left of 200 MB of freed objects after malloc_trim.
static void trimmed(void) {
    enum { COUNT = 200000 };
    static char *objects[COUNT];
    for (int i = 0; i < COUNT; i++) memset(objects[i] = malloc(1000), 1, 1000);
    long full = resident();
    for (int i = 0; i < COUNT; i++) free(objects[i]);
    int done = malloc_trim(0);
    printf("%d %ld %d\n", done, resident() * 100 / full, malloc_trim(0) >= 0);
}

// Page faults for each page of a buffer that grows by 1 MiB at a time.
static void grown(void) {
    size_t step = 1 << 20, most = 100 * step;
    long before = faults();
    char *p = NULL;
    for (size_t bytes = step; bytes <= most; bytes += step) {
        p = realloc(p, bytes);
        memset(p + bytes - step, 1, step);
    }
    printf("%ld\n", (faults() - before) / (long)(most / 4096));
    free(p);
}

// Page faults for each page of a buffer that is used again and again.
static void used_again(void) {
    size_t bytes = 20 << 20;
    for (int i = 0; i < 3; i++) free(memset(malloc(bytes), 1, bytes));
    long before = faults();
    for (int i = 0; i < 20; i++) free(memset(malloc(bytes), 1, bytes));
    printf("%ld\n", (faults() - before) * 100 / (20 * (long)(bytes / 4096)));
}

// How many of the smallest objects are not aligned as any object may have to be.
static void aligned(void) {
    enum { COUNT = 20000 };
    static void *objects[COUNT];
    long badly = 0, small = 0;
    for (int i = 0; i < COUNT; i++) {
        size_t bytes = i % 40;
        objects[i] = i % 2 ? malloc(bytes) : calloc(bytes, 1);
        badly += (size_t)objects[i] % 16 != 0;
        small += malloc_usable_size(objects[i]) < 16;
    }
    for (int i = 0; i < COUNT; i++) objects[i] = realloc(objects[i], 1 + i % 8);
    for (int i = 0; i < COUNT; i++) badly += (size_t)objects[i] % 16 != 0;
    for (int i = 0; i < COUNT; i++) free(objects[i]);
    printf("%ld %ld\n", badly, small);
}

// What 100,000 KB of objects add, in KB, to the figures of the heap, and what is left after their free.
static void reported(void) {
    enum { COUNT = 100000 };
    static void *objects[COUNT];
    struct mallinfo2 before = mallinfo2();
    int less = mallinfo().uordblks;
    for (int i = 0; i < COUNT; i++) memset(objects[i] = malloc(1000), 1, 1000);
    struct mallinfo2 full = mallinfo2();
    int more = mallinfo().uordblks;
    for (int i = 0; i < COUNT; i++) free(objects[i]);
    struct mallinfo2 after = mallinfo2();
    printf("%zu %zu %d %zu %d\n", (full.uordblks - before.uordblks) / 1000, (full.arena - before.arena) / 1000,
           (more - less) / 1000, (after.uordblks - before.uordblks) / 1000,
           full.arena >= full.uordblks + full.fordblks);
}

// The same in the form of texts.
static void told(void) {
    // Of some objects, not all are sampled.
    static void *volatile objects[100];
    for (int i = 0; i < 100; i++) objects[i] = malloc(100);
    fprintf(stderr, "%d\n", malloc_info(1, stdout) != 0);
    if (malloc_info(0, stdout)) abort();
    malloc_stats();
}

int main(int count, char **arguments) {
    const char *what = count > 1 ? arguments[1] : "";
    if (!strcmp(what, "refused")) refused();
    else if (!strcmp(what, "trimmed")) trimmed();
    else if (!strcmp(what, "grown")) grown();
    else if (!strcmp(what, "used_again")) used_again();
    else if (!strcmp(what, "aligned")) aligned();
    else if (!strcmp(what, "reported")) reported();
    else if (!strcmp(what, "told")) told();
    else return 2;
}
