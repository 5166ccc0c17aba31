// guards: a program that wraps `malloc` and `free` around what `dlvsym(RTLD_NEXT, ...)` finds has one allocator
// build: -std=c++17 -fno-builtin
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <dlfcn.h>
#include <malloc.h>
#include <string>
#include <thread>
#include <vector>

#if defined(__x86_64__)
static const char VERSION[] = "GLIBC_2.2.5";
#else
static const char VERSION[] = "GLIBC_2.17";
#endif

static void *next(const char *name) { return dlvsym(RTLD_NEXT, name, VERSION); }

// `calloc` and the aligned functions are not wrapped.
extern "C" void *malloc(size_t size) {
    static auto real = (void *(*)(size_t))next("malloc");
    return real(size);
}
extern "C" void free(void *p) {
    static auto real = (void (*)(void *))next("free");
    real(p);
}
extern "C" void *realloc(void *p, size_t size) {
    static auto real = (void *(*)(void *, size_t))next("realloc");
    return real(p, size);
}

static void work() {
    std::vector<std::string> texts;
    for (int i = 0; i < 3000; i++) {
        texts.push_back(std::string(i % 500, 'x'));
        void *p = nullptr;
        if (posix_memalign(&p, 64, 1000) == 0) free(p);
        free(memalign(256, 100));
        free(realloc(aligned_alloc(64, 640), 5000));
        free(realloc(calloc(10, 10), 20000));
        free(strdup("a copy"));
    }
}

int main() {
    work();
    std::thread one(work), other(work);
    one.join();
    other.join();
    std::puts("done");
}
