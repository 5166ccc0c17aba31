/* Has N threads at once, each with an object of 1000 bytes. Says so, and ends
   with 0; with 1 if a thread or an object cannot be had. */
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>

enum { MOST = 1000 };
static pthread_barrier_t there, over;

__attribute__((noinline)) static void *site_crowd(void)
{
    void *object = malloc(1000);
    __asm__ volatile("" : "+r"(object));
    return object;
}

static void *hold(void *unused)
{
    void *object = site_crowd();
    if (!object)
        exit(1);
    pthread_barrier_wait(&there);
    pthread_barrier_wait(&over);
    free(object);
    return unused;
}

int main(int argc, char **argv)
{
    int count = argc > 1 ? atoi(argv[1]) : 1;
    pthread_t threads[MOST];
    pthread_attr_t attributes;
    pthread_barrier_init(&there, NULL, count + 1);
    pthread_barrier_init(&over, NULL, count + 1);
    pthread_attr_init(&attributes);
    pthread_attr_setstacksize(&attributes, 64 << 10);
    for (int i = 0; i < count; i++)
        if (pthread_create(&threads[i], &attributes, hold, NULL))
            exit(1);
    pthread_barrier_wait(&there);
    puts("there");
    fflush(stdout);
    pthread_barrier_wait(&over);
    for (int i = 0; i < count; i++)
        pthread_join(threads[i], NULL);
    return 0;
}
