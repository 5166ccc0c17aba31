// guards: the process's number of mappings: 3000 threads that allocate at once take few besides their stacks
// seconds: 180
// modes: idle,1024,1
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>

enum { COUNT = 3000 };

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_barrier_t all;

static void *run(void *unused)
{
    for (int i = 0; i < 10; i++) free(malloc(5000));
    pthread_barrier_wait(&all);
    pthread_mutex_lock(&lock);
    pthread_mutex_unlock(&lock);
    void *p = malloc(5000);
    free(p);
    return p ? NULL : &all;
}

static int mappings(void)
{
    FILE *file = fopen("/proc/self/maps", "r");
    int lines = 0;
    for (int c; (c = getc(file)) != EOF;) lines += c == '\n';
    fclose(file);
    return lines;
}

static int wave(void)
{
    static pthread_t threads[COUNT];
    pthread_attr_t attributes;
    pthread_attr_init(&attributes);
    pthread_attr_setstacksize(&attributes, 64 << 10);
    pthread_barrier_init(&all, NULL, COUNT + 1);
    pthread_mutex_lock(&lock);
    for (int i = 0; i < COUNT; i++)
        if (pthread_create(&threads[i], &attributes, run, NULL)) return puts("no thread"), 1;
    pthread_barrier_wait(&all);
    int more = mappings() - 2 * COUNT;
    pthread_mutex_unlock(&lock);
    int failed = 0;
    for (int i = 0; i < COUNT; i++) {
        void *result;
        pthread_join(threads[i], &result);
        failed |= result != NULL;
    }
    if (more > COUNT / 4) printf("%d mappings besides the stacks\n", more);
    puts(failed ? "no memory" : "done");
    return failed;
}

int main(void)
{
    return wave() || wave();
}
