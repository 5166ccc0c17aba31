// Preloaded before the agent: measures how long /proc/self/maps is read. The file that the
// environment variable MAPS_CLOCK names gets two numbers of 64 bits: how often, and nanoseconds
// in all.
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

static uint64_t none[2], *totals = none;
static int watched = -1;
static uint64_t start;

__attribute__((constructor)) static void find_totals(void) {
    const char *path = getenv("MAPS_CLOCK");
    int fd = path ? (int)syscall(SYS_openat, AT_FDCWD, path, O_RDWR) : -1;
    if (fd < 0) return;
    void *at = mmap(NULL, sizeof none, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    if (at != MAP_FAILED) totals = at;
    syscall(SYS_close, fd);
}

static uint64_t now(void) {
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return (uint64_t)time.tv_sec * 1000000000 + (uint64_t)time.tv_nsec;
}

int open(const char *path, int flags, ...) {
    va_list rest;
    va_start(rest, flags);
    int mode = flags & (O_CREAT | O_TMPFILE) ? va_arg(rest, int) : 0;
    va_end(rest);
    int is_maps = !strcmp(path, "/proc/self/maps");
    uint64_t before = is_maps ? now() : 0;
    int fd = (int)syscall(SYS_openat, AT_FDCWD, path, flags, mode);
    if (is_maps && fd >= 0) {
        watched = fd;
        start = before;
    }
    return fd;
}

int close(int fd) {
    int done = (int)syscall(SYS_close, fd);
    if (fd >= 0 && fd == watched) {
        watched = -1;
        totals[0]++;
        totals[1] += now() - start;
    }
    return done;
}
