// guards: a program that limits its own data to 40M, with 16 threads, has a fifth of that for its heap in any mode
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/resource.h>

enum { THREADS = 16, OBJECT = 10000, EXPECTED = 8 << 20 };

static pthread_barrier_t all;

static void *allocate_and_stay(void *none)
{
    void *p[30];
    for (int i = 0; i < 30; i++)
        p[i] = malloc(1000);
    for (int i = 0; i < 30; i++)
        free(p[i]);
    pthread_barrier_wait(&all);
    pthread_barrier_wait(&all);
    return none;
}

int main(void)
{
    struct rlimit limit = {40 << 20, 40 << 20};
    if (setrlimit(RLIMIT_DATA, &limit)) {
        perror("setrlimit");
        return 1;
    }
    pthread_t threads[THREADS];
    pthread_attr_t small;
    pthread_attr_init(&small);
    pthread_attr_setstacksize(&small, 256 << 10);
    pthread_barrier_init(&all, NULL, THREADS + 1);
    for (int i = 0; i < THREADS; i++)
        if (pthread_create(&threads[i], &small, allocate_and_stay, NULL)) {
            puts("no thread");
            return 1;
        }
    pthread_barrier_wait(&all);
    size_t taken = 0;
    while (taken < (100 << 20) && malloc(OBJECT))
        taken += OBJECT;
    fprintf(stderr, "%zu KiB\n", taken >> 10);
    printf("%s\n", taken >= EXPECTED ? "enough" : "too little");
    pthread_barrier_wait(&all);
    for (int i = 0; i < THREADS; i++)
        pthread_join(threads[i], NULL);
    return taken < EXPECTED;
}
