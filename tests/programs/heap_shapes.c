// heap_shapes split|sparse|fiber: a heap of 40 MiB of glibc's allocator, in a shape that is hard to read: the kernel has
// split its mapping; 1 TiB of addresses are mapped beside it and never touched; a thread waits on a stack that is one of
// its objects. Prints "ready" and waits for the end of its input.
#define _GNU_SOURCE
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <ucontext.h>
#include <unistd.h>

enum { OBJECTS = 4096, STACK = 64 << 10 };

static char *objects[OBJECTS];
static ucontext_t outside, inside;

static void wait_for_end(void) {
    char input;
    puts("ready");
    fflush(stdout);
    while (read(0, &input, 1) > 0) {}
}

int main(int argc, char **argv) {
    if (argc < 2) return 2;
    for (int i = 0; i < OBJECTS; i++) memset(objects[i] = malloc(10000), 1, 10000);
    if (!strcmp(argv[1], "split")) {
        char *page = (char *)(((unsigned long)objects[OBJECTS / 2] + 4095) & ~4095ul);
        if (madvise(page, 4096, MADV_DONTDUMP)) return 3;
    } else if (!strcmp(argv[1], "sparse")) {
        char *addresses = mmap(NULL, 1ul << 40, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
        if (addresses == MAP_FAILED || madvise(addresses, 1ul << 40, MADV_NOHUGEPAGE)) return 4;
    } else {
        getcontext(&inside);
        inside.uc_stack.ss_sp = malloc(STACK);
        inside.uc_stack.ss_size = STACK;
        inside.uc_link = &outside;
        makecontext(&inside, wait_for_end, 0);
        swapcontext(&outside, &inside);
        return 0;
    }
    wait_for_end();
}
