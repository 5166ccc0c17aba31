// A library whose fork handlers allocate and use streams; its constructor registers them, and its destructor
// forks.
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

static void *kept;

static void use_memory(void)
{
    for (int i = 0; i < 1000; i++) {
        void *p = malloc(16 + i * 8);
        free(kept);
        kept = p;
    }
    FILE *file = fopen("/dev/null", "w");
    fprintf(file, "%d", 1);
    fflush(NULL);
    fclose(file);
}

__attribute__((constructor)) static void start(void)
{
    pthread_atfork(use_memory, use_memory, use_memory);
}

__attribute__((destructor)) static void end(void)
{
    for (int i = 0; i < 20; i++) {
        pid_t child = fork();
        if (child == 0) {
            free(malloc(1000));
            _exit(7);
        }
        int status;
        if (waitpid(child, &status, 0) != child || !WIFEXITED(status) || WEXITSTATUS(status) != 7)
            _exit(1);
    }
}
