// guards: requests that nobody can meet are refused, and leave errno and the heap as they were; those of nearly all memory of the machine are met
// modes: idle,1024,1
#include <errno.h>
#include <malloc.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/sysinfo.h>

static void refused(const char *name, void *p)
{
    printf("%s: %s, %s\n", name, p ? "memory" : "no memory", errno == ENOMEM ? "ENOMEM" : "another error");
    errno = 0;
}

int main(void)
{
    volatile size_t most = SIZE_MAX, half = SIZE_MAX / 2 + 1;
    void *kept = malloc(100);
    errno = 0;
    refused("malloc", malloc(most));
    refused("malloc of half", malloc(half));
    refused("calloc", calloc(half, 2));
    refused("realloc", realloc(kept, most));
    refused("reallocarray", reallocarray(kept, half, 2));
    refused("memalign", memalign(64, most));
    refused("valloc", valloc(most));
    refused("pvalloc", pvalloc(most));
    void *out = kept;
    int code = posix_memalign(&out, 64, most);
    printf("posix_memalign: %s, pointer %s\n", code == ENOMEM ? "ENOMEM" : "another result", out == kept ? "kept" : "changed");
    // Linux grants what is less than memory and swap space (vm.overcommit_memory=0). At least one of these sizes is
    // rounded up to more than that by an allocator with size classes.
    struct sysinfo info;
    sysinfo(&info);
    size_t memory = (info.totalram + info.totalswap) * info.mem_unit / 100;
    for (int percent = 76; percent <= 99; percent++) {
        char *p = malloc(memory * percent);
        printf("%d percent of memory: %s\n", percent, p ? "granted" : "refused");
        if (p) p[0] = p[memory * percent - 1] = 1;
        free(p);
    }
    printf("all of it twice: %s\n", malloc(memory * 200) ? "granted" : "refused");
    free(kept);
    return 0;
}
