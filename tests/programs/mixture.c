// Calls eight functions that do the same work, each for so many of 100 calls, in an order by
// chance, from two callers by turns of chance: "FUNCTION CALLS" and "CALLER CALLS" at the end.
// A call is short against the time between samples, so that which function a sample meets is a
// matter of chance, again each time.
//
// mixture SECONDS: after a line of input, for so much CPU time.

#include <stdio.h>
#include <stdlib.h>
#include <time.h>

static volatile unsigned sink;

#define PART(name)                                                                                 \
    void __attribute__((noinline, noclone)) part_##name(void) {                                    \
        unsigned x = sink;                                                                         \
        for (int i = 0; i < 2000; i++)                                                             \
            x = x * 1664525 + 1013904223;                                                          \
        sink = x;                                                                                  \
        asm volatile("" ::: "memory");                                                             \
    }
PART(a) PART(b) PART(c) PART(d) PART(e) PART(f) PART(g) PART(h)

static void (*const parts[])(void) = {part_a, part_b, part_c, part_d,
                                      part_e, part_f, part_g, part_h};
static const int shares[] = {35, 25, 15, 10, 6, 4, 3, 2};
static long calls[8], called[2];

// Frames of several sizes, none with a frame pointer. What follows the call keeps them there.
#define CALLER(name, bytes)                                                                        \
    void __attribute__((noinline, noclone)) by_##name(int part) {                                  \
        volatile char room[bytes];                                                                 \
        room[part] = 1;                                                                            \
        parts[part]();                                                                             \
        sink += room[part];                                                                        \
    }
CALLER(one, 100)
CALLER(two, 1000)

static unsigned long state = 88172645463325252;

static unsigned next(unsigned below) {
    state ^= state << 13;
    state ^= state >> 7;
    state ^= state << 17;
    return (state >> 32) * below >> 32;
}

static double used(void) {
    struct timespec time;
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &time);
    return time.tv_sec + 1e-9 * time.tv_nsec;
}

int main(int count, char **arguments) {
    puts("ready");
    fflush(stdout);
    getchar();
    double end = used() + atof(count > 1 ? arguments[1] : "1");
    while (used() < end) {
        for (int i = 0; i < 1000; i++) {
            int at = next(100), part = 0;
            while (at >= shares[part])
                at -= shares[part++];
            int caller = next(4) == 0;
            calls[part]++;
            called[caller]++;
            if (caller)
                by_one(part);
            else
                by_two(part);
        }
    }
    for (int i = 0; i < 8; i++)
        printf("part_%c %ld\n", 'a' + i, calls[i]);
    printf("by_one %ld\nby_two %ld\n", called[1], called[0]);
    return 0;
}
