// Defines functions of the C library that an allocator may call, in ways that allocate, as libfaketime
// does. To be linked with -rdynamic.
#define _GNU_SOURCE
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

static int calls;

static void allocate(void) {
    free(malloc(100));
    calls++;
}

int clock_gettime(clockid_t clock, struct timespec *time) {
    allocate();
    return syscall(SYS_clock_gettime, clock, time);
}

void *mmap(void *at, size_t bytes, int access, int flags, int file, off_t offset) {
    allocate();
    return (void *)syscall(SYS_mmap, at, bytes, access, flags, file, offset);
}

int munmap(void *at, size_t bytes) {
    allocate();
    return syscall(SYS_munmap, at, bytes);
}

int madvise(void *at, size_t bytes, int advice) {
    allocate();
    return syscall(SYS_madvise, at, bytes, advice);
}

int pthread_cond_init(pthread_cond_t *condition, const pthread_condattr_t *attributes) {
    allocate();
    memset(condition, 0, sizeof *condition);
    return attributes != NULL;
}

int main(void) {
    for (int i = 0; i < 1000; i++) {
        char *p = malloc(i * 1000 + 1);
        memset(p, 1, i * 1000 + 1);
        free(p);
    }
    struct timespec time;
    if (clock_gettime(CLOCK_MONOTONIC, &time) || !calls) return 1;
    puts("done");
}
