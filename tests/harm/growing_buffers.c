// guards: buffers that are used one after the other, each a little larger than the one before, take the memory of one
// modes: idle, 1024, 1
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include "lib/resident.h"

enum { MIB = 1 << 20, STEP = MIB / 2, MAX = 40 * MIB, MORE_MIB = 24 };

int main(void)
{
    long most = 0;
    for (size_t bytes = STEP; bytes <= MAX; bytes += STEP) {
        char *volatile buffer = malloc(bytes);
        memset(buffer, 1, bytes);
        long mib = resident_mib(), more = mib - (long)(bytes / MIB);
        if (mib < 0)
            return 2;
        most = more > most ? more : most;
        free(buffer);
    }
    if (most > MORE_MIB)
        fprintf(stderr, "%ld MiB more than the buffer\n", most);
    puts(most > MORE_MIB ? "too much is kept" : "ok");
    return most > MORE_MIB;
}
