// Says what a preloaded allocator changes: who defines a few functions, which memory is mapped beside
// files, and whether objects lie where the C library's do.
#define _GNU_SOURCE
#include <dlfcn.h>
#include <malloc.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

int main(void)
{
    static const char *const names[] = {"malloc", "dlopen", "sigaction", "mallctl", "mallocx", "_Znwm",
                                        "HeapProfilerStart", "ProfilerStart", "__lsan_do_leak_check"};
    for (int i = 0; i < (int)(sizeof names / sizeof *names); i++) {
        void *found = dlsym(RTLD_DEFAULT, names[i]);
        Dl_info info = {0};
        if (found) dladdr(found, &info);
        const char *file = info.dli_fname ? strrchr(info.dli_fname, '/') : NULL;
        printf("%s in %s\n", names[i], file ? file : "nothing");
    }
    // The C library's header of a chunk.
    size_t *p = malloc(100);
    printf("chunk of %zu\n", p[-1] & ~(size_t)7);
    printf("arena %d\n", mallinfo2().arena > 0);
    char line[512];
    int anonymous = 0;
    FILE *maps = fopen("/proc/self/maps", "r");
    while (fgets(line, sizeof line, maps)) {
        unsigned long start, end;
        // Large ones: what an allocator reserves for itself.
        if (sscanf(line, "%lx-%lx", &start, &end) == 2 && !strpbrk(line, "/[") && end - start >= 1 << 20) anonymous++;
    }
    printf("large mappings %d\n", anonymous);
    return 0;
}
