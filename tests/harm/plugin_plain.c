// guards: in a program in C, a plugin that brings the C++ library
// build: -Wl,--as-needed
// library: operators_plugin_lib.cpp -std=c++17 -DPLAIN
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdio.h>
int main(void) {
    void *plugin = dlopen("libplugin_plain_operators_plugin_lib.so", RTLD_NOW | RTLD_LOCAL);
    if (!plugin) return puts(dlerror()), 1;
    void (*run)(void) = (void (*)(void))dlsym(plugin, "run_plugin");
    if (!run) return puts(dlerror()), 1;
    run();
    return 0;
}
