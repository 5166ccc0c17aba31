// Uses half a second of CPU time in one function. With STAYS set it continues until it is killed. With
// INTERPRETER defined it looks as if an interpreter of Python were in it.
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

static volatile unsigned long sink;

// What a program shows in which CPython 3.7 is linked.
#ifdef INTERPRETER
char _PyRuntime[4096] = {1};
void _PyEval_EvalFrameDefault(void) { sink++; }
#endif

__attribute__((noinline, noclone)) void site_migration(void) {
    for (unsigned long i = 0; i < 2000000; i++) sink += i * i;
}

static double used(void) {
    struct timespec time;
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &time);
    return time.tv_sec + time.tv_nsec / 1e9;
}

int main(void) {
    printf("ready\n");
    fflush(stdout);
    while (getenv("STAYS") || used() < 0.5)
        site_migration();
    return 0;
}
