// guards: functions of a plugin's own whose names the program refers to weakly; and its own references to them
// build: -Wl,--as-needed -Wl,-z,lazy
// library: own_names_lib.c -Wl,-z,now
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>

__attribute__((weak)) int ProfilerStart(const char *file);
__attribute__((weak)) int IsHeapProfilerRunning(void);
__attribute__((weak)) void __lsan_disable(void);
__attribute__((weak)) void __lsan_enable(void);
__attribute__((weak)) size_t nallocx(size_t size, int flags);

int main(void)
{
    // Bound at the first call, which comes after the plugin was loaded.
    void *plugin = dlopen("libown_names_referred_own_names_lib.so", RTLD_NOW | RTLD_LOCAL);
    if (!plugin) return puts(dlerror()), 1;
    int (*test)(void) = (int (*)(void))dlsym(plugin, "test_own_names");
    if (test()) return 1;
    if (__lsan_disable && __lsan_enable) {
        __lsan_disable();
        __lsan_enable();
    }
    if (nallocx && nallocx(100, 0) < 100) return puts("nallocx"), 1;
    if (IsHeapProfilerRunning && IsHeapProfilerRunning() == 42) return puts("the plugin's"), 1;
    if (ProfilerStart && ProfilerStart(NULL)) return puts("a profile without a file"), 1;
    puts("done");
    return 0;
}
