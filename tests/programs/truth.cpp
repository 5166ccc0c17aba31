// Allocates at known sites from several threads and keeps the totals: what each site
// has allocated, and what of it is live.
//
// With an argument all of its objects count, else those that it begins with do not.
//
// Talks in lines: prints "ready"; "go OBJECTS THREADS INTERVAL" makes it allocate;
// "free" makes it free all the rest. After each it prints a line per place and "done":
//   site NAME OBJECTS BYTES LIVE_OBJECTS LIVE_BYTES  and the variance that sampling every
//   INTERVAL bytes gives an estimate of each.
#include <atomic>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <malloc.h>
#include <mutex>
#include <new>
#include <stdexcept>
#include <thread>
#include <vector>

namespace {

double interval = 1;

struct Totals {
    const char *name;
    std::atomic<long> objects{0}, bytes{0}, live_objects{0}, live_bytes{0};
    std::atomic<double> spread[4]{};

    // An object of n bytes is sampled with chance p and counts for 1/p: variance (1-p)/p.
    static double spread_of(long n) {
        return interval <= 1 ? 0 : 1 / (1 - std::exp(-double(n) / interval)) - 1;
    }
    void born(long n) {
        double v = spread_of(n);
        objects += 1, bytes += n, live_objects += 1, live_bytes += n;
        spread[0] += v, spread[1] += v * n * n, spread[2] += v, spread[3] += v * n * n;
    }
    void died(long n) {
        double v = spread_of(n);
        live_objects -= 1, live_bytes -= n;
        spread[2] -= v, spread[3] -= v * n * n;
    }
};

enum How { C, Plain, Array, Aligned };

struct Object {
    void *at;
    long bytes;
    Totals *totals;  // null: older than the session
    How how;
};

struct Node {
    char body[64];
};
struct alignas(128) Line {
    char body[384];
};

Totals b_malloc{"site_malloc"}, b_mixed{"site_mixed"}, b_calloc{"site_calloc"},
    b_new{"site_new"}, b_new_array{"site_new_array"}, b_aligned_new{"site_aligned_new"},
    b_posix_memalign{"site_posix_memalign"}, b_memalign{"site_memalign"},
    b_aligned_alloc{"site_aligned_alloc"}, b_realloc{"site_realloc"},
    b_huge{"site_huge"}, b_before_throw{"site_before_throw"}, b_deep{"site_deep"};
Totals *all_totals[] = {&b_malloc,       &b_mixed,         &b_calloc,    &b_new,
                 &b_new_array,    &b_aligned_new,   &b_posix_memalign, &b_memalign,
                 &b_aligned_alloc, &b_realloc,      &b_huge,      &b_before_throw, &b_deep};

#define SITE extern "C" __attribute__((noinline, noclone)) Object

Object made(void *at, long bytes, Totals &totals, How how = C) {
    if (!at) abort();
    memset(at, 1, bytes < 64 ? bytes : 64);
    totals.born(bytes);
    return {at, bytes, &totals, how};
}

}  // namespace

SITE site_malloc() { return made(malloc(48), 48, b_malloc); }
SITE site_mixed(long n) { return made(malloc(n), n, b_mixed); }
SITE site_calloc(long n, long size) { return made(calloc(n, size), n * size, b_calloc); }
SITE site_new() { return made(new Node, sizeof(Node), b_new, Plain); }
SITE site_new_array(long n) { return made(new char[n], n, b_new_array, Array); }
SITE site_aligned_new() {
    Object o = made(new Line, sizeof(Line), b_aligned_new, Aligned);
    if (uintptr_t(o.at) % alignof(Line)) abort();
    return o;
}
SITE site_posix_memalign(long align, long n) {
    void *p = nullptr;
    if (posix_memalign(&p, align, n) || uintptr_t(p) % align) abort();
    return made(p, n, b_posix_memalign);
}
SITE site_memalign(long n) { return made(memalign(256, n), n, b_memalign); }
SITE site_aligned_alloc(long n) { return made(aligned_alloc(64, n), n, b_aligned_alloc); }
SITE site_huge(long n) { return made(malloc(n), n, b_huge); }

// One link of a chain: the old object dies in the totals of its own site.
SITE site_realloc(Object old, long n) {
    void *p = realloc(old.at, n);
    if (!p) abort();
    if (*(char *)p != 1) abort();
    if (old.totals) old.totals->died(old.bytes);
    b_realloc.born(n);
    return {p, n, &b_realloc, C};
}

SITE site_before_throw(long n) { return made(malloc(n), n, b_before_throw); }

