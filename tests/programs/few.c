/* Loses N objects, tells it, and ends. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

__attribute__((noinline)) static void lose(int count)
{
    for (int i = 0; i < count; i++) {
        void *volatile object = malloc(1000);
        object = NULL;
    }
}

/* What the calls above have left on the stack. */
__attribute__((noinline)) static void forget(void)
{
    volatile char room[8000];
    memset((void *)room, 0, sizeof room);
}

int main(int argc, char **argv)
{
    lose(argc > 1 ? atoi(argv[1]) : 0);
    forget();
    puts("done");
}
