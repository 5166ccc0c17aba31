// Loses objects at two calls of one function, whose stacks have the same names.
#include <stdlib.h>

#include "steps.h"

static volatile char *last;

__attribute__((noinline, noclone)) static void lose(void) {
    last = malloc(1000); // first
    last[0] = 1;
    last = malloc(1000); // second
    last[0] = 1;
}

__attribute__((noinline, noclone)) static void lose_many(void) {
    for (int i = 0; i < 20; i++)
        lose();
}

// Overwrites what is left of pointers on the stack.
__attribute__((noinline, noclone)) static void wipe(void) {
    volatile char bytes[8192];
    for (size_t i = 0; i < sizeof bytes; i++)
        bytes[i] = 0;
}

static void step(char *line) {
    if (strcmp(line, "lose"))
        fail(line);
    lose_many();
    last = NULL;
    wipe();
}

int main(void) { return follow(step); }
