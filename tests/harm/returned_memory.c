// guards: in a limited address space, what one thread has freed is there for others and for mappings
// seconds: 180
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

enum { MIB = 1 << 20 };

struct block {
    struct block *next;
};

static size_t size;

static void *take(void *argument)
{
    struct block *all = NULL;
    size_t taken = 0;
    for (struct block *p; (p = malloc(size)); all = p, taken += size)
        p->next = all;
    while (all) {
        struct block *next = all->next;
        free(all);
        all = next;
    }
    *(size_t *)argument = taken / MIB;
    return NULL;
}

static int check(const char *what, int good)
{
    if (!good)
        printf("%zu: %s\n", size, what);
    return good;
}

static int run(void)
{
    pthread_attr_t attributes;
    pthread_attr_init(&attributes);
    pthread_attr_setstacksize(&attributes, 256 << 10);
    pthread_t thread;
    size_t taken = 0;
    if (pthread_create(&thread, &attributes, take, &taken) != 0)
        return 1;
    pthread_join(thread, NULL);
    int good = check("little to begin with", taken >= 60);
    void *p = malloc(40 * MIB);
    good &= check("no large object", p != NULL);
    free(p);
    // What is freed may stay mapped for a while.
    int mapped = 0;
    for (int i = 0; i < 100 && !mapped; i++) {
        p = mmap(NULL, 40 * MIB, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        mapped = p != MAP_FAILED;
        if (!mapped) {
            usleep(20000);
            free(malloc(2 * MIB));
        }
    }
    good &= check("no mapping", mapped);
    if (mapped)
        munmap(p, 40 * MIB);
    size_t again = 0;
    if (pthread_create(&thread, &attributes, take, &again) == 0)
        pthread_join(thread, NULL);
    good &= check("less the second time", again >= taken * 3 / 4);
    return !good;
}

static int limited(size_t bytes, int resource)
{
    size = bytes;
    fflush(stdout);
    pid_t child = fork();
    if (child == 0) {
        struct rlimit limit = {200 * MIB, 200 * MIB};
        setrlimit(resource, &limit);
        int result = run();
        fflush(stdout);
        _exit(result);
    }
    int status;
    return waitpid(child, &status, 0) == child && status == 0;
}

int main(void)
{
    int good = 1;
    size_t sizes[] = {500, 5000, 200000};
    for (int i = 0; i < 3; i++) {
        good &= limited(sizes[i], RLIMIT_AS);
        good &= limited(sizes[i], RLIMIT_DATA);
    }
    puts(good ? "enough" : "too little");
    return !good;
}
