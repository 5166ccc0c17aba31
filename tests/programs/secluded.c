// Keeps objects in memory of many kinds: each is allocated by a function of its own, and nothing but
// that memory points to it.
//
// Talks in lines: "plant" prints "planted". With SECRET, one more object is in secret memory
// (memfd_secret), which nobody else can read.
#define _GNU_SOURCE
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "wipe.h"

#define PLACE __attribute__((noinline, noclone))
#define OBJECT(name, bytes) \
    PLACE void *name(void) { return made(bytes); }

enum { BYTES = 1 << 16 };

static void *made(size_t bytes) {
    void *p = malloc(bytes);
    if (!p) abort();
    memset(p, 0, bytes);
    return p;
}

OBJECT(kept_without_access, 100)
OBJECT(kept_write_only, 110)
OBJECT(kept_wiped, 120)
OBJECT(kept_unforked, 130)
OBJECT(kept_unforked_without_access, 140)
OBJECT(kept_wiped_without_access, 150)
OBJECT(kept_by_object_without_access, 160)
OBJECT(kept_by_wiped_object, 170)
OBJECT(lost_plain, 180)
OBJECT(kept_in_secret, 190)

static void *volatile roots[2];

static void *check(void *at) {
    if (at == MAP_FAILED) {
        perror("mmap");
        exit(1);
    }
    return at;
}

// Puts an object into a mapping of its own, which gets this advice and protection.
static void put(void *(*object)(void), int advice, int access) {
    int flags = MAP_PRIVATE | MAP_ANONYMOUS;
    void **at = check(mmap(NULL, BYTES, PROT_READ | PROT_WRITE, flags, -1, 0));
    at[100] = object();
    if (advice && madvise(at, BYTES, advice)) exit(2);
    if (mprotect(at, BYTES, access)) exit(3);
}

// Puts an object into another one, which a variable points to.
static void put_into_object(void *(*object)(void), int root, int advice, int access) {
    void *holder;
    if (posix_memalign(&holder, BYTES, BYTES)) exit(4);
    ((void **)holder)[100] = object();
    if (advice && madvise(holder, BYTES, advice)) exit(5);
    if (mprotect(holder, BYTES, access)) exit(6);
    roots[root] = holder;
}

#ifdef SECRET
static void put_into_secret(void) {
    int file = syscall(SYS_memfd_secret, 0);
    if (file < 0 || ftruncate(file, BYTES)) exit(7);
    void **at = check(mmap(NULL, BYTES, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0));
    at[100] = kept_in_secret();
}
#endif

PLACE void plant(void) {
    enum { OPEN = PROT_READ | PROT_WRITE };
    put(kept_without_access, 0, PROT_NONE);
    put(kept_write_only, 0, PROT_WRITE);
    put(kept_wiped, MADV_WIPEONFORK, OPEN);
    put(kept_unforked, MADV_DONTFORK, OPEN);
    put(kept_unforked_without_access, MADV_DONTFORK, PROT_NONE);
    put(kept_wiped_without_access, MADV_WIPEONFORK, PROT_NONE);
    put_into_object(kept_by_object_without_access, 0, 0, PROT_NONE);
    put_into_object(kept_by_wiped_object, 1, MADV_WIPEONFORK, OPEN);
    lost_plain();
#ifdef SECRET
    put_into_secret();
#endif
}

int main(void) {
    setvbuf(stdout, NULL, _IOLBF, 0);
    puts("ready");
    char line[256];
    while (fgets(line, sizeof line, stdin)) {
        plant();
        wipe();
        puts("planted");
    }
    return 0;
}
