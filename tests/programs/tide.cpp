// Allocates for each line on its input: objects that die at once; others that do so and share
// their size and call site with objects that stay; objects that a ring keeps. Prints what each function has allocated and what is live of it:
//   site NAME OBJECTS BYTES LIVE_OBJECTS LIVE_BYTES
#include <cstdio>
#include <cstdlib>
#include <cstring>

static void *volatile sink;
static void *ring[4096];

// The call site that two of them share.
__attribute__((noinline)) static void *allocate(size_t bytes) {
    void *at = std::malloc(bytes);
    if (!at) std::abort();
    sink = at;
    return at;
}

extern "C" __attribute__((noinline)) void site_churn() {
    std::free(allocate(64));
    asm volatile("");
}

extern "C" __attribute__((noinline)) void site_leak() {
    allocate(64);
    asm volatile("");
}

extern "C" __attribute__((noinline)) void site_foam() {
    std::free(allocate(48));
    asm volatile("");
}

extern "C" __attribute__((noinline)) void site_ring(int i) {
    void *&place = ring[i % 4096];
    std::free(place);
    place = std::malloc(256);
    asm volatile("");
}

int main() {
    char line[64];
    std::puts("ready");
    std::fflush(stdout);
    const long rounds = 2000000, leaks = rounds / 40, turns = rounds / 10;
    while (std::fgets(line, sizeof line, stdin)) {
        for (long i = 0; i < rounds; i++) {
            site_churn();
            site_foam();
            if (i % 40 == 0) site_leak();
            if (i % 10 == 0) site_ring(int(i / 10));
        }
        std::printf("site site_churn %ld %ld 0 0\n", rounds, rounds * 64);
        std::printf("site site_foam %ld %ld 0 0\n", rounds, rounds * 48);
        std::printf("site site_leak %ld %ld %ld %ld\n", leaks, leaks * 64, leaks, leaks * 64);
        std::printf("site site_ring %ld %ld 4096 %d\n", turns, turns * 256, 4096 * 256);
        std::puts("done");
        std::fflush(stdout);
    }
}
