// guards: a program can reserve half of its address space in one piece, whatever the agent has reserved
// seconds: 120
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <time.h>

enum { SECONDS = 2 };

/* The largest power of two that can be mapped. */
static int largest(void)
{
    for (int bits = 56; bits > 20; bits--) {
        size_t bytes = (size_t)1 << bits;
        int flags = MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE;
        void *at = mmap(0, bytes, PROT_NONE, flags, -1, 0);
        if (at != MAP_FAILED)
            return munmap(at, bytes) ? 0 : bits;
    }
    return 0;
}

int main(void)
{
    void *volatile kept = 0;
    int least = 64;
    time_t begun = time(0);
    while (time(0) <= begun + SECONDS) {
        for (int i = 0; i < 1000; i++) {
            free(kept);
            kept = malloc(100 + i);
        }
        int bits = largest();
        if (bits < least)
            least = bits;
    }
    free(kept);
    printf("1 << %d\n", least);
    return 0;
}
