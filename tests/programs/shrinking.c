// Shrinks many objects step by step, and prints how much memory each has in the end, in bytes of the
// program's resident memory.
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define OBJECTS 10000
#define FROM 12000
#define TO 100

static char *objects[OBJECTS];

static long resident(void) {
    long all, pages = 0;
    FILE *file = fopen("/proc/self/statm", "r");
    if (!file || fscanf(file, "%ld %ld", &all, &pages) != 2) abort();
    fclose(file);
    return pages * sysconf(_SC_PAGESIZE);
}

int main(void) {
    long before = resident();
    for (int i = 0; i < OBJECTS; i++) {
        char *p = malloc(FROM);
        if (!p) return 1;
        memset(p, 1, FROM);
        // Each step leaves more than half.
        for (size_t size = FROM; size > TO; size = size * 6 / 10) {
            p = realloc(p, size);
            if (!p || p[0] != 1 || p[size - 1] != 1) return 1;
        }
        objects[i] = p;
    }
    printf("%ld\n", (resident() - before) / OBJECTS);
    return objects[0] == objects[1];
}
