// Leaves known bytes live at known places, then says how much and where.
//
//   accuracy SEED
//
// Prints `site NAME START END BYTES SQUARES`: the code of the place, the bytes that it
// has live, and the sum of n²(1-p)/p over its objects for samples every 1024 bytes, which
// is the variance that Poisson sampling gives an estimate of BYTES. Then it ends at once,
// and all of it is still live.
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <vector>

// A section for each place: the linker knows where it begins and ends.
#define PLACE(name)                                                          \
    extern "C" const char __start_##name[], __stop_##name[];                 \
    static Site s_##name{#name, __start_##name, __stop_##name};              \
    __attribute__((section(#name), noinline, noclone)) static void name()

namespace {

uint64_t state;

long between(long low, long high) {
    state ^= state << 13;
    state ^= state >> 7;
    state ^= state << 17;
    return low + long((state >> 11) % uint64_t(high - low + 1));
}

struct Site;
std::vector<Site *> sites;

struct Site {
    const char *name, *start, *stop;
    double bytes = 0, squares = 0;

    Site(const char *name, const char *start, const char *stop)
        : name(name), start(start), stop(stop) {
        sites.push_back(this);
    }
    void lives(void *at, long n) {
        if (!at) abort();
        *(volatile char *)at = 1;
        double p = -std::expm1(-double(n) / 1024);
        bytes += double(n);
        squares += double(n) * double(n) * (1 - p) / p;
    }
};

PLACE(small) {
    for (int i = 0; i < 60000; i++) s_small.lives(malloc(48), 48);
}

PLACE(mixed) {
    for (int i = 0; i < 3000; i++) {
        long n = between(0, 3) ? between(16, 200) : between(500, 8000);
        s_mixed.lives(malloc(n), n);
    }
}

// Sizes just above a size class: what is asked for and what is given differ most.
PLACE(uneven) {
    for (int i = 0; i < 9000; i++) s_uneven.lives(malloc(513), 513);
}

PLACE(zeroed) {
    for (int i = 0; i < 8000; i++) {
        long n = between(1, 20) * 24;
        s_zeroed.lives(calloc(n / 24, 24), n);
    }
}

// Most of what is allocated here is freed again.
PLACE(churn) {
    std::vector<void *> kept(20000);
    std::vector<long> sizes(kept.size());
    for (int i = 0; i < 200000; i++) {
        size_t slot = size_t(between(0, long(kept.size()) - 1));
        free(kept[slot]);
        sizes[slot] = between(16, 240);
        kept[slot] = malloc(sizes[slot]);
        if (!kept[slot]) abort();
    }
    for (size_t i = 0; i < kept.size(); i++)
        if (kept[i]) s_churn.lives(kept[i], sizes[i]);
}

// Chains of reallocation that grow and shrink; the last link lives.
PLACE(chains) {
    for (int i = 0; i < 5000; i++) {
        long n = between(8, 64);
        void *p = malloc(n);
        for (int link = int(between(1, 12)); link > 0 && p; link--) {
            n = between(0, 4) ? n + n / 2 + 1 : n / 2 + 1;
            p = realloc(p, n);
        }
        s_chains.lives(p, n);
    }
}

PLACE(aligned) {
    static const long aligns[] = {32, 64, 256, 4096};
    for (int i = 0; i < 6000; i++) {
        long align = aligns[i % 4], n = between(100, 1000);
        void *p = nullptr;
        if (posix_memalign(&p, size_t(align), n) || uintptr_t(p) % align) abort();
        s_aligned.lives(p, n);
    }
}

PLACE(huge) {
    for (int i = 0; i < 4; i++) {
        long n = between(1 << 20, 3 << 20);
        s_huge.lives(malloc(n), n);
    }
}

// Few objects of about the interval: most of the variance a place can have.
PLACE(coarse) {
    for (int i = 0; i < 1200; i++) {
        long n = between(700, 1400);
        s_coarse.lives(malloc(n), n);
    }
}

PLACE(arrays) {
    for (int i = 0; i < 5000; i++) {
        long n = between(1, 300) * 4;
        s_arrays.lives(new int[n / 4], n);
    }
}

}  // namespace

int main(int argc, char **argv) {
    if (argc != 2) return 2;
    state = 88172645463325252u + uint64_t(atol(argv[1])) * 0x9E3779B97F4A7C15u;
    void (*places[])() = {small, mixed, uneven, zeroed, churn, chains, aligned, huge, coarse,
                          arrays};
    for (auto place : places) place();
    for (Site *site : sites)
        printf("site %s %lx %lx %.0f %.0f\n", site->name, long(site->start), long(site->stop),
               site->bytes, site->squares);
    fflush(stdout);
    _Exit(0);
}
