// guards: memory of an arena with extent hooks of the program's own stays what the hooks gave, a shared file
// build: -fno-builtin
#define _GNU_SOURCE
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

enum { POOL = 256 << 20, OBJECTS = 20, LARGE = 6 << 20 };

// As in jemalloc/jemalloc.h. Without an allocator that has arenas, there is nothing to try.
typedef struct hooks {
    void *(*alloc)(struct hooks *, void *, size_t, size_t, bool *, bool *, unsigned);
    bool (*dalloc)(struct hooks *, void *, size_t, bool, unsigned);
    void *destroy, *commit, *decommit, *purge_lazy, *purge_forced;
    bool (*split)(struct hooks *, void *, size_t, size_t, size_t, bool, unsigned);
    bool (*merge)(struct hooks *, void *, size_t, void *, size_t, bool, unsigned);
} hooks;
int mallctl(const char *, void *, size_t *, void *, size_t) __attribute__((weak));
void *mallocx(size_t, int) __attribute__((weak));
void dallocx(void *, int) __attribute__((weak));

static char *pool;
static size_t used;

static void *give(hooks *h, void *at, size_t size, size_t align, bool *zero, bool *commit, unsigned arena)
{
    size_t start = ((size_t)pool + used + align - 1) / align * align - (size_t)pool;
    if (at || start + size > POOL) return NULL;
    used = start + size;
    *zero = false;
    *commit = true;
    return pool + start;
}

static bool keep(hooks *h, void *at, size_t size, bool commit, unsigned arena) { return true; }
static bool split(hooks *h, void *at, size_t size, size_t a, size_t b, bool c, unsigned arena) { return false; }
static bool merge(hooks *h, void *a, size_t x, void *b, size_t y, bool c, unsigned arena) { return false; }
static hooks table = {.alloc = give, .dalloc = keep, .split = split, .merge = merge};

// Writes to an object of the pool. Returns 0 if the file has it, too.
static int is_lost(int file, char *object, size_t size, int mark)
{
    char in_file = 0;
    if (object < pool || object >= pool + POOL) return 1;
    memset(object, mark, size);
    pread(file, &in_file, 1, object - pool + size / 2);
    return in_file != mark;
}

int main(void)
{
    int lost = 0, changed = 0;
    if (mallctl) {
        int file = memfd_create("pool", 0);
        if (ftruncate(file, POOL)) return 2;
        pool = mmap(NULL, POOL, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
        unsigned arena;
        size_t length = sizeof arena;
        hooks *own = &table;
        if (mallctl("arenas.create", &arena, &length, &own, sizeof own)) return 3;
        // The arena itself lies at the start of the pool.
        size_t first = used;
        // MALLOCX_ARENA(arena) | MALLOCX_TCACHE_NONE
        int flags = (int)(arena + 1) << 20 | 1 << 8;
        for (int i = 0; i < OBJECTS; i++) {
            size_t size = (i % 4 + 1) * 300000 + i * 1000;
            char *object = mallocx(size, flags);
            lost += is_lost(file, object, size, i + 1);
            dallocx(object, flags);
        }
        // One that moves out of the pool: the pool's own pages stay there.
        char *object = mallocx(LARGE, flags);
        memset(object, 'x', LARGE);
        char *moved = realloc(object, 4 * LARGE);
        for (int i = 0; i < LARGE; i++) changed += moved[i] != 'x';
        free(moved);
        object = mallocx(LARGE, flags);
        lost += is_lost(file, object, LARGE, 'y');
        dallocx(object, flags);
        // What other arenas return calls no hook, and takes nothing from the pool.
        for (int i = 0; i < 3; i++) free(memset(malloc(48 << 20), 1, 48 << 20));
        memset(pool + first, 'z', used - first);
        char in_file = 0;
        for (size_t at = first; at < used; at += 4096) {
            pread(file, &in_file, 1, at);
            lost += in_file != 'z';
        }
    }
    printf("lost %d, changed %d\n", lost, changed);
    return 0;
}
