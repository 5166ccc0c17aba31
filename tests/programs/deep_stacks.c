// Allocates at the end of a deep recursion, again and again, until its input ends.
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>

enum { DEPTH = 2000, OBJECTS = 50 };

static volatile int sink;

__attribute__((noinline)) static int descend(int depth)
{
    if (depth == 0) {
        for (int i = 0; i < OBJECTS; i++) free(malloc(64 + i));
        return 0;
    }
    int below = descend(depth - 1);
    sink = below;
    return below + 1;
}

int main(void)
{
    struct pollfd input = {0, POLLIN, 0};
    puts("ready");
    fflush(stdout);
    while (poll(&input, 1, 0) == 0)
        for (int i = 0; i < 100; i++) sink = descend(DEPTH);
    return 0;
}
