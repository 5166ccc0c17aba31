// guards: the C library's functions, looked up by name and version, and freed by those that the program is linked with
#define _GNU_SOURCE
#include <dlfcn.h>
#include <malloc.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#ifdef __x86_64__
#define FIRST "GLIBC_2.2.5"
#else
#define FIRST "GLIBC_2.17"
#endif

typedef void *(*lookup)(void *handle, const char *name);

static void *by_name(void *handle, const char *name)
{
    return dlsym(handle, name);
}

static void *by_version(void *handle, const char *name)
{
    return dlvsym(handle, name, FIRST);
}

static void use(void *p, void (*release)(void *))
{
    if (!p)
        exit(3);
    memset(p, 1, 100);
    release(p);
}

static void mix(void *handle, lookup find)
{
    void *(*allocate)(size_t) = find(handle, "malloc");
    void *(*zeroed)(size_t, size_t) = find(handle, "calloc");
    void *(*resize)(void *, size_t) = find(handle, "realloc");
    void *(*aligned)(size_t, size_t) = find(handle, "memalign");
    void *(*whole)(size_t) = find(handle, "valloc");
    void *(*own)(size_t) = find(handle, "__libc_malloc");
    void (*release)(void *) = find(handle, "free");
    // An old version, which machines of later date lack.
    void (*old)(void *) = find(handle, "cfree");
    for (int i = 0; i < 200; i++) {
        use(allocate(100), free);
        use(zeroed(10, 10), free);
        use(resize(malloc(50), 100), free);
        use(realloc(allocate(50), 100), free);
        use(aligned(64, 100), free);
        use(whole(100), free);
        use(own(100), free);
        use(malloc(100), release);
        if (old)
            use(malloc(100), old);
    }
}

int main(void)
{
    void *handles[] = {
        dlopen("libc.so.6", RTLD_LAZY),
        dlopen("libc.so.6", RTLD_NOW | RTLD_NOLOAD | RTLD_DEEPBIND),
        dlmopen(LM_ID_BASE, "libc.so.6", RTLD_NOW),
        RTLD_DEFAULT,
    };
    for (int i = 0; i < (int)(sizeof handles / sizeof *handles); i++) {
        mix(handles[i], by_name);
        mix(handles[i], by_version);
    }
    printf("%d\n", dlvsym(handles[0], "malloc", "GLIBC_0.1") == NULL && dlerror() != NULL);
    return 0;
}
