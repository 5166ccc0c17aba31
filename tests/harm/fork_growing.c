// guards: fork while threads allocate at addresses that the allocator has not used before
// seconds: 180
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

enum { THREADS = 3, FORKS = 80, BLOCKS = 8 };

// More than a leaf of the allocator's tree of addresses describes. Never touched, and never freed:
// addresses that are used again have their leaf.
static const size_t BYTES = 129u << 20;
static volatile int rounds;

static void *grow(void *argument)
{
    for (int i = 1; i <= FORKS; i++) {
        // Not asleep: they are to begin as soon as the fork does.
        while (rounds < i)
            sched_yield();
        for (int j = 0; j < BLOCKS; j++)
            malloc(BYTES);
    }
    return argument;
}

int main(void)
{
    pthread_t threads[THREADS];
    for (int i = 0; i < THREADS; i++)
        pthread_create(&threads[i], NULL, grow, NULL);
    int good = 0;
    for (int i = 1; i <= FORKS; i++) {
        rounds = i;
        pid_t child = fork();
        if (child == 0) {
            // Its locks are free.
            malloc(BYTES);
            _exit(7);
        }
        int status;
        good += waitpid(child, &status, 0) == child && WIFEXITED(status) && WEXITSTATUS(status) == 7;
    }
    for (int i = 0; i < THREADS; i++)
        pthread_join(threads[i], NULL);
    printf("%d of %d children\n", good, FORKS);
    return good == FORKS ? 0 : 1;
}
