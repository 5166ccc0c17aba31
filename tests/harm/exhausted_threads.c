// guards: threads whose first allocation is made when there is no memory left
// seconds: 180
#include <errno.h>
#include <malloc.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

enum { STACK = 64 << 10, MOST = 64, MIB = 1 << 20 };

struct block {
    struct block *next;
};

static pthread_barrier_t barrier;
static int failures;

static void fail(const char *what)
{
    printf("%s\n", what);
    __atomic_fetch_add(&failures, 1, __ATOMIC_RELAXED);
}

// Memory that can be written to, or none and ENOMEM.
static void check(const char *name, void *p, size_t size)
{
    if (p)
        memset(p, 1, size);
    else if (errno != ENOMEM)
        fail(name);
    free(p);
    errno = 0;
}

static void *start(void *argument)
{
    int which = (int)(long)argument;
    pthread_barrier_wait(&barrier);
    // Each function is the first that some thread calls.
    for (int i = 0; i < 6; i++) {
        errno = 0;
        switch ((which + i) % 6) {
        case 0: check("malloc", malloc(100), 100); break;
        case 1: check("calloc", calloc(10, 100), 1000); break;
        case 2: check("realloc", realloc(NULL, 5000), 5000); break;
        case 3: check("memalign", memalign(256, 100), 100); break;
        case 4: free(NULL); break;
        case 5: check("large", malloc(3 * MIB), 3 * MIB); break;
        }
    }
    pthread_barrier_wait(&barrier);
    return NULL;
}

static struct block *take_all(void)
{
    struct block *all = NULL;
    for (size_t size = MIB; size >= 16; size /= 2)
        for (struct block *p; (p = malloc(size)); all = p)
            p->next = all;
    return all;
}

static void wave(int threads)
{
    pthread_attr_t attributes;
    pthread_attr_init(&attributes);
    pthread_attr_setstacksize(&attributes, STACK);
    pthread_barrier_init(&barrier, NULL, threads + 1);
    pthread_t ids[MOST];
    for (long i = 0; i < threads; i++)
        if (pthread_create(&ids[i], &attributes, start, (void *)i) != 0) {
            puts("no thread");
            fflush(stdout);
            _exit(1);
        }
    struct block *all = take_all();
    pthread_barrier_wait(&barrier);
    pthread_barrier_wait(&barrier);
    while (all) {
        struct block *next = all->next;
        free(all);
        all = next;
    }
    for (int i = 0; i < threads; i++)
        pthread_join(ids[i], NULL);
    pthread_barrier_destroy(&barrier);
    void *p = malloc(100);
    if (!p)
        fail("no memory though all was freed");
    free(p);
    pid_t child = fork();
    if (child == 0) {
        free(malloc(100));
        _exit(7);
    }
    int status;
    if (waitpid(child, &status, 0) != child || !WIFEXITED(status) || WEXITSTATUS(status) != 7)
        fail("fork");
}

static void limited(int resource, rlim_t bytes, int threads)
{
    pid_t child = fork();
    if (child == 0) {
        struct rlimit limit = {bytes, bytes};
        setrlimit(resource, &limit);
        wave(threads);
        fflush(stdout);
        _exit(failures ? 1 : 0);
    }
    int status;
    if (waitpid(child, &status, 0) != child || status != 0)
        fail("a limited process");
}

int main(void)
{
    puts("start");
    fflush(stdout);
    for (int threads = 1; threads <= MOST; threads *= 4) {
        limited(RLIMIT_AS, 400 << 20, threads);
        limited(RLIMIT_DATA, 100 << 20, threads);
    }
    puts("end");
    return failures ? 1 : 0;
}
