// Pairs of malloc and free on a given number of stacks of 25 frames, of which nearly all differ
// from those of the pair before. Compiled without frame pointers.
//
//   changing STACKS PAIRS
//
// Two functions at each depth, with frames of different sizes; which of them is called follows
// from a bit of the stack's number. Two stacks alternate; of more, one is chosen at random.
#include <cstdint>
#include <cstdlib>

static uint64_t stack;

template <int DEPTH, int WIDTH> __attribute__((noinline)) long call(long value);

template <int DEPTH> struct Inwards {
    static long go(long value) {
        bool second = stack >> DEPTH % 14 & 1;
        return second ? call<DEPTH - 1, 2>(value) : call<DEPTH - 1, 1>(value);
    }
};

template <> struct Inwards<0> {
    static long go(long value) {
        void *object = malloc(40 + (value & 15));
        asm volatile("" ::"r"(object) : "memory");
        free(object);
        return value;
    }
};

template <int DEPTH, int WIDTH> __attribute__((noinline)) long call(long value) {
    volatile long frame[1 + WIDTH];
    frame[0] = value;
    frame[WIDTH] = Inwards<DEPTH>::go(value + WIDTH + DEPTH);
    return frame[0] + frame[WIDTH]; // not a tail call
}

int main(int argc, char **argv) {
    if (argc != 3) return 2;
    long stacks = atol(argv[1]), pairs = atol(argv[2]), sum = 0;
    if (stacks < 2 || stacks > 1 << 14) return 2;
    uint64_t state = 88172645463325252u;
    for (long i = 0; i < pairs; i++) {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        stack = stacks > 2 ? (state >> 20) % stacks : i & 1 ? UINT64_MAX : 0;
        sum += call<20, 1>(i);
    }
    return sum == 42;
}
