// A thread that calls back, and allocates much in between.
#include <pthread.h>
#include <stdlib.h>

static void (*callback)(void);
static void *volatile block;

static void *work(void *count) {
    for (long call = 0; call < (long)count; call++) {
        for (int index = 0; index < 1000; index++) {
            block = malloc(100);
            free(block);
        }
        callback();
        // Where its state was, there is something else.
        for (int index = 0; index < 64; index++)
            block = malloc(100 + 16 * ((index + call) % 64));
    }
    return NULL;
}

void call_back(void (*function)(void), long count) {
    callback = function;
    pthread_t thread;
    if (pthread_create(&thread, NULL, work, (void *)count) != 0)
        abort();
    pthread_join(thread, NULL);
}
