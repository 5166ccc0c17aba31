// guards: allocation in a signal's handler on a small alternate stack: 2.5 KiB beside what the kernel puts there
// build: -Wl,-z,now
#define _GNU_SOURCE
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/auxv.h>
#include <sys/mman.h>

// The loader would resolve functions on that stack, and save all vector registers there: bound at the start.
enum { PAGE = 4096, ROOM = 2560 };
#ifndef AT_MINSIGSTKSZ
#define AT_MINSIGSTKSZ 51
#endif

static void *kept[64];
static volatile int handled;

static void allocate(void)
{
    for (int i = 0; i < 64; i++) kept[i] = malloc(24 + i * 40);
    for (int i = 0; i < 64; i++) free(kept[i]);
    kept[0] = realloc(malloc(100), 5000);
    kept[0] = realloc(kept[0], 300);
    free(kept[0]);
    free(calloc(100, 100));
}

static void handle(int signal)
{
    allocate();
    handled++;
}

int main(void)
{
    size_t frame = getauxval(AT_MINSIGSTKSZ);
    size_t bytes = (frame ? frame : 2048) + ROOM;
    size_t whole = (bytes + PAGE - 1) / PAGE * PAGE;
    // Nothing is below the stack.
    char *low = mmap(NULL, PAGE + whole, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    mprotect(low + PAGE, whole, PROT_READ | PROT_WRITE);
    stack_t stack = {.ss_sp = low + PAGE, .ss_size = bytes}, known;
    if (sigaltstack(&stack, NULL)) return perror("sigaltstack"), 1;
    if (sigaltstack(NULL, &known) || known.ss_sp != stack.ss_sp) return puts("another stack"), 1;
    struct sigaction action = {.sa_handler = handle, .sa_flags = SA_ONSTACK};
    sigaction(SIGUSR1, &action, NULL);
    for (int i = 0; i < 200; i++) {
        raise(SIGUSR1);
        if (i > 2) allocate();
    }
    stack.ss_flags = SS_DISABLE;
    if (sigaltstack(&stack, &known) || known.ss_size != bytes) return puts("another size"), 1;
    action.sa_flags = 0;
    sigaction(SIGUSR1, &action, NULL);
    raise(SIGUSR1);
    printf("%d\n", handled);
    return 0;
}
