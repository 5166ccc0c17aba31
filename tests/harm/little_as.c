// guards: a program that may have 12M of address space has nearly all of it
// limit: as=12M
#include <stdio.h>
#include <stdlib.h>

/* What is left of the limit beyond the program and its libraries, less some. */
#ifndef EXPECTED
#define EXPECTED 7000000
#endif
enum { OBJECT = 40000 };

int main(void)
{
    size_t taken = 0;
    while (taken < EXPECTED && malloc(OBJECT))
        taken += OBJECT;
    printf("%s\n", taken >= EXPECTED ? "enough" : "too little");
    return taken < EXPECTED;
}
