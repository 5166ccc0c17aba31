/* Forks a child, in which a thread that is to be cancelled allocates while it holds a lock. `malloc` is no
   cancellation point: the thread comes to its end, and the lock is free. Exits with 0 if so, else with 1. */
#include <pthread.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static void *volatile kept[1000];

static void *hold(void *whole)
{
    pthread_cancel(pthread_self());
    pthread_mutex_lock(&lock);
    for (int i = 0; i < 1000; i++)
        kept[i] = malloc(1000);
    pthread_mutex_unlock(&lock);
    return whole;
}

int main(void)
{
    pid_t child = fork();
    if (child == 0) {
        pthread_t thread;
        int whole;
        void *end;
        if (pthread_create(&thread, NULL, hold, &whole) || pthread_join(thread, &end))
            _exit(1);
        _exit(end != &whole || pthread_mutex_trylock(&lock));
    }
    int status;
    return waitpid(child, &status, 0) != child || status;
}
