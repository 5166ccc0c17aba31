// guards: fork handlers that allocate, whoever registered them and when, and forks after the agent's destructor
// seconds: 180
// library: fork_handlers_lib.c
// preload: fork_handlers_lib.c before
// preload: fork_handlers_lib.c after
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

enum { THREADS = 3, FORKS = 40 };

static void *kept;

static void use_memory(void)
{
    for (int i = 0; i < 1000; i++) {
        void *p = malloc(16 + i * 8);
        free(kept);
        kept = p;
    }
}

// Before every constructor.
static void earliest(void)
{
    pthread_atfork(use_memory, use_memory, use_memory);
}
__attribute__((section(".preinit_array"), used)) static void (*preinit)(void) = earliest;

static void *allocate(void *argument)
{
    for (;;)
        free(malloc(100));
    return argument;
}

static int fork_once(void)
{
    pid_t child = fork();
    if (child == 0) {
        free(malloc(1000));
        _exit(7);
    }
    int status;
    return waitpid(child, &status, 0) == child && WIFEXITED(status) && WEXITSTATUS(status) == 7;
}

int main(void)
{
    pthread_t thread;
    for (int i = 0; i < THREADS; i++)
        pthread_create(&thread, NULL, allocate, NULL);
    int good = 0;
    for (int i = 0; i < FORKS; i++)
        good += fork_once();
    // Enough that the C library's list of handlers grows.
    for (int i = 0; i < 60; i++)
        pthread_atfork(use_memory, use_memory, use_memory);
    good += fork_once();
    printf("%d forks\n", good);
    fflush(stdout);
    // The threads still run when libraries' destructors fork.
    return good == FORKS + 1 ? 0 : 1;
}
