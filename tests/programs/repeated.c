// Loses objects at one place, in several threads and in a library that is loaded at several addresses.
//
// Argument: the library. Talks in lines: "lose" loses 2 objects of 3,000 bytes in each of three
// threads, and one of 7,000 in the library each of the three times that it is loaded.
#include <dlfcn.h>
#include <pthread.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/mman.h>

#include "steps.h"
#include "wipe.h"

enum { TIMES = 3 };

static const char *library;

__attribute__((noinline)) void lost_in_thread(void) {
    // Volatile, so that both are by one call.
    for (volatile int i = 0; i < 2; i++) {
        void *lost = malloc(3000);
        if (!lost)
            fail("malloc");
        memset(lost, 1, 3000);
    }
}

static void *run(void *unused) {
    (void)unused;
    lost_in_thread();
    wipe();
    return NULL;
}

// Takes the library's address, so that it gets another one the next time.
static void load(void) {
    void *handle = dlopen(library, RTLD_NOW);
    void *(*lose)(long) = handle ? (void *(*)(long))dlsym(handle, "site_plugin") : NULL;
    if (!lose)
        fail("dlopen");
    lose(7000);
    wipe();
    void *page = (void *)((uintptr_t)lose & ~(uintptr_t)0xffff);
    dlclose(handle);
    mmap(page, 1 << 16, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
}

static void step(char *line) {
    if (strcmp(line, "lose"))
        fail(line);
    for (int i = 0; i < TIMES; i++) {
        pthread_t thread;
        if (pthread_create(&thread, NULL, run, NULL))
            fail("pthread_create");
        pthread_join(thread, NULL);
        load();
    }
    wipe();
}

int main(int count, char **arguments) {
    library = count > 1 ? arguments[1] : "";
    return follow(step);
}
