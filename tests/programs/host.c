// Loads libraries in every way there is, and lets objects cross between it and them:
// `host GUEST`. Says what came of it; what is wrong ends it.
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <malloc.h>
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

extern void *early;
extern void *__libc_malloc(size_t), *__libc_calloc(size_t, size_t);
extern void *__libc_realloc(void *, size_t), *__libc_memalign(size_t, size_t);
extern void *__libc_valloc(size_t), *__libc_pvalloc(size_t);
extern void __libc_free(void *);

typedef void *make(size_t);
typedef void release(void *);
typedef void *resize(void *, size_t);
typedef char *copy(const char *);
typedef void *opener(const char *);

static void *symbol(void *handle, const char *name) {
    void *found = dlsym(handle, name);
    if (!found) printf("%s: %s\n", name, dlerror());
    CHECK(found);
    return found;
}

static const size_t SIZES[] = {0, 1, 24, 100, 1000, 20000, 300000, 5000000};

// Objects of either side, given back by the other.
static void cross(void *guest) {
    make *guest_make = symbol(guest, "guest_make");
    release *guest_free = symbol(guest, "guest_free");
    resize *guest_resize = symbol(guest, "guest_resize");
    copy *guest_copy = symbol(guest, "guest_copy");
    for (int round = 0; round < 50; round++)
        for (int i = 0; i < 8; i++) {
            size_t bytes = SIZES[i];
            guest_free(memset(malloc(bytes), 1, bytes));
            free(guest_make(bytes));
            char *p = guest_resize(memset(malloc(bytes), 2, bytes), bytes * 2 + 9);
            CHECK(!bytes || (p[0] == 2 && p[bytes - 1] == 2));
            p = realloc(p, bytes + 1);
            guest_free(p);
            free(guest_copy("some text"));
            guest_free(aligned_alloc(64, 640));
        }
}

// The C library's functions by its handle, and by its own names.
static void bypass(void) {
    void *libc = dlopen("libc.so.6", RTLD_NOW | RTLD_NOLOAD);
    CHECK(libc);
    release *libc_free = symbol(libc, "free"), *own_free = symbol(libc, "__libc_free");
    make *libc_malloc = symbol(libc, "malloc");
    resize *libc_realloc = symbol(libc, "realloc");
    size_t (*usable)(void *) = (size_t(*)(void *))symbol(libc, "malloc_usable_size");
    for (int round = 0; round < 50; round++) {
        libc_free(strdup("a text of the C library's"));
        own_free(malloc(50));
        free(libc_malloc(300));
        free(libc_realloc(malloc(10), 4000));
        free(libc_realloc(NULL, 40));
        void *p = malloc(100);
        CHECK(usable(p) >= 100 && usable(p) < 400);
        libc_free(p);
        free(__libc_malloc(1000));
        free(__libc_calloc(10, 100));
        free(__libc_memalign(64, 100));
        free(__libc_valloc(10));
        free(__libc_pvalloc(10));
        __libc_free(__libc_realloc(malloc(100), 2000));
        __libc_free(calloc(1, 100));
        __libc_free(aligned_alloc(128, 256));
    }
    CHECK(symbol(libc, "free") == (void *)free);
    dlclose(libc);
}

static void say_error(const char *what, void *result) {
    const char *error = dlerror();
    printf("%s: %s, %s\n", what, result ? "there" : "null", error ? error : "no error");
}

int main(int argc, char **arguments) {
    CHECK(argc == 2 && early);
    errno = 77;
    void *guest = dlopen(arguments[1], RTLD_NOW | RTLD_DEEPBIND);
    printf("errno %d\n", errno);
    CHECK(guest);
    cross(guest);
    cross(early);
    // Only the guest's RUNPATH leads there.
    say_error("by the program", dlopen("libhidden.so", RTLD_NOW | RTLD_DEEPBIND));
    void *hidden = ((opener *)symbol(guest, "guest_open"))("libhidden.so");
    say_error("by the guest", hidden);
    CHECK(hidden);
    cross(hidden);
    void *self = dlopen(NULL, RTLD_NOW | RTLD_DEEPBIND);
    say_error("the program itself", self);
    CHECK(dlsym(self, "malloc") == (void *)malloc);
    void *apart = dlmopen(LM_ID_NEWLM, arguments[1], RTLD_NOW);
    say_error("a namespace of its own", apart);
    CHECK(apart && apart != guest);
    // It has its own C library: what it makes, it frees.
    ((release *)symbol(apart, "guest_free"))(((make *)symbol(apart, "guest_make"))(100));
    void *base = dlmopen(LM_ID_BASE, arguments[1], RTLD_NOW | RTLD_DEEPBIND);
    say_error("the program's namespace", base);
    CHECK(base == guest);
    say_error("no such file", dlopen("/no/such/file.so", RTLD_NOW | RTLD_DEEPBIND));
    say_error("bad flags", dlopen(arguments[1], RTLD_DEEPBIND));
    say_error("no such name", dlsym(guest, "no_such_name"));
    say_error("no such next", dlsym(RTLD_NEXT, "no_such_name"));
    CHECK(dlsym(RTLD_DEFAULT, "malloc") == (void *)malloc);
    CHECK(dlsym(guest, "guest_free") != dlsym(apart, "guest_free"));
    bypass();
    dlclose(apart), dlclose(guest), dlclose(base), dlclose(hidden);
    puts("done");
}
