// guards: threads whose destructors set their data again, as often as these run, leave no memory behind
// seconds: 180
#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "lib/resident.h"

// PTHREAD_DESTRUCTOR_ITERATIONS.
enum { ROUNDS = 4, BEFORE = 100, MEASURED = 300, MOST_KIB = 5000 };

static pthread_key_t key;
static __thread int round;

static void again(void *data)
{
    free(data);
    if (++round < ROUNDS)
        pthread_setspecific(key, malloc(64));
    else
        for (int i = 0; i < 4; i++)
            free(malloc(2000));
}

static void *start(void *unused)
{
    pthread_setspecific(key, malloc(64));
    for (int i = 0; i < 20; i++)
        free(malloc(i * 50 + 1));
    return NULL;
}

static void run_threads(int count)
{
    for (int i = 0; i < count; i++) {
        pthread_t thread;
        if (pthread_create(&thread, NULL, start, NULL) != 0)
            exit(2);
        pthread_join(thread, NULL);
    }
}

int main(void)
{
    pthread_key_create(&key, again);
    run_threads(BEFORE);
    long before = resident_kib();
    run_threads(MEASURED);
    long more = resident_kib() - before;
    if (more > MOST_KIB)
        fprintf(stderr, "%d threads left %ld KiB\n", MEASURED, more);
    puts(more > MOST_KIB ? "memory is left" : "ok");
    return more > MOST_KIB;
}
