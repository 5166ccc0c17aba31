// Calls functions of the library that the program is linked with, before `main` and in it.
#include <stdio.h>
#include <stdlib.h>
int test_own_names(void);
int ProfilerStart(int, int);
double ProfilerStop(double, double);
__attribute__((constructor)) static void before(void) { printf("before main: %d %g\n", ProfilerStart(8, 9), ProfilerStop(1, 0.5)); }
int main(void)
{
    free(malloc(100));
    printf("%d %g\n", ProfilerStart(1, 2), ProfilerStop(3, 0.125));
    return test_own_names();
}
