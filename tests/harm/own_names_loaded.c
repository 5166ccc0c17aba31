// guards: functions of a plugin's own that are called like functions that the agent offers
// build: -Wl,--as-needed
// library: own_names_lib.c
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>

static int run(int flags)
{
    free(malloc(100));
    void *plugin = dlopen("libown_names_loaded_own_names_lib.so", flags);
    if (!plugin) return puts(dlerror()), 1;
    int (*test)(void) = (int (*)(void))dlsym(plugin, "test_own_names");
    int (*start)(int, int) = (int (*)(int, int))dlsym(plugin, "ProfilerStart");
    if (!test || !start) return puts(dlerror()), 1;
    printf("looked up: %d\n", start(1, 2));
    if (flags & RTLD_GLOBAL) {
        start = (int (*)(int, int))dlsym(RTLD_DEFAULT, "ProfilerStart");
        printf("looked up by default: %d\n", start(2, 3));
    }
    return test();
}

int main(void)
{
    return run(RTLD_LAZY | RTLD_LOCAL) || run(RTLD_NOW | RTLD_GLOBAL);
}
