// guards: a program that defines malloc and free, and passes what it does not know on
// build: -std=c++17
#include "own_pool.h"
#include <dlfcn.h>
#include <malloc.h>
#include <map>
#include <stdlib.h>
#include <string>
extern "C" {
void *__libc_malloc(size_t);
void __libc_free(void *);
static long taken, given, passed;
void *malloc(size_t n) {
    __atomic_fetch_add(&taken, 1, __ATOMIC_RELAXED);
    return n < 256 ? take(n, 16) : __libc_malloc(n);
}
void free(void *p) {
    if (!p) return;
    if (is_pooled(p)) {
        __atomic_fetch_add(&given, 1, __ATOMIC_RELAXED);
        give(p);
    } else {
        __atomic_fetch_add(&passed, 1, __ATOMIC_RELAXED);
        __libc_free(p);
    }
}
}
int main() {
    for (int i = 0; i < 20000; i++) {
        delete new int[20];
        delete[] new char[1000];
        free(calloc(10, 10));
        free(realloc(calloc(10, 10), 1000));
        free(memalign(64, 100));
        free(aligned_alloc(4096, 4096));
        void *p = nullptr;
        if (posix_memalign(&p, 128, 1000)) return 1;
        free(p);
        free(strdup("a text"));
    }
    std::map<int, std::string> tree;
    for (int i = 0; i < 1000; i++) tree[i] = std::string(i, 'x');
    tree.clear();
    printf("taken %d, given %d, passed %d\n", taken >= 60000, given >= 40000, passed >= 100000);
}
