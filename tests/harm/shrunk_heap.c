// guards: a program that has freed nearly all of its many objects, and then does little, does not keep their memory
// seconds: 180
// modes: idle
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "lib/resident.h"

enum { KIB = 1 << 10, MIB = 1 << 20, TOTAL = 100 * MIB, MOST_MIB = 25 };

// Exits with 1 if much stays resident after all objects are freed.
static void use_once(size_t bytes, int backwards)
{
    int count = TOTAL / bytes;
    char **objects = malloc(count * sizeof *objects);
    for (int i = 0; i < count; i++) {
        objects[i] = malloc(bytes);
        memset(objects[i], 1, bytes);
    }
    for (int i = 0; i < count; i++)
        free(objects[backwards ? count - 1 - i : i]);
    free(objects);
    long kib = resident_kib();
    int is_much = kib < 0 || kib > MOST_MIB * KIB;
    if (is_much)
        fprintf(stderr, "%d objects of %zu bytes: %ld MiB stay\n", count, bytes, kib / KIB);
    _exit(is_much);
}

int main(void)
{
    static const size_t sizes[] = {5000, 40 * KIB, 200 * KIB, 3 * MIB};
    int failures = 0;
    for (size_t i = 0; i < 2 * sizeof sizes / sizeof *sizes; i++) {
        int status = -1;
        pid_t child = fork();
        if (!child)
            use_once(sizes[i / 2], i % 2);
        waitpid(child, &status, 0);
        failures += status != 0;
    }
    puts(failures ? "too much is kept" : "ok");
    return failures != 0;
}
