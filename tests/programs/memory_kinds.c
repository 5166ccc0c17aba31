// memory_kinds KIND FILE: memory of a known kind and size. Prints "ready" and waits for the end of its input.
//
// copies: 24 MiB of FILE are mapped privately, 16 of them are written to.
// stacks: four threads have stacks of 1 MiB without guard pages next to each other and to 12 MiB of the program's own.
// large: a thread has a stack of 32 MiB, of which it has used 20 and returned from.
// fiber: a thread runs on a stack of 64 KiB within 12 MiB of the program's own.
// break: the break cannot grow, since a mapping of the program's own begins there; the heap has 20 MiB.
// objects: 9 MiB of memory that looks like a file: a memfd, shared anonymous memory, System V.
#define _GNU_SOURCE
#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/shm.h>
#include <ucontext.h>
#include <unistd.h>

enum { MIB = 1 << 20, THREADS = 4, FIBER = 64 << 10 };

static pthread_barrier_t begun;
static ucontext_t outside, inside;

static void check(int is_right, const char *what) {
    if (is_right) return;
    perror(what);
    exit(3);
}

static void *map(void *at, size_t bytes, int flags, int file) {
    void *start = mmap(at, bytes, PROT_READ | PROT_WRITE, flags, file, 0);
    check(start != MAP_FAILED, "mmap");
    return start;
}

static __attribute__((noinline)) void use_stack(size_t bytes) {
    volatile char *deep = __builtin_alloca(bytes);
    for (size_t at = 0; at < bytes; at += 4096) deep[at] = 1;
}

static void *wait_on_stack(void *bytes) {
    if (bytes) use_stack((size_t)bytes);
    pthread_barrier_wait(&begun);
    for (;;) pause();
    return NULL;
}

static void wait_in_fiber(void) {
    pthread_barrier_wait(&begun);
    for (;;) pause();
}

static void *enter_fiber(void *stack) {
    getcontext(&inside);
    inside.uc_stack.ss_sp = stack;
    inside.uc_stack.ss_size = FIBER;
    inside.uc_link = &outside;
    makecontext(&inside, wait_in_fiber, 0);
    swapcontext(&outside, &inside);
    return NULL;
}

int main(int argc, char **argv) {
    if (argc < 3) return 2;
    const char *kind = argv[1];
    pthread_attr_t attributes;
    pthread_attr_init(&attributes);
    pthread_t thread;
    unsigned threads = 0;
    if (!strcmp(kind, "copies")) {
        int file = open(argv[2], O_RDWR | O_CREAT | O_TRUNC, 0600);
        check(file >= 0 && !posix_fallocate(file, 0, 24 * MIB), "file");
        char *start = map(NULL, 24 * MIB, MAP_PRIVATE, file);
        volatile char sum = 0;
        for (size_t at = 0; at < 24 * MIB; at += 4096) sum += start[at];
        for (size_t at = 0; at < 16 * MIB; at += 4096) start[at] = 1;
    } else if (!strcmp(kind, "stacks")) {
        threads = THREADS;
        char *all = map(NULL, (12 + THREADS) * MIB, MAP_PRIVATE | MAP_ANONYMOUS, -1);
        memset(all, 1, 12 * MIB);
        pthread_barrier_init(&begun, NULL, threads + 1);
        for (unsigned i = 0; i < threads; i++) {
            check(!pthread_attr_setstack(&attributes, all + (12 + i) * MIB, MIB), "stack");
            check(!pthread_create(&thread, &attributes, wait_on_stack, (void *)(512ul << 10)), "thread");
        }
    } else if (!strcmp(kind, "large")) {
        threads = 1;
        pthread_barrier_init(&begun, NULL, 2);
        pthread_attr_setstacksize(&attributes, 32 * MIB);
        check(!pthread_create(&thread, &attributes, wait_on_stack, (void *)(20ul << 20)), "thread");
    } else if (!strcmp(kind, "fiber")) {
        threads = 1;
        char *all = map(NULL, 12 * MIB, MAP_PRIVATE | MAP_ANONYMOUS, -1);
        memset(all, 1, 12 * MIB);
        pthread_barrier_init(&begun, NULL, 2);
        check(!pthread_create(&thread, NULL, enter_fiber, all + 6 * MIB), "thread");
    } else if (!strcmp(kind, "break")) {
        char *end = sbrk(0);
        char *page = (char *)(((unsigned long)end + 4095) & ~4095ul);
        memset(map(page, 4 * MIB, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED_NOREPLACE, -1), 1, 4 * MIB);
        for (int i = 0; i < 20 * 1024; i++) memset(malloc(1000), 1, 1000);
    } else if (!strcmp(kind, "objects")) {
        int file = memfd_create("planted", 0);
        check(file >= 0 && !ftruncate(file, 4 * MIB), "memfd");
        memset(map(NULL, 4 * MIB, MAP_SHARED, file), 1, 4 * MIB);
        memset(map(NULL, 3 * MIB, MAP_SHARED | MAP_ANONYMOUS, -1), 1, 3 * MIB);
        int segment = shmget(IPC_PRIVATE, 2 * MIB, IPC_CREAT | 0600);
        check(segment >= 0, "shmget");
        char *shared = shmat(segment, NULL, 0);
        shmctl(segment, IPC_RMID, NULL);
        check(shared != (char *)-1, "shmat");
        memset(shared, 1, 2 * MIB);
    }
    if (threads) pthread_barrier_wait(&begun);
    usleep(100000);
    puts("ready");
    fflush(stdout);
    char input;
    while (read(0, &input, 1) > 0) {}
}
