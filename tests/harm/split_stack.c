// guards: on a stack in pieces, what lies between two of them is not searched at each allocation
// build: -fsplit-stack -pthread
// seconds: 60
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>

enum { DEPTH = 300, ROUNDS = 400 };

__attribute__((noinline)) static int descend(int depth)
{
    volatile char frame[300];
    frame[0] = 1;
    volatile char *object = malloc(100);
    object[0] = 1;
    int below = depth ? descend(depth - 1) : 0;
    free((void *)object);
    return below + frame[0];
}

static void *run(void *sum)
{
    for (int round = 0; round < ROUNDS; round++)
        *(long *)sum += descend(DEPTH);
    return NULL;
}

int main(void)
{
    long sum = 0;
    pthread_t thread;
    pthread_attr_t attributes;
    pthread_attr_init(&attributes);
    pthread_attr_setstacksize(&attributes, 8 << 20);
    if (pthread_create(&thread, &attributes, run, &sum) || pthread_join(thread, NULL))
        return 1;
    printf("%ld calls\n", sum);
    return 0;
}
