// guards: coroutines with 4 KiB of stack, with nothing below, also in a forked child that is sampled when it has allocated 64 KiB
#define _GNU_SOURCE
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <ucontext.h>
#include <unistd.h>

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

// More than a forked child allocates before the agent begins there.
static void allocate(void)
{
    char *volatile kept[40];
    for (int i = 0; i < 40; i++) kept[i] = malloc(5000);
    for (int i = 0; i < 40; i++) free(kept[i]);
}

static void make(ucontext_t *context, void (*function)(void))
{
    char *low = mmap(NULL, 2 * BYTES, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    mprotect(low + BYTES, BYTES, PROT_READ | PROT_WRITE);
    getcontext(context);
    context->uc_stack.ss_sp = low + BYTES;
    context->uc_stack.ss_size = BYTES;
    context->uc_link = &outside;
    makecontext(context, function, 0);
}

static int child_succeeds(void)
{
    int status = -1;
    pid_t child = fork();
    if (!child) {
        make(&inside[0], allocate);
        swapcontext(&outside, &inside[0]);
        _exit(0);
    }
    waitpid(child, &status, 0);
    return status == 0;
}

int main(void)
{
    // Before anything else is allocated.
    if (!child_succeeds()) puts("the child failed");
    for (int i = 0; i < COUNT; i++) make(&inside[i], run);
    for (int round = 0; round < 20; round++)
        for (int i = 0; i < COUNT; i++) swapcontext(&outside, &inside[i]);
    printf("%ld\n", done);
    return 0;
}
