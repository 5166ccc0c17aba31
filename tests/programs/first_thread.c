// The first thread ends, and another one continues: it says `ready`, and for each line that it reads it
// allocates 1000 blocks of 1000 bytes, of which it keeps every tenth, and says `ok`. With an argument
// it calls `burn` and sleeps in turn instead, until its input ends.
#include "first_thread.h"

#include <poll.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

static void *volatile kept[100000];
static int count;

static __attribute__((noinline)) void allocate(void) {
    for (int i = 0; i < 1000; i++) {
        void *volatile block = malloc(1000);
        if (i % 10)
            free(block);
        else
            kept[count++] = block;
    }
}

static __attribute__((noinline)) void burn(void) {
    struct timespec begin, now;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &begin);
    do {
        for (volatile int i = 0; i < 100000; i++) {
        }
        clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
    } while ((now.tv_sec - begin.tv_sec) * 1000000000L + now.tv_nsec - begin.tv_nsec < 20000000);
}

static void *go_on(void *burns) {
    char line[64];
    wait_for_first_thread();
    puts("ready"), fflush(stdout);
    struct pollfd input = {0, 0, 0};
    while (burns && !poll(&input, 1, 20))
        burn();
    while (fgets(line, sizeof line, stdin)) {
        allocate();
        puts("ok"), fflush(stdout);
    }
    return burns;
}

int main(int argc, char **argv) {
    pthread_t thread;
    pthread_create(&thread, 0, go_on, argc > 1 ? argv : 0);
    pthread_exit(0);
}
