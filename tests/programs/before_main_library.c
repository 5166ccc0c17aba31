// A library whose constructor allocates, and loses all but the last object.
#include <stdlib.h>

static void *volatile kept;

__attribute__((noinline, constructor, used)) static void site_library(void) {
    for (int i = 0; i < 100; i++)
        kept = malloc(1000);
}

void *library(void) { return kept; }
