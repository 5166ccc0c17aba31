/* Allocates 200 MB in small objects before "allocate" is answered, frees them at "free", and prints its
   resident memory in MiB after each. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { OBJECTS = 1000000, BYTES = 200 };

static void *objects[OBJECTS];

static long resident(void)
{
    long pages = 0, total = 0;
    FILE *file = fopen("/proc/self/statm", "r");
    if (!file || fscanf(file, "%ld %ld", &total, &pages) != 2)
        exit(3);
    fclose(file);
    return pages >> 8;
}

int main(void)
{
    char line[32];
    printf("ready\n");
    fflush(stdout);
    while (fgets(line, sizeof line, stdin)) {
        int frees = strcmp(line, "free\n") == 0;
        for (int i = 0; i < OBJECTS; i++) {
            if (frees)
                free(objects[i]);
            else
                memset(objects[i] = malloc(BYTES), 1, BYTES);
        }
        printf("%ld\n", resident());
        fflush(stdout);
    }
    return 0;
}
