// Makes threads that live for a moment, two at a time, after a line of input; then says what CPU time
// they used for what they do, and all of it was: "live NANOSECONDS", "cpu NANOSECONDS".

#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <time.h>

static volatile unsigned sink;

static atomic_long lived;

static long now(clockid_t clock) {
    struct timespec time;
    clock_gettime(clock, &time);
    return time.tv_sec * 1000000000L + time.tv_nsec;
}

static void *live(void *none) {
    long begin = now(CLOCK_THREAD_CPUTIME_ID);
    for (int i = 0; i < 50000; i++)
        sink = sink * 3 + 1;
    lived += now(CLOCK_THREAD_CPUTIME_ID) - begin;
    return none;
}

int main(void) {
    puts("ready");
    fflush(stdout);
    if (getchar() == EOF)
        return 1;
    long begin = now(CLOCK_PROCESS_CPUTIME_ID);
    for (int turn = 0; turn < 8000; turn++) {
        pthread_t threads[2];
        for (int i = 0; i < 2; i++)
            if (pthread_create(&threads[i], NULL, live, NULL))
                return 1;
        for (int i = 0; i < 2; i++)
            pthread_join(threads[i], NULL);
    }
    printf("live %ld\ncpu %ld\n", lived, now(CLOCK_PROCESS_CPUTIME_ID) - begin);
    return 0;
}
