// guards: coroutines with 4 KiB of stack, with nothing below
#define _GNU_SOURCE
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <ucontext.h>

enum { BYTES = 4096, COUNT = 50 };

static ucontext_t outside, inside[COUNT];
static long done;

static void run(void)
{
    for (int round = 0; round < 20; round++) {
        void *kept[32];
        for (int i = 0; i < 32; i++) kept[i] = malloc(24 + i * 40);
        for (int i = 0; i < 32; i++) free(kept[i]);
        void *p = realloc(malloc(100), 5000);
        free(realloc(p, 300));
        free(calloc(100, 100));
        done++;
        swapcontext(&inside[done % COUNT ? (done - 1) % COUNT : COUNT - 1], &outside);
    }
}

int main(void)
{
    for (int i = 0; i < COUNT; i++) {
        char *low = mmap(NULL, 2 * BYTES, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        mprotect(low + BYTES, BYTES, PROT_READ | PROT_WRITE);
        getcontext(&inside[i]);
        inside[i].uc_stack.ss_sp = low + BYTES;
        inside[i].uc_stack.ss_size = BYTES;
        inside[i].uc_link = &outside;
        makecontext(&inside[i], run, 0);
    }
    for (int round = 0; round < 20; round++)
        for (int i = 0; i < COUNT; i++) swapcontext(&outside, &inside[i]);
    printf("%ld\n", done);
    return 0;
}
