// Threads that allocate, free, resize, align and hand objects to each other, checking that
// no object's content changes, and that keep the totals of each site.
//
//   stress THREADS
//
// Lines: "run" lets the threads go, "park" holds them, "checked N" lets each do N rounds
// with empty totals and then prints "site NAME OBJECTS BYTES LIVE_OBJECTS LIVE_BYTES" for
// each site. Each answers "ok". Objects made before the totals were emptied are in none.
#include <atomic>
#include <climits>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <malloc.h>
#include <thread>

#define SITE extern "C" __attribute__((noinline, noclone)) void *

namespace {

struct Totals {
    const char *name;
    std::atomic<long> objects{0}, bytes{0}, live_objects{0}, live_bytes{0};
};

enum Place { Malloc, Calloc, Realloc, Aligned, New, Places };
Totals all_totals[Places] = {{"site_malloc"}, {"site_calloc"}, {"site_realloc"}, {"site_aligned"}, {"site_new"}};
std::atomic<unsigned> period{1};

// What is kept of an object, outside of it.
struct Object {
    unsigned char *at = nullptr;
    uint32_t bytes = 0;
    uint16_t place = 0;
    unsigned period = 0;
    unsigned char mark = 0;
};

struct Random {
    uint64_t state;
    uint32_t operator()(uint32_t below) {
        state = state * 6364136223846793005ull + 1442695040888963407ull;
        return uint32_t((state >> 33) % below);
    }
};

[[noreturn]] void broken(const char *what) {
    fprintf(stderr, "stress: %s\n", what);
    abort();
}

}  // namespace

SITE site_malloc(size_t n) {
    void *p = malloc(n);
    asm volatile("" : "+r"(p));
    return p;
}
SITE site_calloc(size_t n) {
    void *p = calloc(1, n);
    asm volatile("" : "+r"(p));
    return p;
}
SITE site_realloc(void *old, size_t n) {
    void *p = realloc(old, n);
    asm volatile("" : "+r"(p));
    return p;
}
SITE site_aligned(size_t alignment, size_t n) {
    void *p = memalign(alignment, n);
    asm volatile("" : "+r"(p));
    return p;
}
SITE site_new(size_t n) {
    void *p = operator new(n);
    asm volatile("" : "+r"(p));
    return p;
}

namespace {

uint32_t some_size(Random &random) {
    switch (random(20)) {
    case 0: return 1;
    case 1: return 4096 + random(60000);
    case 2: return 100000 + random(200000);
    default: return 1 + random(700);
    }
}

// Marks the object from one end to the other, sparsely.
Object made(void *at, uint32_t bytes, Place place, Random &random) {
    if (!at) broken("no memory");
    Object object{static_cast<unsigned char *>(at), bytes, uint16_t(place), period, (unsigned char)random(256)};
    object.at[0] = object.at[bytes - 1] = object.at[bytes / 2] = object.mark;
    if (malloc_usable_size(at) < bytes) broken("a usable size below the one asked for");
    Totals &own = all_totals[place];
    own.objects += 1, own.bytes += bytes, own.live_objects += 1, own.live_bytes += bytes;
    return object;
}

void check(const Object &o) {
    if (o.at[0] != o.mark || o.at[o.bytes - 1] != o.mark || o.at[o.bytes / 2] != o.mark)
        broken("an object's content has changed");
}

void died(const Object &o) {
    if (o.period != period) return;
    all_totals[o.place].live_objects -= 1, all_totals[o.place].live_bytes -= o.bytes;
}

void release(const Object &o) {
    if (!o.at) return;
    check(o);
    died(o);
    if (o.place == New) operator delete(o.at);
    else free(o.at);
}

Object make(Random &random) {
    uint32_t n = some_size(random);
    switch (random(4)) {
    case 0: return made(site_malloc(n), n, Malloc, random);
    case 1: {
        auto *p = static_cast<unsigned char *>(site_calloc(n));
        if (p && (p[0] | p[n - 1] | p[n / 2])) broken("calloc gave memory that is not zero");
        return made(p, n, Calloc, random);
    }
    case 2: {
        size_t alignment = size_t(16) << random(9);
        void *p = site_aligned(alignment, n);
        if (reinterpret_cast<uintptr_t>(p) % alignment) broken("a wrong alignment");
        return made(p, n, Aligned, random);
    }
    default: return made(site_new(n), n, New, random);
    }
}

Object resize(Object o, Random &random) {
    if (!o.at || o.place == New) return o;
    check(o);
    uint32_t n = some_size(random);
    void *p = site_realloc(o.at, n);
    if (!p || *static_cast<unsigned char *>(p) != o.mark) broken("realloc lost what was there");
    died(o);
    return made(p, n, Realloc, random);
}

// Where threads leave objects for each other.
struct Slot {
    std::atomic_flag busy = ATOMIC_FLAG_INIT;
    Object object;
};
Slot slots[512];

Object exchange(Object object, Random &random) {
    Slot &slot = slots[random(512)];
    if (slot.busy.test_and_set(std::memory_order_acquire)) return object;
    std::swap(object, slot.object);
    slot.busy.clear(std::memory_order_release);
    return object;
}

std::atomic<long> allowed{0};  // rounds a thread may do in this turn
std::atomic<unsigned> turn{0}, parked{0};
std::atomic<bool> stop{false};
unsigned threads;

void work(unsigned number) {
    Random random{number * 0x9E3779B97F4A7C15ull + 1};
    static constexpr int kept_objects = 200;
    static thread_local Object kept[kept_objects];
    for (unsigned seen = 0;;) {
        parked += 1;
        parked.notify_all();
        turn.wait(seen);
        seen = turn;
        for (long rounds = allowed; rounds > 0 && !stop; rounds--) {
            Object &object = kept[random(kept_objects)];
            switch (random(4)) {
            case 0: object = resize(object, random); break;
            case 1: object = exchange(object, random); break;
            default: release(object); object = make(random);
            }
        }
    }
}

void wait_until_parked() {
    for (unsigned now; (now = parked) != threads;) parked.wait(now);
}

void go(long rounds) {
    stop = false;
    allowed = rounds;
    parked = 0;
    turn += 1;
    turn.notify_all();
}

void clear_totals() {
    period += 1;
    for (Totals &t : all_totals) t.objects = t.bytes = t.live_objects = t.live_bytes = 0;
}

void print_expected() {
    for (Totals &b : all_totals)
        printf("site %s %ld %ld %ld %ld\n", b.name, b.objects.load(), b.bytes.load(),
               b.live_objects.load(), b.live_bytes.load());
}

}  // namespace

int main(int, char **arguments) {
    threads = unsigned(atoi(arguments[1]));
    for (unsigned i = 0; i < threads; i++) std::thread(work, i).detach();
    wait_until_parked();
    static char line[64];
    puts("ready");
    fflush(stdout);
    while (fgets(line, sizeof line, stdin)) {
        long n;
        if (!strcmp(line, "run\n")) {
            go(LONG_MAX);
        } else if (!strcmp(line, "park\n")) {
            stop = true;
            wait_until_parked();
        } else if (sscanf(line, "checked %ld", &n) == 1) {
            clear_totals();
            go(n);
            wait_until_parked();
            print_expected();
        } else {
            broken("a line that it does not know");
        }
        puts("ok");
        fflush(stdout);
    }
    _Exit(0);
}
