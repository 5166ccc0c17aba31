// Loses blocks of 10 MiB, as many as the argument says, says `lost` and waits until its input ends.
#include <stdio.h>
#include <stdlib.h>

#include "wipe.h"

static __attribute__((noinline)) void lose(int count) {
    for (int i = 0; i < count; i++) {
        void *volatile block = malloc(10 << 20);
        if (!block) abort();
        block = NULL;
    }
}

int main(int count, char **arguments) {
    lose(count > 1 ? atoi(arguments[1]) : 0);
    wipe();
    puts("lost");
    fflush(stdout);
    while (getchar() != EOF) {
    }
    return 0;
}
