// guards: buffers that are used one after the other, each a little larger than the one before, take the memory of one
// modes: idle, 1024, 1
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { MIB = 1 << 20, STEP = MIB / 2, MAX = 40 * MIB, MORE_MIB = 24 };

// Without the C library's streams, which allocate.
static long resident_mib(void)
{
    char text[128] = "";
    long size = 0, resident = 0;
    int file = open("/proc/self/statm", O_RDONLY);
    if (file < 0 || read(file, text, sizeof text - 1) <= 0)
        return -1;
    close(file);
    sscanf(text, "%ld %ld", &size, &resident);
    return resident * sysconf(_SC_PAGESIZE) / MIB;
}

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
