// Calls every entry point of the allocator, checks what each promises, and counts what is allocated where.
//
// Prints "ready"; on a line of input calls each several times; prints a line per place and
// "done". A broken promise is a message and an abort.
#include "expected.h"
#include <cerrno>
#include <cstdint>
#include <cstring>
#include <dlfcn.h>
#include <malloc.h>
#include <new>
#include <string>
#include <unistd.h>

#define CHECK(condition)                                                        \
    do {                                                                        \
        if (!(condition)) {                                                     \
            fprintf(stderr, "%s:%d: not so: %s\n", __FILE__, __LINE__, #condition); \
            abort();                                                            \
        }                                                                       \
    } while (0)

template <class F> F *find(const char *name) {
    void *found = dlsym(RTLD_DEFAULT, name);
    if (!found) fprintf(stderr, "%s is not to be found\n", name);
    CHECK(found);
    return (F *)found;
}

static const int ROUNDS = 20;

static bool aligned(void *p, size_t to) { return uintptr_t(p) % to == 0; }

// Fills an object to its usable end: whoever overlaps it will notice.
static void *filled(void *p, size_t bytes, size_t alignment) {
    CHECK(p && aligned(p, alignment));
    size_t usable = malloc_usable_size(p);
    CHECK(usable >= bytes);
    memset(p, 0x5a, usable);
    return p;
}

// Every other object stays.
static bool stays(int round) { return round % 2 == 0; }

// A place that allocates `bytes` with `expression`, and frees with `release`.
#define PLACE(place, bytes, alignment, expression, release)          \
    TOTALS(place)                                                      \
    extern "C" SITE void *site_##place(int round) {                  \
        void *p = (expression);                                      \
        (void)round;                                                 \
        filled(p, (bytes), (alignment));                             \
        born(&totals_##place, (bytes));                                \
        return p;                                                    \
    }                                                                \
    static void run_##place() {                                      \
        for (int round = 0; round < ROUNDS; round++) {               \
            void *p = site_##place(round);                           \
            if (stays(round)) continue;                              \
            release;                                                 \
            died(&totals_##place, (bytes));                            \
        }                                                            \
    }

static void *posix(size_t alignment, size_t bytes) {
    void *p = nullptr;
    errno = 77;
    CHECK(posix_memalign(&p, alignment, bytes) == 0 && errno == 77);
    return p;
}

static void *zeroed(void *p, size_t bytes) {
    for (size_t i = 0; i < bytes; i++) CHECK(((char *)p)[i] == 0);
    return p;
}

struct alignas(256) Wide {
    char body[768];
};

PLACE(malloc, 1001, 16, malloc(1001), free(p))
PLACE(calloc, 7 * 143, 16, zeroed(calloc(7, 143), 7 * 143), free(p))
PLACE(posix_memalign, 900, 512, posix(512, 900), free(p))
PLACE(aligned_alloc, 1024, 128, aligned_alloc(128, 1024), free(p))
PLACE(memalign, 333, 4096, memalign(4096, 333), free(p))
PLACE(valloc, 500, 4096, valloc(500), free(p))
PLACE(pvalloc, 8192, 4096, pvalloc(5000), free(p))
PLACE(realloc_of_null, 640, 16, realloc(nullptr, 640), free(p))
PLACE(reallocarray, 5 * 99, 16, reallocarray(nullptr, 5, 99), free(p))
PLACE(free_sized, 210, 16, malloc(210), find<void(void *, size_t)>("free_sized")(p, 210))
PLACE(free_aligned_sized, 256, 64, aligned_alloc(64, 256),
      find<void(void *, size_t, size_t)>("free_aligned_sized")(p, 64, 256))
PLACE(cfree, 220, 16, malloc(220), find<void(void *)>("cfree")(p))
PLACE(new, 48, 16, ::operator new(48), ::operator delete(p, size_t(48)))
PLACE(new_array, 96, 16, ::operator new[](96), ::operator delete[](p))
PLACE(new_nothrow, 80, 16, ::operator new(80, std::nothrow), ::operator delete(p, std::nothrow))
PLACE(new_array_nothrow, 88, 16, ::operator new[](88, std::nothrow),
      ::operator delete[](p, std::nothrow))
PLACE(new_aligned, 768, 256, ::operator new(768, std::align_val_t(256)),
      ::operator delete(p, size_t(768), std::align_val_t(256)))
PLACE(new_array_aligned, 512, 128, ::operator new[](512, std::align_val_t(128)),
      ::operator delete[](p, std::align_val_t(128)))
PLACE(new_aligned_nothrow, 192, 64, ::operator new(192, std::align_val_t(64), std::nothrow),
      ::operator delete(p, std::align_val_t(64), std::nothrow))
PLACE(strdup, 12, 16, strdup("hello world"), free(p))

// jemalloc's own names: flags hold log2 of the alignment, and 0x40 for zeroed memory.
static const int ALIGN_64 = 6, ZERO = 0x40;
PLACE(mallocx, 1500, 64, find<void *(size_t, int)>("mallocx")(1500, ALIGN_64),
      find<void(void *, int)>("dallocx")(p, 0))
PLACE(mallocx_zeroed, 700, 16,
      zeroed(find<void *(size_t, int)>("mallocx")(700, ZERO), 700),
      find<void(void *, size_t, int)>("sdallocx")(p, 700, 0))

TOTALS(rallocx)
extern "C" SITE void *site_rallocx(void *p, size_t bytes) {
    void *grown = find<void *(void *, size_t, int)>("rallocx")(p, bytes, 0);
    born(&totals_rallocx, long(bytes));
    return grown;
}

TOTALS(realloc)
extern "C" SITE void *site_realloc(void *p, size_t bytes) {
    void *grown = realloc(p, bytes);
    born(&totals_realloc, long(bytes));
    return grown;
}

// Contents go along, growing and shrinking, and objects of other places die in theirs.
template <class Resize> void run_chain(totals *own, Resize resize) {
    for (int round = 0; round < ROUNDS; round++) {
        char *p = (char *)site_malloc(round);
        size_t old = 1001;
        totals *owner = &totals_malloc;
        memset(p, round, 1001);
        for (size_t bytes : {1100, 5000, 100000, 3000000, 200000, 300, 17}) {
            p = (char *)resize(p, bytes);
            CHECK(p && malloc_usable_size(p) >= bytes);
            for (size_t i = 0; i < (bytes < old ? bytes : old); i += 13) CHECK(p[i] == round);
            memset(p, round, bytes);
            died(owner, long(old));
            owner = own, old = bytes;
        }
        if (stays(round)) continue;
        free(p);
        died(owner, long(old));
    }
}

// What must fail, and how.
static void run_refusals() {
    volatile size_t huge = SIZE_MAX / 2 + 1;
    void *p = (void *)1;
    CHECK(!calloc(huge, 4));
    errno = 0;
    CHECK(!reallocarray(nullptr, huge, 4) && errno == ENOMEM);
    errno = 0;
    CHECK(!malloc(huge) && errno == ENOMEM);
    CHECK(posix_memalign(&p, 3, 100) == EINVAL && p == (void *)1);
    CHECK(posix_memalign(&p, 64, huge) == ENOMEM);
    CHECK(malloc_usable_size(nullptr) == 0);
    free(nullptr);
    // As glibc does: the next power of two.
    volatile size_t odd = 48, none = 0;
    for (size_t alignment : {odd, none}) {
        p = memalign(alignment, 100);
        CHECK(p && uintptr_t(p) % (alignment ? 64 : 16) == 0);
        free(p);
    }
    errno = 0;
    CHECK(!memalign(huge + 1, 100) && errno == EINVAL);
    // Other allocators may leave it as it is.
    bool is_ours = !getenv("MEM_PROFILER_ALLOCATOR");
    errno = 0;
    CHECK(!memalign(64, huge) && (errno == ENOMEM || !is_ours));
    errno = 0;
    CHECK(!valloc(huge) && (errno == ENOMEM || !is_ours));
    errno = 77;
    free(malloc(100));
    CHECK(errno == 77);
    void *empty = malloc(0);
    CHECK(empty);
    free(empty);
    // As glibc and jemalloc do: freed, and nothing in its place.
    p = malloc(5000);
    CHECK(realloc(p, 0) == nullptr);
}

static void run_mallctl() {
    const char *version = nullptr;
    size_t length = sizeof version;
    auto mallctl = find<int(const char *, void *, size_t *, void *, size_t)>("mallctl");
    CHECK(mallctl("version", &version, &length, nullptr, 0) == 0 && version[0] == '5');
    size_t mib[2], depth = 2;
    CHECK(find<int(const char *, size_t *, size_t *)>("mallctlnametomib")("arenas.narenas", mib,
                                                                         &depth) == 0);
    unsigned arenas = 0;
    length = sizeof arenas;
    CHECK(find<int(const size_t *, size_t, void *, size_t *, void *, size_t)>("mallctlbymib")(
              mib, depth, &arenas, &length, nullptr, 0) == 0 &&
          arenas > 0);
    void *p = malloc(640);
    CHECK(find<size_t(const void *, int)>("sallocx")(p, 0) >= 640);
    CHECK(find<size_t(void *, size_t, size_t, int)>("xallocx")(p, 640, 0, 0) >= 640);
    CHECK(find<size_t(size_t, int)>("nallocx")(640, 0) >= 640);
    std::string text;
    auto write = [](void *into, const char *part) { *(std::string *)into += part; };
    find<void(void (*)(void *, const char *), void *, const char *)>("malloc_stats_print")(
        write, &text, "gmdablxe");
    CHECK(text.find("jemalloc") != std::string::npos);
}

static void run(bool jemalloc) {
    run_malloc(), run_calloc(), run_posix_memalign(), run_aligned_alloc(), run_memalign();
    run_valloc(), run_pvalloc(), run_realloc_of_null(), run_reallocarray(), run_free_sized();
    run_free_aligned_sized(), run_cfree(), run_new(), run_new_array(), run_new_nothrow();
    run_new_array_nothrow(), run_new_aligned(), run_new_array_aligned();
    run_new_aligned_nothrow(), run_strdup();
    run_chain(&totals_realloc, site_realloc);
    run_refusals();
    if (!jemalloc) return;
    run_mallocx(), run_mallocx_zeroed();
    run_chain(&totals_rallocx, site_rallocx);
    run_mallctl();
}

int main(int argc, char **) {
    char line[100];
    // Once before, so that what is looked up or loaded on first use is.
    run(argc == 1);
    for (totals *b = all_totals; b; b = b->next)
        b->objects = b->bytes = b->live_objects = b->live_bytes = 0;
    say("ready");
    while (fgets(line, sizeof line, stdin)) {
        run(argc == 1);
        print_expected();
        say("done");
    }
}
