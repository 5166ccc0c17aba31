// guards: a process with 16 KiB of stack, and threads with as little as there may be, allocate, fork and load
// seconds: 180
#define _GNU_SOURCE
#include <dlfcn.h>
#include <limits.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/personality.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

enum { LEAST = 16 << 10 };

static void allocate(void)
{
    for (int i = 0; i < 300; i++) {
        void *p = malloc(100 + i * 100);
        p = realloc(p, 100 + i * 200);
        free(p);
        free(calloc(1, 100 + i));
    }
    free(aligned_alloc(4096, 100000));
}

static void fork_once(void)
{
    pid_t child = fork();
    if (child == 0) {
        allocate();
        _exit(7);
    }
    int status;
    if (waitpid(child, &status, 0) != child || !WIFEXITED(status) || WEXITSTATUS(status) != 7) {
        puts("a child failed");
        exit(1);
    }
}

static void *run(void *argument)
{
    allocate();
    fork_once();
    return argument;
}

static int threads(void)
{
    pthread_attr_t attributes;
    pthread_attr_init(&attributes);
    char *stack = mmap(NULL, LEAST, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    pthread_t thread;
    for (int i = 0; i < 20; i++) {
        pthread_attr_setstack(&attributes, stack, LEAST);
        if (pthread_create(&thread, &attributes, run, NULL) != 0)
            return 1;
        pthread_join(thread, NULL);
    }
    return 0;
}

// With an environment that leaves the stack to the program.
static void again(char **arguments)
{
    static char *kept[16];
    int count = 0;
    for (char **entry = environ; *entry; entry++)
        if ((!strncmp(*entry, "LD_PRELOAD=", 11) || !strncmp(*entry, "MEM_PROFILER_", 13)) && count < 15)
            kept[count++] = *entry;
    // The kernel begins a stack up to 8 KiB further down by chance, which may not leave the loader enough.
    personality(ADDR_NO_RANDOMIZE);
    struct rlimit limit = {LEAST, LEAST};
    setrlimit(RLIMIT_STACK, &limit);
    char *new[] = {arguments[0], "again", NULL};
    execve("/proc/self/exe", new, kept);
}

int main(int count, char **arguments)
{
    if (count == 1) {
        again(arguments);
        return 1;
    }
    allocate();
    fork_once();
    int failed = threads();
    printf("%s\n", failed ? "no thread" : "done");
    return failed;
}
