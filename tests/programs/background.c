// Has the allocator make its background threads, as the first allocations of a session that has begun
// meanwhile: mallctl holds the allocator's locks then. With an argument, it allocates something itself
// before. Says "ready", and "ok" for each line.
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

int main(int argc, char **argv) {
    (void)argv;
    int (*mallctl)(const char *, void *, size_t *, void *, size_t) = (int (*)(
        const char *, void *, size_t *, void *, size_t))dlsym(RTLD_DEFAULT, "mallctl");
    if (!mallctl) return 2;
    char line;
    write(1, "ready\n", 6);
    while (read(0, &line, 1) == 1) {
        if (line != '\n') continue;
        void *volatile object = argc > 1 ? malloc(1000) : NULL;
        free(object);
        bool on = true;
        if (mallctl("background_thread", NULL, NULL, &on, sizeof on) != 0) return 3;
        write(1, "ok\n", 3);
    }
    return 0;
}
