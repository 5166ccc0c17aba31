// A program with mappings of its own beside its heap, of sizes that an allocator maps, too.
#include <stdlib.h>
#include <sys/mman.h>

#include "steps.h"

enum { MAPPINGS = 64, OBJECTS = 20000 };

static void *mappings[MAPPINGS], *objects[OBJECTS];
static int mapped, allocated;

// Touches this many bytes.
static void touch(void *at, size_t bytes) { memset(at, 1, bytes); }

static void map_all(void) {
    static const size_t sizes[] = {240 << 10, 512 << 10, 1 << 20, 1536 << 10};
    for (; mapped < MAPPINGS; mapped++) {
        size_t bytes = sizes[mapped % 4];
        void *at = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        if (at == MAP_FAILED)
            fail("mmap");
        touch(at, bytes);
        mappings[mapped] = at;
    }
}

// Allocates `count` objects of `bytes` bytes, of which the first `touched` are written.
static void allocate(int count, size_t bytes, size_t touched) {
    for (int i = 0; i < count; i++) {
        void *at = malloc(bytes);
        if (!at || allocated == OBJECTS)
            fail("malloc");
        touch(at, touched);
        objects[allocated++] = at;
    }
}

static void step(char *line) {
    int count;
    size_t bytes, touched;
    if (!strcmp(line, "map"))
        map_all();
    else if (sscanf(line, "allocate %d %zu %zu", &count, &bytes, &touched) == 3)
        allocate(count, bytes, touched);
    else
        fail(line);
}

int main(void) { return follow(step); }
