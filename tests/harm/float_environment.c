// guards: a program that tests or traps floating-point exceptions, or chooses a rounding mode, around code that allocates
// build: -lm
// seconds: 180
#define _GNU_SOURCE
#include <fenv.h>
#include <malloc.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

enum { OBJECTS = 100, ROUNDS = 20, MAX_BYTES = 5000, MILLISECONDS = 300 };

typedef void *(*Sized)(size_t);

static void *aligned(size_t bytes)
{
    void *p = NULL;
    return posix_memalign(&p, 256, bytes) ? NULL : p;
}
static void *zeroed(size_t bytes) { return calloc(bytes, 1); }
static void *grown(size_t bytes) { return realloc(malloc(1), bytes); }
static void *shrunk(size_t bytes) { return realloc(malloc(20 * bytes), bytes); }
static void *resized(size_t bytes) { return reallocarray(memalign(64, 70000), 70000 + bytes, 1); }
static void *of_pages(size_t bytes) { return valloc(bytes); }
static void *to_align(size_t bytes) { return aligned_alloc(32, (bytes + 31) / 32 * 32); }

static void allocate(void)
{
    static const Sized ways[] = {malloc, aligned, zeroed, grown, shrunk, resized, of_pages, to_align};
    enum { WAYS = sizeof ways / sizeof *ways };
    void *objects[OBJECTS];
    for (int round = 0; round < ROUNDS; round++) {
        for (int i = 0; i < OBJECTS; i++)
            objects[i] = ways[i % WAYS](1 + (i * 37 + round * 911) % MAX_BYTES);
        for (int i = 0; i < OBJECTS; i++) {
            malloc_usable_size(objects[i]);
            objects[i] = realloc(objects[i], 1 + (i * 91 + round) % MAX_BYTES);
        }
        for (int i = 0; i < OBJECTS; i++)
            free(objects[i]);
    }
    mallinfo2();
    malloc_trim(0);
}

static int traps, rounding;

static void set(void)
{
    feclearexcept(FE_ALL_EXCEPT);
    fesetround(rounding);
    if (traps)
        feenableexcept(FE_ALL_EXCEPT);
}

// True if an exception was raised, or the environment is another one.
static int is_disturbed(void)
{
    return fetestexcept(FE_ALL_EXCEPT) != 0 || fegetround() != rounding;
}

static int of_threads, of_handlers;

static void *thread(void *unused)
{
    set();
    allocate();
    of_threads |= is_disturbed();
    return unused;
}

static void handler(int signal)
{
    (void)signal;
    set();
    allocate();
    of_handlers |= is_disturbed();
}

static long milliseconds(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return now.tv_sec * 1000 + now.tv_nsec / 1000000;
}

static void at_exit(void)
{
    allocate();
    if (is_disturbed())
        _exit(5);
}

static int fails(pid_t child)
{
    int status = -1;
    waitpid(child, &status, 0);
    return status != 0;
}

static void run(void)
{
    set();
    atexit(at_exit);
    for (long end = milliseconds() + MILLISECONDS; milliseconds() < end;) {
        allocate();
        if (is_disturbed())
            _exit(1);
    }
    pthread_t id;
    pthread_create(&id, NULL, thread, NULL);
    pthread_join(id, NULL);
    signal(SIGUSR1, handler);
    raise(SIGUSR1);
    if (is_disturbed() || of_threads || of_handlers)
        _exit(2);
    // A child has the environment of its parent.
    pid_t child = fork();
    if (!child) {
        allocate();
        _exit(is_disturbed());
    }
    if (fails(child) || is_disturbed())
        _exit(3);
    exit(0);
}

int main(void)
{
    static const int modes[] = {FE_TONEAREST, FE_UPWARD, FE_TOWARDZERO};
    int failures = 0;
    for (traps = 0; traps < 2; traps++)
        for (int i = 0; i < 3; i++) {
            rounding = modes[i];
            pid_t child = fork();
            if (!child)
                run();
            failures += fails(child);
        }
    printf("%d of 6 are disturbed\n", failures);
    return failures != 0;
}
