// guards: allocations deep in a coroutine, whose stack nobody can know, cost a bounded number of system calls
// seconds: 60
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <ucontext.h>

enum { STACK = 8 << 20, DEPTH = 1600, FRAME = 4000, OBJECTS = 100000 };

static ucontext_t caller, coroutine;
static long bytes;

static void allocate(void)
{
    for (int i = 0; i < OBJECTS; i++) {
        volatile char *object = malloc(16 + i % 100);
        object[0] = 1;
        bytes += object[0] * (16 + i % 100);
        free((void *)object);
    }
}

__attribute__((noinline)) static int descend(int depth)
{
    volatile char frame[FRAME];
    frame[0] = (char)depth;
    if (depth == 0)
        allocate();
    else
        descend(depth - 1);
    return frame[0];
}

static void run(void)
{
    descend(DEPTH);
}

int main(void)
{
    char *stack = mmap(0, STACK, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (stack == MAP_FAILED || getcontext(&coroutine) != 0)
        return 1;
    coroutine.uc_stack.ss_sp = stack;
    coroutine.uc_stack.ss_size = STACK;
    coroutine.uc_link = &caller;
    makecontext(&coroutine, run, 0);
    if (swapcontext(&caller, &coroutine) != 0)
        return 1;
    printf("%ld bytes\n", bytes);
    return munmap(stack, STACK);
}
