// Loses 111 bytes in a constructor, and 222 in a destructor of global objects; frees 333 there.
#include <stdlib.h>
#include <string.h>

#include "wipe.h"

struct Global {
    void *held, *freed;

    Global() {
        void *volatile lost = malloc(111);
        memset(lost, 1, 111);
        lost = NULL;
        held = malloc(222);
        freed = malloc(333);
        wipe();
    }

    ~Global() {
        held = NULL;
        free(freed);
        freed = NULL;
        wipe();
    }
};

static Global global;

int main() {
    wipe();
    return 0;
}
