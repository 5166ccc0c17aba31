// guards: an emulator, or valgrind, keeps a record of each page of address space that a program reserves; large objects find room all the same
// seconds: 180
// modes: idle, 1024, 1
#include <fcntl.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

enum { OBJECTS = 100, SMALL = 1000, MAX_GIB = 16 };
static const size_t LARGE = (size_t)256 << 20;
/* Objects that are sampled lie below. */
static const uintptr_t LOW = (uintptr_t)0x60 << 40;

static long address_space_gib(void)
{
    char text[128] = "";
    long pages = -1;
    int file = open("/proc/self/statm", O_RDONLY);
    if (file >= 0 && read(file, text, sizeof text - 1) > 0)
        sscanf(text, "%ld", &pages);
    close(file);
    return pages < 0 ? -1 : pages / (1024 * 1024 * 1024 / sysconf(_SC_PAGESIZE));
}

static char *objects[OBJECTS];

static int use(void)
{
    int low = 0;
    for (int i = 0; i < OBJECTS; i++) {
        objects[i] = malloc(LARGE);
        if (!objects[i])
            return 1;
        objects[i][0] = objects[i][LARGE - 1] = (char)i;
        low += (uintptr_t)objects[i] < LOW;
    }
    for (int i = 0; i < OBJECTS; i++)
        if (objects[i][0] != (char)i || objects[i][LARGE - 1] != (char)i)
            return 2;
    for (int i = 0; i < OBJECTS; i++)
        free(objects[i]);
    // All of them are sampled, or none.
    if (low != 0 && low != OBJECTS)
        fprintf(stderr, "%d of %d objects are in the range\n", low, OBJECTS);
    return low == 0 || low == OBJECTS ? 0 : 3;
}

int main(void)
{
    for (int i = 0; i < SMALL; i++)
        free(malloc(i * 10));
    long gib = address_space_gib();
    if (gib < 0 || gib > MAX_GIB)
        fprintf(stderr, "%ld GiB of address space\n", gib);
    // Parent and child grow independently.
    int failure = 0, status = -1;
    pid_t child = fork();
    if (!child)
        _exit(use());
    failure = use();
    waitpid(child, &status, 0);
    printf("%s, %d, %d\n", gib < 0 || gib > MAX_GIB ? "much is reserved" : "ok", failure, status);
    return gib < 0 || gib > MAX_GIB || failure || status;
}