extern "C" __attribute__((noinline, noclone)) Object site_deep(int depth, long n) {
    if (depth == 0) return made(malloc(n), n, b_deep);
    Object o = site_deep(depth - 1, n);
    o.how = C;  // no tail call: the frames stay
    return o;
}

namespace {

// Allocates, and leaves by an exception through the frames above it.
__attribute__((noinline)) void thrower(long n, Object *out) {
    *out = site_before_throw(n);
    throw std::runtime_error("through frames");
}

__attribute__((noinline)) void pass_through(long n, Object *out) {
    std::vector<char> held(16);  // so that there is something to unwind
    held[0] = char(n);
    thrower(n, out);
}

Object caught(long n) {
    Object o{};
    try {
        pass_through(n, &o);
    } catch (const std::exception &) {
    }
    return o;
}

void release(const Object &o) {
    if (o.totals) o.totals->died(o.bytes);
    switch (o.how) {
        case C: free(o.at); break;
        case Plain: delete (Node *)o.at; break;
        case Array: delete[] (char *)o.at; break;
        case Aligned: delete (Line *)o.at; break;
    }
}

struct Random {
    uint64_t state;
    uint64_t next() {
        state ^= state << 13, state ^= state >> 7, state ^= state << 17;
        return state;
    }
    long below(long n) { return long(next() % uint64_t(n)); }
};

// Objects that wait for any thread to free them.
std::mutex pool_mutex;
std::vector<Object> pool;

// Keeps an object, and frees another one or two times in three.
void keep(Random &random, Object o) {
    Object victim{};
    {
        std::lock_guard<std::mutex> lock(pool_mutex);
        pool.push_back(o);
        if (random.below(3) == 0) return;
        std::swap(pool[random.below(long(pool.size()))], pool.back());
        victim = pool.back();
        pool.pop_back();
    }
    release(victim);
}

const long mixed[] = {1, 16, 24, 100, 333, 1000, 4097, 9000, 20000};

void chain(Random &random) {
    Object o = site_malloc();
    for (long n = 100; n < 3000; n = n * 5 / 3) o = site_realloc(o, n);
    o = site_realloc(o, 200 + random.below(500));
    keep(random, o);
}

void work(int seed, long rounds) {
    Random random{uint64_t(seed) * 0x9E3779B97F4A7C15ull + 1};
    for (long i = 0; i < rounds; i++) {
        keep(random, site_malloc());
        keep(random, site_mixed(mixed[random.below(9)]));
        keep(random, site_calloc(1 + random.below(20), 24));
        keep(random, site_new());
        keep(random, site_new_array(1 + random.below(2000)));
        keep(random, site_aligned_new());
        keep(random, site_posix_memalign(8l << random.below(10), 100 + random.below(400)));
        keep(random, site_memalign(300));
        keep(random, site_aligned_alloc(64 * (1 + random.below(10))));
        keep(random, caught(500));
        keep(random, site_deep(60, 600));
        if (i % 4 == 0) chain(random);
        if (i % 3000 == 0) keep(random, site_huge((1l << 20) + random.below(7l << 20)));
    }
}

void report() {
    for (Totals *b : all_totals) {
        printf("site %s %ld %ld %ld %ld", b->name, b->objects.load(), b->bytes.load(),
               b->live_objects.load(), b->live_bytes.load());
        for (auto &s : b->spread) printf(" %.17g", s.load());
        printf("\n");
    }
    printf("done\n");
    fflush(stdout);
}

void forget_totals() {
    for (Object &o : pool) o.totals = nullptr;
    for (Totals *b : all_totals) {
        b->objects = b->bytes = b->live_objects = b->live_bytes = 0;
        for (auto &s : b->spread) s = 0;
    }
}

void free_all() {
    for (Object &o : pool) release(o);
    pool.clear();
}

}  // namespace

int main(int count, char **) {
    char line[256];
    if (count == 1) work(99, 500);  // freed while sampled, but never counted
    forget_totals();
    printf("ready\n");
    fflush(stdout);
    while (fgets(line, sizeof line, stdin)) {
        long rounds;
        int threads;
        if (sscanf(line, "go %ld %d %lf", &rounds, &threads, &interval) == 3) {
            std::vector<std::thread> workers;
            for (int i = 0; i < threads; i++) workers.emplace_back(work, i + 1, rounds);
            for (auto &worker : workers) worker.join();
        } else if (!strncmp(line, "free", 4)) {
            free_all();
        } else if (!strncmp(line, "forget", 6)) {
            forget_totals();
        }
        report();
    }
}
