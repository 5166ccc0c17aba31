// Forks COUNT children one after another, each of which allocates 400 KB and ends by _exit: short_children COUNT HOW
// With "thread" as HOW, a thread with a stack of 16 KiB does so.
#include <limits.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

static void *work(void *unused) {
    for (int j = 0; j < 100; j++)
        memset(malloc(4000), 1, 4000);
    return unused;
}

static void work_in_thread(void) {
    pthread_attr_t attributes;
    pthread_t thread;
    if (pthread_attr_init(&attributes) || pthread_attr_setstacksize(&attributes, PTHREAD_STACK_MIN) ||
        pthread_create(&thread, &attributes, work, 0) || pthread_join(thread, 0))
        _exit(1);
}

int main(int argc, char **argv) {
    int count = argc > 1 ? atoi(argv[1]) : 1, failed = 0;
    int threaded = argc > 2 && !strcmp(argv[2], "thread");
    for (int i = 0; i < count; i++) {
        pid_t child = fork();
        if (child == 0) {
            if (threaded)
                work_in_thread();
            else
                work(0);
            _exit(0);
        }
        int status = -1;
        waitpid(child, &status, 0);
        failed += status != 0;
    }
    printf("%d failed\n", failed);
    return failed != 0;
}
