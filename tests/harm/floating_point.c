// guards: allocation raises no floating-point exception, and none that the program has unmasked
// build: -lm -frounding-math
// seconds: 60
#define _GNU_SOURCE
#include <fenv.h>
#include <malloc.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { SLOTS = 1000, ROUNDS = 40 };

static void *slots[SLOTS];

// Returns the exceptions that were raised.
static int churn(void)
{
    for (int round = 0; round < ROUNDS; round++) {
        for (int i = 0; i < SLOTS; i++)
            slots[i] = malloc((i * 37 + round) % 5000 + 1);
        for (int i = 0; i < SLOTS; i++)
            slots[i] = realloc(slots[i], (i * 91) % 9000 + 1);
        for (int i = 0; i < SLOTS; i++)
            free(slots[i]);
    }
    char *large = calloc(1, 100 << 20);
    large = realloc(large, (100 << 20) + 12345);
    free(large);
    malloc_trim(0);
    mallinfo2();
    return fetestexcept(FE_ALL_EXCEPT);
}

int main(void)
{
    int bad = 0;
    feclearexcept(FE_ALL_EXCEPT);
    bad += churn() != 0;
    // What was raised before remains, and so does the direction of rounding.
    feraiseexcept(FE_OVERFLOW | FE_DIVBYZERO);
    fesetround(FE_UPWARD);
    int raised = fetestexcept(FE_ALL_EXCEPT);
    bad += churn() != raised || fegetround() != FE_UPWARD;
    // Not every processor can trap.
    feclearexcept(FE_ALL_EXCEPT);
    feenableexcept(FE_ALL_EXCEPT);
    int trapped = fegetexcept();
    bad += churn() != 0 || fegetexcept() != trapped;
    printf("%d bad\n", bad);
    return bad != 0;
}
