// guards: a program that may have 2M of data has nearly all of it
// limit: data=2M
#include <stdio.h>
#include <stdlib.h>

/* What is left of the limit beyond the program and its libraries, less some. */
enum { EXPECTED = 1200000, OBJECT = 40000 };

int main(void)
{
    size_t taken = 0;
    while (taken < EXPECTED && malloc(OBJECT))
        taken += OBJECT;
    printf("%s\n", taken >= EXPECTED ? "enough" : "too little");
    return taken < EXPECTED;
}
