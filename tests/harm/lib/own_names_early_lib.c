// Calls a function of its own in its constructor, with arguments in all registers that may hold some.
#include <stdio.h>
static int found;
int free_sized(double a, double b, double c, double d, double e, double f, double g, double h,
    int i, int j, int k, int l, int m, int n, int o)
{
    return a + 2 * b + 3 * c + 4 * d + 5 * e + 6 * f + 7 * g + 8 * h + i + 2 * j + 3 * k + 4 * l + 5 * m + 6 * n + 7 * o;
}
__attribute__((constructor)) static void start(void)
{
    found = free_sized(1, 2, 3, 4, 5, 6, 7, 8, 1, 2, 3, 4, 5, 6, 7);
}
int ready(void) { printf("%d\n", found); return found == 344; }
