// A library that another loads, and that loads one itself. Built with -DEARLY, one that
// does so before `main` and before some preloaded libraries' constructors.
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdlib.h>
#include <string.h>

void *guest_make(size_t bytes) { return memset(malloc(bytes), 7, bytes); }
void guest_free(void *p) { free(p); }
void *guest_resize(void *p, size_t bytes) { return realloc(p, bytes); }
char *guest_copy(const char *text) { return strdup(text); }

// By this library's own RUNPATH: a call, not a jump, so that the loader sees who calls.
void *guest_open(const char *name) {
    void *volatile opened = dlopen(name, RTLD_NOW | RTLD_DEEPBIND);
    return opened;
}

#ifdef EARLY
void *early;
__attribute__((constructor)) static void open_early(void) {
    early = dlopen("libinner.so", RTLD_LAZY | RTLD_DEEPBIND);
}
#endif
