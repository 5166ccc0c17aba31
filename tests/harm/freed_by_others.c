// guards: freed memory is returned whichever threads have freed it, and though they sleep or have exited
// seconds: 60
// modes: idle
#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

enum { OBJECTS = 100000, TEAM = 4, CROWD = 300, HELD = 300, KIB = 1 << 10 };

static void **objects;
static pthread_barrier_t barrier;

// Without the C library's streams, which allocate.
static long resident_kib(void)
{
    char text[128] = "";
    long size = 0, resident = 0;
    int file = open("/proc/self/statm", O_RDONLY);
    if (file < 0 || read(file, text, sizeof text - 1) <= 0)
        return -1;
    close(file);
    sscanf(text, "%ld %ld", &size, &resident);
    return resident * (sysconf(_SC_PAGESIZE) / KIB);
}

static void *allocate(void *first)
{
    for (long i = (long)first; i < OBJECTS; i += TEAM) {
        size_t size = 100 + i * 7919 % 2000;
        objects[i] = malloc(size);
        memset(objects[i], 1, size);
    }
    return NULL;
}

static void *release(void *first)
{
    for (long i = (long)first; i < OBJECTS; i += TEAM)
        free(objects[i]);
    pthread_barrier_wait(&barrier);
    pause();
    return NULL;
}

static void *hold(void *unused)
{
    void *held[HELD];
    for (int i = 0; i < HELD; i++) {
        held[i] = malloc(16 + i * 13);
        memset(held[i], 1, 16);
    }
    for (int i = 0; i < HELD; i++)
        free(held[i]);
    pthread_barrier_wait(&barrier);
    return NULL;
}

static void start(pthread_t *threads, int count, void *(*work)(void *))
{
    pthread_attr_t small;
    pthread_attr_init(&small);
    pthread_attr_setstacksize(&small, 64 * KIB);
    for (long i = 0; i < count; i++)
        if (pthread_create(&threads[i], &small, work, (void *)i) != 0)
            _exit(3);
}

static void join(pthread_t *threads, int count)
{
    for (int i = 0; i < count; i++)
        pthread_join(threads[i], NULL);
}

// Exits with 1 if more than three quarters stay: glibc keeps more than half.
static void sleeping_threads(void)
{
    pthread_t threads[TEAM];
    objects = calloc(OBJECTS, sizeof *objects);
    pthread_barrier_init(&barrier, NULL, TEAM + 1);
    start(threads, TEAM, allocate);
    join(threads, TEAM);
    long full = resident_kib();
    start(threads, TEAM, release);
    pthread_barrier_wait(&barrier);
    long left = resident_kib();
    if (left > full / 4 * 3)
        fprintf(stderr, "sleeping: %ld of %ld KiB stay\n", left, full);
    _exit(left > full / 4 * 3);
}

// Exits with 1 if more than 24 MiB stay of 300 threads that each had 0.6 MiB.
static void ended_threads(void)
{
    pthread_t threads[CROWD];
    pthread_barrier_init(&barrier, NULL, CROWD + 1);
    start(threads, CROWD, hold);
    pthread_barrier_wait(&barrier);
    join(threads, CROWD);
    long left = resident_kib();
    if (left > 24 * KIB)
        fprintf(stderr, "ended: %ld KiB stay\n", left);
    _exit(left > 24 * KIB);
}

static int in_child_fails(void (*check)(void))
{
    int status = 0;
    pid_t child = fork();
    if (!child)
        check();
    waitpid(child, &status, 0);
    return status != 0;
}

int main(void)
{
    int failures = in_child_fails(sleeping_threads) + in_child_fails(ended_threads);
    puts(failures ? "too much is kept" : "ok");
    return failures != 0;
}
