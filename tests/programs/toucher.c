// Touches memory in ways that are told apart by function. Says "ready", and at a line of input does so,
// prints how many bytes of each function stay resident, and says "done". At a second line it ends.
#define _GNU_SOURCE
#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#define SITE __attribute__((noinline, noclone))
#define MIB (1L << 20)
#ifndef HUGE_MAPPED
#define HUGE_MAPPED (512 * MIB)
#endif
enum { HUGE_BYTES = 2 << 20 };

static void check(int well, const char *what) {
    if (!well) {
        perror(what);
        exit(1);
    }
}

// Reserves memory that the kernel merges with no other mapping, aligned to huge pages.
static char *reserve(long bytes) {
    char *base = mmap(NULL, bytes + 2 * HUGE_BYTES, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    check(base != MAP_FAILED, "mmap");
    return (char *)(((long)base + HUGE_BYTES) & -(long)HUGE_BYTES);
}

static char *map(long bytes, int flags, int fd) {
    char *at = mmap(reserve(bytes), bytes, PROT_READ | PROT_WRITE, flags | MAP_FIXED, fd, 0);
    check(at != MAP_FAILED, "mmap");
    if (fd < 0) madvise(at, bytes, MADV_NOHUGEPAGE);
    return at;
}

static char *anonymous(long bytes) {
    return map(bytes, MAP_PRIVATE | MAP_ANONYMOUS, -1);
}

static void stays(const char *name, long bytes) {
    printf("%s %ld\n", name, bytes);
}

SITE void touch_before(void) {
    memset(anonymous(32 * MIB), 1, 32 * MIB);
}

static char *small;
SITE void touch_small(void) {
    small = anonymous(64 * MIB);
    memset(small, 1, 64 * MIB);
    stays("touch_small", 64 * MIB);
}

// Every second page, backwards.
SITE void touch_sparse(void) {
    char *at = anonymous(64 * MIB);
    long page = sysconf(_SC_PAGESIZE);
    for (long offset = 64 * MIB - page; offset > 0; offset -= 2 * page) at[offset] = 1;
    stays("touch_sparse", 32 * MIB);
}

SITE void touch_huge(void) {
    char *at = anonymous(HUGE_MAPPED);
    check(madvise(at, HUGE_MAPPED, MADV_HUGEPAGE) == 0, "madvise");
    memset(at, 1, HUGE_MAPPED);
    stays("touch_huge", HUGE_MAPPED);
}

SITE void touch_churn(void) {
    for (int round = 0; round < 4; round++) {
        char *at = anonymous(32 * MIB);
        memset(at, 1, 32 * MIB);
        munmap(at, 32 * MIB);
    }
}

SITE void touch_freed(void) {
    char *at = anonymous(32 * MIB);
    memset(at, 1, 32 * MIB);
    check(madvise(at + 8 * MIB, 24 * MIB, MADV_DONTNEED) == 0, "madvise");
    stays("touch_freed", 8 * MIB);
}

// Through the kernel.
SITE void touch_read(void) {
    int zero = open("/dev/zero", O_RDONLY);
    check(read(zero, anonymous(32 * MIB), 32 * MIB) == 32 * MIB, "read");
    close(zero);
    stays("touch_read", 32 * MIB);
}

SITE void touch_file(const char *name) {
    int file = open(name, O_RDWR | O_CREAT | O_EXCL, 0600);
    check(file >= 0 && ftruncate(file, 128 * MIB) == 0, name);
    volatile char *at = map(128 * MIB, MAP_PRIVATE, file);
    for (long offset = 0; offset < 128 * MIB; offset += 4096) (void)at[offset];
    stays("touch_file", 128 * MIB);
}

SITE void touch_shared(void) {
    int file = memfd_create("shared", 0);
    check(file >= 0 && ftruncate(file, 32 * MIB) == 0, "memfd_create");
    memset(map(32 * MIB, MAP_SHARED, file), 1, 32 * MIB);
    stays("touch_shared", 32 * MIB);
}

SITE void touch_populated(void) {
    map(32 * MIB, MAP_PRIVATE | MAP_ANONYMOUS | MAP_POPULATE, -1);
}

SITE void *touch_thread(void *unused) {
    memset(anonymous(32 * MIB), 1, 32 * MIB);
    stays("touch_thread", 32 * MIB);
    return unused;
}

// Writes to pages that a child has, too.
SITE void touch_copies(void) {
    int pipes[2];
    char end;
    check(pipe(pipes) == 0, "pipe");
    pid_t child = fork();
    check(child >= 0, "fork");
    if (!child) {
        close(pipes[1]);
        _exit(read(pipes[0], &end, 1) != 0);
    }
    memset(small, 2, 64 * MIB);
    close(pipes[1]);
    waitpid(child, NULL, 0);
}

int main(int count, char **arguments) {
    check(count == 2, "usage: toucher FILE");
    setlinebuf(stdout);
    touch_before();
    puts("ready");
    if (getchar() == EOF) return 1;
    touch_small();
    touch_sparse();
    touch_huge();
    touch_churn();
    touch_freed();
    touch_read();
    touch_file(arguments[1]);
    touch_shared();
    touch_populated();
    pthread_t thread;
    check(pthread_create(&thread, NULL, touch_thread, NULL) == 0, "pthread_create");
    pthread_join(thread, NULL);
    touch_copies();
    puts("done");
    while (getchar() != EOF) {
    }
    return 0;
}
