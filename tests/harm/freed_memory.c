// guards: freed memory is returned though the program does nothing more; a large buffer's pages are kept while it is used repeatedly
// seconds: 180
// modes: idle
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include "lib/resident.h"

enum { KIB = 1 << 10, MIB = 1 << 20 };

// Allocates `count` objects, writes to them and frees them; exits with 1 if more than `most_mib` stay resident.
static void free_all(size_t bytes, int count, long most_mib)
{
    char **objects = malloc(count * sizeof *objects);
    for (int i = 0; i < count; i++) {
        objects[i] = malloc(bytes);
        memset(objects[i], 1, bytes);
    }
    for (int i = count - 1; i >= 0; i--)
        free(objects[i]);
    free(objects);
    long kib = resident_kib();
    if (kib > most_mib * KIB)
        fprintf(stderr, "%d objects of %zu bytes: %ld MiB stay\n", count, bytes, kib / KIB);
    _exit(kib > most_mib * KIB);
}

static long faults(void)
{
    struct rusage usage;
    getrusage(RUSAGE_SELF, &usage);
    return usage.ru_minflt;
}

static void use_buffer(size_t bytes, int times)
{
    while (times--) {
        char *buffer = malloc(bytes);
        for (size_t at = 0; at < bytes; at += 4 * KIB)
            buffer[at] = 1;
        free(buffer);
    }
}

// Exits with 1 if repeated use of a buffer takes more page faults than one use of it has pages.
static void use_repeatedly(size_t bytes)
{
    use_buffer(bytes, 4);
    long before = faults();
    use_buffer(bytes, 20);
    long taken = faults() - before, pages = bytes / sysconf(_SC_PAGESIZE);
    if (taken > pages)
        fprintf(stderr, "a buffer of %zu bytes: %ld faults\n", bytes, taken);
    _exit(taken > pages);
}

static int in_child_fails(void (*check)(int), int n)
{
    int status = 0;
    pid_t child = fork();
    if (!child)
        check(n);
    waitpid(child, &status, 0);
    return status != 0;
}

static const struct {
    size_t bytes;
    int count;
    long most_mib;
} freed[] = {
    {16 * MIB, 20, 16}, {4 * MIB, 70, 70}, {1000 * 1000, 300, 110}, {200 * 1000, 1000, 110},
    {40 * 1000, 6000, 130}, {5000, 60000, 130},
};

static void check_freed(int n)
{
    free_all(freed[n].bytes, freed[n].count, freed[n].most_mib);
}

static void check_buffer(int mib)
{
    use_repeatedly((size_t)mib * MIB);
}

int main(void)
{
    int failures = 0;
    for (int n = 0; n < (int)(sizeof freed / sizeof *freed); n++)
        failures += in_child_fails(check_freed, n);
    for (int mib = 1; mib < 32; mib += 6)
        failures += in_child_fails(check_buffer, mib);
    puts(failures ? "too much is kept, or too little" : "ok");
    return failures != 0;
}
