// Reaches its highest live heap for a moment, in the way that its argument names, and prints nothing. What
// the sites hold then is known to the byte.
#include <pthread.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#define SITE __attribute__((noinline))
enum { KEPT = 10 << 20, OBJECT = 100 << 10, OBJECTS = 700, THREADS = 4, PART = OBJECTS / THREADS, MOVED = 8 << 20 };

SITE void *site_kept(void) {
    void *p = malloc(KEPT);
    if (!p) abort();
    return p;
}

SITE void *site_spike(size_t bytes) {
    void *p = malloc(bytes);
    if (!p) abort();
    return p;
}

SITE void *site_moved(void *old, size_t bytes) {
    void *p = realloc(old, bytes);
    if (!p) abort();
    return p;
}

static void spike(int objects) {
    static __thread void *all[OBJECTS];
    for (int i = 0; i < objects; i++) all[i] = site_spike(OBJECT);
    for (int i = 0; i < objects; i++) free(all[i]);
}

static void *in_thread(void *objects) {
    spike(*(int *)objects);
    return NULL;
}

static pthread_barrier_t barrier;

static void *together(void *unused) {
    void *all[PART];
    for (int i = 0; i < PART; i++) all[i] = site_spike(OBJECT);
    pthread_barrier_wait(&barrier);
    for (int i = 0; i < PART; i++) free(all[i]);
    return unused;
}

// Teeth that grow to `OBJECTS`, then shrink.
static void sawtooth(void) {
    for (int tooth = 1; tooth <= OBJECTS; tooth++) spike(tooth);
    for (int tooth = OBJECTS; tooth > 0; tooth -= 7) spike(tooth);
}

// Moves that would be the highest moment if the old and the new place counted together.
static void moves(void) {
    void *p = NULL, *between[9];
    for (int i = 1; i <= 8; i++) {
        p = site_moved(p, (size_t)i * MOVED);
        between[i] = site_spike(OBJECT);
    }
    for (int i = 1; i <= 8; i++) free(between[i]);
    for (int i = 8; i > 0; i--) p = site_moved(p, (size_t)i * MOVED);
    free(p);
}

int main(int argc, char **argv) {
    const char *how = argc > 1 ? argv[1] : "";
    int objects = OBJECTS, status = 0;
    pthread_t threads[THREADS];
    void *kept = site_kept();
    memset(kept, 1, 1);
    if (!strcmp(how, "spike") || !strcmp(how, "killed")) {
        spike(objects);
    } else if (!strcmp(how, "thread")) {
        if (pthread_create(threads, NULL, in_thread, &objects)) abort();
        pthread_join(threads[0], NULL);
    } else if (!strcmp(how, "together")) {
        pthread_barrier_init(&barrier, NULL, THREADS);
        for (int i = 0; i < THREADS; i++)
            if (pthread_create(&threads[i], NULL, together, NULL)) abort();
        for (int i = 0; i < THREADS; i++) pthread_join(threads[i], NULL);
    } else if (!strcmp(how, "sawtooth")) {
        sawtooth();
    } else if (!strcmp(how, "moved")) {
        moves();
    } else if (!strcmp(how, "child")) {
        pid_t pid = fork();
        if (pid < 0) abort();
        if (!pid) {
            kept = site_kept();
            spike(objects);
            free(kept);
            _exit(0);
        }
        waitpid(pid, &status, 0);
    } else {
        return 2;
    }
    if (!strcmp(how, "killed")) raise(SIGKILL);
    free(kept);
    return status != 0;
}
