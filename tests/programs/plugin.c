// A library that is loaded and unloaded while it is being watched.
#include <stdlib.h>
#include <string.h>

__attribute__((noinline, noclone)) void *site_plugin(long bytes) {
    void *p = malloc(bytes);
    if (p) memset(p, 3, bytes);
    return p;
}
