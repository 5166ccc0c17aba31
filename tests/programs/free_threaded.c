// Begins with what CPython 3.13 tells of itself where it was built without a global lock, and allocates.
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

// "xdebugpy", the version, whether there is no lock.
uint64_t _PyRuntime[512] = { 0x7970677562656478, 0x030d00f0, 1 };
void *_PyEval_EvalFrameDefault(void) { return _PyRuntime; }

int main(void)
{
    char line[16];
    puts("ready");
    fflush(stdout);
    while (fgets(line, sizeof line, stdin)) {
        for (int i = 0; i < 1000; i++)
            free(malloc(1000 + i));
        puts("done");
        fflush(stdout);
    }
}

