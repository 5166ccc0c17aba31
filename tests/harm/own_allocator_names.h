// Allocates by an allocator's own names, and frees by the usual ones, and the other way round.
#pragma once
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static int mixed(void *(*own_malloc)(size_t), void (*own_free)(void *),
                 void *(*own_realloc)(void *, size_t)) {
    for (size_t i = 0; i < 3000; i++) {
        size_t bytes = i * 7 + 1;
        char *p = own_malloc(bytes);
        memset(p, 1, bytes);
        free(p);
        p = malloc(bytes);
        memset(p, 2, bytes);
        own_free(p);
        p = malloc(bytes);
        memset(p, 3, bytes);
        p = own_realloc(p, 2 * bytes);
        if (p[0] != 3 || p[bytes - 1] != 3) return 1;
        p = realloc(p, 3 * bytes);
        if (p[0] != 3 || p[bytes - 1] != 3) return 1;
        free(p);
    }
    puts("kept");
    return 0;
}
