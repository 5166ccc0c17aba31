// guards: a program that fills and frees a large heap several times, and then sleeps, keeps no more than glibc may
// seconds: 60
// modes: idle, 1024
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include "lib/resident.h"

enum { MIB = 1 << 20, TOTAL = 200 * MIB, BYTES = 1000, COUNT = TOTAL / BYTES, MOST_MIB = 110, BURSTS = 6 };

static char *objects[COUNT];

int main(void)
{
    int is_much = 0;
    for (int burst = 0; burst < BURSTS; burst++) {
        for (int i = 0; i < COUNT; i++) {
            objects[i] = malloc(BYTES);
            memset(objects[i], 1, BYTES);
        }
        for (int i = 0; i < COUNT; i++)
            free(objects[i]);
        // As a program that sleeps now would be seen.
        long mib = resident_mib();
        if (mib < 0 || mib > MOST_MIB) {
            fprintf(stderr, "burst %d: %ld MiB stay\n", burst, mib);
            is_much = 1;
        }
        usleep(300000);
    }
    puts(is_much ? "too much is kept" : "ok");
    return is_much;
}
