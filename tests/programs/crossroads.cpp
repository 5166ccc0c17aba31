// Allocates at as many stacks as wanted, loses objects, and computes: for pages of large profiles,
// of CPU time and of lost objects.
//
// Talks in lines: prints "ready"; "go N" allocates one object at each of N further stacks, of 3^12;
// "lose N" allocates N objects and forgets them; "burn N" computes for N seconds of CPU time. After
// each it prints "done".
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <ctime>
#include <vector>

static std::vector<void *> kept;

template <int Depth> struct Road {
    __attribute__((noinline)) static void left(unsigned way);
    __attribute__((noinline)) static void middle(unsigned way);
    __attribute__((noinline)) static void right(unsigned way);
};

// The empty statements of assembly keep calls from becoming jumps.
template <int Depth> static void go_on(unsigned way) {
    if constexpr (Depth == 0)
        kept.push_back(memset(malloc(64), 1, 64));
    else if (way % 3 == 0)
        Road<Depth - 1>::left(way / 3);
    else if (way % 3 == 1)
        Road<Depth - 1>::middle(way / 3);
    else
        Road<Depth - 1>::right(way / 3);
    asm volatile("");
}
template <int Depth> void Road<Depth>::left(unsigned way) {
    go_on<Depth>(way);
    asm volatile("");
}
template <int Depth> void Road<Depth>::middle(unsigned way) {
    go_on<Depth>(way);
    asm volatile("# the middle");
}
template <int Depth> void Road<Depth>::right(unsigned way) {
    go_on<Depth>(way);
    asm volatile("# the right");
}

__attribute__((noinline)) static void lose(unsigned objects) {
    for (unsigned i = 0; i < objects; i++) {
        void *volatile lost = memset(malloc(300), 2, 300);
        lost = nullptr;
    }
}

__attribute__((noinline)) static unsigned long burn(unsigned seconds) {
    unsigned long sum = 0;
    for (clock_t end = clock() + seconds * CLOCKS_PER_SEC; clock() < end;)
        for (unsigned long n = 1; n < 100000; n++)
            sum += n % 7;
    return sum;
}

int main() {
    setvbuf(stdout, nullptr, _IOLBF, 0);
    puts("ready");
    char verb[16];
    unsigned amount, way = 0;
    volatile unsigned long sum = 0;
    while (scanf("%15s %u", verb, &amount) == 2) {
        if (!strcmp(verb, "go")) {
            for (unsigned i = 0; i < amount; i++)
                go_on<12>(way++);
        } else if (!strcmp(verb, "lose")) {
            lose(amount);
        } else {
            sum = sum + burn(amount);
        }
        puts("done");
    }
}
