// Uses what a preloaded allocator takes over, and checks it: every function of the family, threads,
// forks, another program, a library that is loaded. For C libraries that the agent does not know.
// Prints "ready", and ends with 0 when its input does.
#include <dlfcn.h>
#include <malloc.h>
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#define CHECK(what) do { if (!(what)) { fprintf(stderr, "%s is false\n", #what); _exit(1); } } while (0)

static void use(void) {
    for (size_t size = 1; size < 100000; size = size * 3 + 1) {
        char *p = malloc(size);
        CHECK(p && malloc_usable_size(p) >= size);
        memset(p, 1, size);
        p = realloc(p, 2 * size);
        CHECK(p && p[size - 1] == 1);
        char *zeros = calloc(size, 2);
        CHECK(zeros && zeros[0] == 0 && zeros[2 * size - 1] == 0);
        void *aligned;
        CHECK(posix_memalign(&aligned, 256, size) == 0 && (uintptr_t)aligned % 256 == 0);
        void *also = aligned_alloc(64, 64 * size);
        CHECK(also && (uintptr_t)also % 64 == 0);
        free(p), free(zeros), free(aligned), free(also);
    }
}

static void *thread(void *unused) {
    for (int i = 0; i < 100; i++) use();
    return unused;
}

int main(int count, char **arguments) {
    pthread_t threads[4];
    for (int i = 0; i < 4; i++) CHECK(pthread_create(&threads[i], 0, thread, 0) == 0);
    for (int i = 0; i < 20; i++) {
        pid_t child = fork();
        CHECK(child >= 0);
        if (child == 0) use(), _exit(7);
        int status;
        CHECK(waitpid(child, &status, 0) == child && WIFEXITED(status) && WEXITSTATUS(status) == 7);
    }
    for (int i = 0; i < 4; i++) CHECK(pthread_join(threads[i], 0) == 0);
    CHECK(system(count > 2 ? arguments[2] : "true") == 0);
    if (count > 1) {
        void *library = dlopen(arguments[1], RTLD_NOW);
        CHECK(library);
        void *(*site)(long) = (void *(*)(long))dlsym(library, "site_plugin");
        CHECK(site);
        free(site(1000));
        CHECK(dlsym(library, "nowhere") == 0 && dlerror());
        CHECK(dlsym(RTLD_DEFAULT, "strlen"));
        CHECK(dlclose(library) == 0);
    }
    puts("ready");
    fflush(stdout);
    while (getchar() != EOF) use();
    return 0;
}
