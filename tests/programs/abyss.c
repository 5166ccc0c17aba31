/* Works at the end of a recursion whose stack is longer than the kernel copies.
 * abyss SECONDS DEPTH [again]: `again`: goes down anew for each millisecond of work. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

static double cpu(void)
{
    struct timespec now;
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &now);
    return now.tv_sec + now.tv_nsec / 1e9;
}

static volatile unsigned long sink;

__attribute__((noinline)) void site_bottom(double seconds)
{
    double end = cpu() + seconds;
    while (cpu() < end)
        for (int i = 0; i < 10000; i++)
            sink += i;
}

__attribute__((noinline)) void site_down(int depth, double seconds)
{
    volatile char room[1000];
    room[0] = room[500] = (char)depth;
    if (depth == 0)
        site_bottom(seconds);
    else
        site_down(depth - 1, seconds);
    sink += room[0];
}

int main(int count, char **arguments)
{
    double seconds = atof(arguments[1]);
    int depth = atoi(arguments[2]);
    if (count < 4)
        site_down(depth, seconds);
    for (double end = cpu() + seconds; count > 3 && cpu() < end;)
        site_down(depth, 0.001);
    return 0;
}
