// Makes threads that live for a moment, two at a time, after a line of input; then says "over".

#include <pthread.h>
#include <stdio.h>

static volatile unsigned sink;

static void *live(void *none) {
    for (int i = 0; i < 50000; i++)
        sink = sink * 3 + 1;
    return none;
}

int main(void) {
    puts("ready");
    fflush(stdout);
    if (getchar() == EOF)
        return 1;
    for (int turn = 0; turn < 8000; turn++) {
        pthread_t threads[2];
        for (int i = 0; i < 2; i++)
            if (pthread_create(&threads[i], NULL, live, NULL))
                return 1;
        for (int i = 0; i < 2; i++)
            pthread_join(threads[i], NULL);
    }
    puts("over");
    return 0;
}
