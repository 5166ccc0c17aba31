// Two libraries, by PROVIDER: one whose function the other one calls without naming it at
// link time, so that the loader finds it at the first call, and notes that, in memory.
#include <stdlib.h>
#include <string.h>

#ifdef PROVIDER
__attribute__((noinline, noclone)) void *provided(long bytes) {
    void *p = malloc(bytes);
    if (p) memset(p, 5, bytes);
    return p;
}
#else
void *provided(long bytes);

__attribute__((noinline, noclone)) void site_lazy(long n) {
    for (long i = 0; i < n; i++)
        if (!provided(300)) abort();
}

// Not there before a thread asks for it.
static _Thread_local char block[5000];

__attribute__((noinline, noclone)) void *site_local(void) {
    char *mine = block;
    __asm__ volatile("" : "+r"(mine));
    mine[17] = 1;
    return mine;
}
#endif
