// guards: a program with a malloc of its own, whose new and delete are to use it
// build: -std=c++17
#include "own_pool.h"
#include <map>
#include <new>
#include <stdlib.h>
#include <string>
#include <vector>
extern "C" {
void *malloc(size_t n) { return take(n, 16); }
void free(void *p) { give(p); }
void *calloc(size_t n, size_t m) {
    void *p = malloc(n * m);
    return p ? memset(p, 0, n * m) : p;
}
void *realloc(void *old, size_t n) {
    void *p = malloc(n);
    if (p && old) {
        size_t before = ((struct header *)old)[-1].bytes;
        memcpy(p, old, before < n ? before : n);
        free(old);
    }
    return p;
}
void *aligned_alloc(size_t align, size_t n) { return take(n, align); }
}
struct alignas(64) Wide {
    char bytes[64];
};
int main() {
    int outside = 0;
    for (int i = 0; i < 20000; i++) {
        int *p = new int[10];
        outside += !is_pooled(p);
        delete[] p;
        Wide *wide = new Wide;
        outside += !is_pooled(wide);
        delete wide;
        int *q = new (std::nothrow) int;
        outside += !is_pooled(q);
        delete q;
    }
    std::vector<std::string> texts;
    for (int i = 0; i < 100; i++) texts.push_back(std::string(100, 'x'));
    outside += !is_pooled(&texts[0]) + !is_pooled(&texts[0][0]);
    char *copy = strdup("a text"), *line = nullptr;
    outside += !is_pooled(copy);
    free(copy);
    void *grown = reallocarray(malloc(100), 20, 30);
    outside += !is_pooled(grown);
    free(grown);
    if (asprintf(&line, "%d", 5) < 0) return 1;
    outside += !is_pooled(line);
    free(line);
    bool is_thrown = false;
    try {
        for (;;) {
            char *volatile p = new char[1 << 20];
            p[0] = 1;
        }
    } catch (std::bad_alloc &) {
        is_thrown = true;
    }
    printf("outside the pool %d, budget kept %d\n", outside, is_thrown);
}
