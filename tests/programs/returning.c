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

int main(int count, char **arguments) {
    const char *what = count > 1 ? arguments[1] : "";
    if (!strcmp(what, "refused")) refused();
    else if (!strcmp(what, "trimmed")) trimmed();
    else if (!strcmp(what, "grown")) grown();
    else if (!strcmp(what, "used_again")) used_again();
    else return 2;
}
