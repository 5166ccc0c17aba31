// Has the allocator make its background threads, as the first allocations of a session that has begun
// meanwhile: mallctl holds the allocator's locks then. Says "ready", and "ok" for each line.
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

int main(void) {
    int (*mallctl)(const char *, void *, size_t *, void *, size_t) = (int (*)(
        const char *, void *, size_t *, void *, size_t))dlsym(RTLD_DEFAULT, "mallctl");
    if (!mallctl) return 2;
    char line;
    write(1, "ready\n", 6);
    while (read(0, &line, 1) == 1) {
        if (line != '\n') continue;
        bool on = true;
        if (mallctl("background_thread", NULL, NULL, &on, sizeof on) != 0) return 3;
        write(1, "ok\n", 3);
    }
    return 0;
}
