// What jemalloc promises of objects, to the letter: zero sizes, usable sizes and the memory
// for all of them, resizing in place, the thread's counts, zeroed memory. Aborts where one
// does not hold; "done" at the end.
#define _GNU_SOURCE
#include <dlfcn.h>
#include <malloc.h>
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define CHECK(condition)                                                        \
    do {                                                                        \
        if (!(condition)) {                                                     \
            fprintf(stderr, "%s:%d: not so: %s\n", __FILE__, __LINE__, #condition); \
            abort();                                                            \
        }                                                                       \
    } while (0)

static void *(*mallocx)(size_t, int), *(*rallocx)(void *, size_t, int);
static void (*dallocx)(void *, int);
static size_t (*xallocx)(void *, size_t, size_t, int), (*sallocx)(const void *, int);
static size_t (*nallocx)(size_t, int);
static int (*mallctl)(const char *, void *, size_t *, void *, size_t);

static void find(void *into, const char *name) {
    void *found = dlsym(RTLD_DEFAULT, name);
    CHECK(found);
    memcpy(into, &found, sizeof found);
}

enum { ZERO = 0x40 };

static void *volatile hidden;

static size_t size_of(void *p) {
    size_t usable = malloc_usable_size(p);
    CHECK(sallocx(p, 0) == usable);
    return usable;
}

// ---- nothing asked for

static void *zero_posix(size_t align) {
    void *p = NULL;
    CHECK(posix_memalign(&p, align, 0) == 0);
    return p;
}

static void zero_sizes(void) {
    enum { KINDS = 9, EACH = 40 };
    uint64_t *objects[KINDS * EACH];
    int count = 0;
    // new(0) calls the same as malloc(0) does, but by another entry point.
    void *(*operator_new)(size_t) = NULL;
    hidden = dlopen("libstdc++.so.6", RTLD_NOW);
    CHECK(hidden);
    void *found = dlsym(hidden, "_Znwm");
    CHECK(found);
    memcpy(&operator_new, &found, sizeof found);
    for (int i = 0; i < EACH; i++) {
        objects[count++] = malloc(0);
        objects[count++] = calloc(0, 7);
        objects[count++] = calloc(7, 0);
        objects[count++] = realloc(NULL, 0);
        objects[count++] = aligned_alloc(16, 0);
        objects[count++] = memalign(64, 0);
        objects[count++] = zero_posix(8);
        objects[count++] = operator_new(0);
        void *p = reallocarray(NULL, 0, 10);
        objects[count++] = p;
    }
    for (int i = 0; i < count; i++) {
        CHECK(objects[i] && size_of(objects[i]) >= 8);
        *objects[i] = 0x1234567890abcdef ^ i;
    }
    for (int i = 0; i < count; i++) CHECK(*objects[i] == (0x1234567890abcdef ^ i));
    for (int i = 0; i < count; i += 2) free(objects[i]);
    for (int i = 1; i < count; i += 2) CHECK(*objects[i] == (0x1234567890abcdef ^ i));
    for (int i = 1; i < count; i += 2) free(objects[i]);
}

// ---- sizes

// Keeps an object in place of the third last one, of which all is there, and nobody else's.
static void keep(void *p) {
    static unsigned char *kept[3];
    static size_t of[3];
    static int next;
    if (kept[next]) {
        for (size_t i = 0; i < of[next]; i += of[next] / 50 + 1)
            CHECK(kept[next][i] == (unsigned char)of[next]);
        CHECK(kept[next][of[next] - 1] == (unsigned char)of[next]);
        free(kept[next]);
    }
    of[next] = p ? size_of(p) : 0;
    kept[next] = p ? memset(p, (int)of[next], of[next]) : NULL;
    next = (next + 1) % 3;
}

// Before the program has asked for a class: what is usable is there, and nobody else's.
static void plain_sizes(void) {
    for (size_t bytes = 1; bytes < 3000000; bytes += bytes / 37 + 1)
        for (int way = 0; way < 6; way++) {
            size_t align = way == 4 ? 64 : way == 5 ? 4096 : 8;
            void *p = way < 2 ? malloc(bytes) : way == 2 ? calloc(1, bytes) : memalign(align, bytes);
            if (way == 1) {
                memset(p, 9, bytes);
                size_t more = bytes + bytes / 50 + 1;
                p = realloc(p, more);
                CHECK(p && size_of(p) >= more);
                for (size_t i = 0; i < bytes; i += bytes / 50 + 1)
                    CHECK(((unsigned char *)p)[i] == 9);
            }
            CHECK(p && (uintptr_t)p % align == 0 && size_of(p) >= bytes);
            keep(p);
        }
    for (int i = 0; i < 3; i++) keep(NULL);
}

// Afterwards every object has all of its class.
static void asked_sizes(void) {
    for (size_t bytes = 1; bytes < 3000000; bytes += bytes / 37 + 1) {
        size_t class = nallocx(bytes, 0);
        void *p = malloc(bytes);
        CHECK(p && size_of(p) == class);
        p = realloc(memset(p, 1, class), class);
        CHECK(p && size_of(p) == class);
        free(p);
    }
}

static void sizes(void) {
    for (size_t bytes = 1; bytes < 3000000; bytes += bytes / 37 + 1)
        for (int align = 0; align <= 13; align++) {
            unsigned char *p = mallocx(bytes, align);
            CHECK(p && (uintptr_t)p % (1 << align) == 0);
            CHECK(size_of(p) == nallocx(bytes, align));
            keep(p);
            if (align > 4 && bytes > 100000) break;
        }
    for (int i = 0; i < 3; i++) keep(NULL);
}

// ---- in place

static void in_place(void) {
    char *p = mallocx(100, 0);
    CHECK(xallocx(p, 112, 0, 0) == 112 && xallocx(p, 1, 0, 0) == 112);
    CHECK(xallocx(p, 5000, 100000, 0) == 112 && xallocx(p, 1, SIZE_MAX - 1, 0) == 112);
    dallocx(p, 0);

    p = mallocx(1 << 20, 0);
    memset(p, 1, 1 << 20);
    CHECK(xallocx(p, 1 << 20, 0, 0) == 1 << 20);
    CHECK(xallocx(p, 100, 0, 0) == 1 << 20);
    size_t middle = nallocx(300000, 0), least = nallocx(100100, 0);
    CHECK(xallocx(p, 300000, 0, 0) == middle && size_of(p) == middle);
    CHECK(xallocx(p, 200000, 200000, 0) >= middle && size_of(p) <= nallocx(400000, 0));
    CHECK(xallocx(p, 100, 100000, 0) == least && size_of(p) == least);
    memset(p, 2, least);
    // Whether there is room is chance; what is new is zeroed, what was there stays.
    size_t grown = xallocx(p, 400000, 400000, ZERO);
    CHECK(grown == size_of(p) && grown >= least && grown <= nallocx(800000, 0));
    for (size_t i = 0; i < grown; i++) CHECK(p[i] == (i < least ? 2 : 0));
    CHECK(xallocx(p, SIZE_MAX / 2 + 1, 0, 0) == grown && xallocx(p, 1, 0, 20) == grown);
    memset(p, 3, grown);
    dallocx(p, 0);

    // Within its class an object is not moved, unless a sample begins or ends with it; all
    // of its bytes go along either way.
    for (int round = 0; round < 300; round++) {
        p = mallocx(3100, 0);
        memset(p, 5, size_of(p));
        for (size_t bytes = 3101; bytes < 9000; bytes += 97) {
            size_t old = size_of(p);
            p = rallocx(p, bytes, ZERO);
            CHECK(size_of(p) == nallocx(bytes, 0));
            for (size_t i = 0; i < size_of(p); i++) CHECK(p[i] == (i < old ? 5 : 0));
            memset(p, 5, size_of(p));
        }
        dallocx(p, 0);
    }
}

// ---- the thread's counts

static void *counts(void *unused) {
    uint64_t *allocated, *deallocated;
    size_t size = sizeof allocated;
    CHECK(mallctl("thread.allocatedp", &allocated, &size, NULL, 0) == 0);
    CHECK(mallctl("thread.deallocatedp", &deallocated, &size, NULL, 0) == 0);
    // From a first object on the thread has all it needs.
    free(malloc(1));
    for (int round = 0; round < 30; round++)
        for (size_t bytes = 1; bytes < 300000; bytes += bytes / 3 + 1)
            for (int align = 0; align < 8; align++) {
                uint64_t a = *allocated, d = *deallocated;
                void *p = mallocx(bytes, align);
                CHECK(*allocated - a == size_of(p) && *deallocated == d);
                size_t usable = size_of(p);
                dallocx(p, 0);
                CHECK(*deallocated - d == usable && *allocated - a == usable);
            }
    return unused;
}

// ---- zeroed memory

static void zeroed(void) {
    for (int round = 0; round < 20; round++)
        for (size_t bytes = 10; bytes < 5000000; bytes *= 3) {
            int align = round % 5 * 4;
            char *p = round % 2 ? mallocx(bytes, ZERO | align) : calloc(1, bytes);
            size_t usable = round % 2 ? size_of(p) : bytes;
            for (size_t i = 0; i < usable; i++) CHECK(p[i] == 0);
            memset(p, 0x77, usable);
            free(p);
        }
}

int main(void) {
    find(&mallocx, "mallocx"), find(&rallocx, "rallocx"), find(&dallocx, "dallocx");
    find(&xallocx, "xallocx"), find(&sallocx, "sallocx"), find(&nallocx, "nallocx");
    find(&mallctl, "mallctl");
    zero_sizes();
    plain_sizes();
    asked_sizes();
    sizes();
    in_place();
    zeroed();
    counts(NULL);
    pthread_t thread;
    CHECK(pthread_create(&thread, NULL, counts, NULL) == 0);
    CHECK(pthread_join(thread, NULL) == 0);
    puts("done");
}
