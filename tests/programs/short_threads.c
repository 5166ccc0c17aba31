// Computes in main and in a thread, by a function that is not inlined.
#include <pthread.h>

static volatile unsigned long sum;

__attribute__((noinline)) void spin(void) {
    for (unsigned long i = 0; i < 200000000; i++) sum += i;
}

void *work(void *argument) {
    spin();
    return argument;
}

int main(void) {
    pthread_t thread;
    if (pthread_create(&thread, 0, work, 0)) return 1;
    spin();
    return pthread_join(thread, 0) ? 1 : 0;
}
