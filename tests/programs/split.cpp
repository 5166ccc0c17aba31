// Spends CPU time in functions by known shares, and says at the end how much each took by its
// thread's own clock: "NAME NANOSECONDS" for each function, then "cpu NANOSECONDS" for all
// (since the line of input, if it waits for one).
//
// split SECONDS SHAPE [MILLISECONDS [wait]]: turns of so much (200), after a line of input;
// SHAPE is `two` (70/30), `four` (40/30/20/10), `deep` (a recursion 300 deep whose
// innermost function takes 70 %), `threads` (four threads, of 40/30/20/10), `idle` (200 threads
// that sleep beside two that run). Turns are long against the time between samples, so that
// what a turn has too much or too little of is bounded, whatever the phase.

#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <ctime>
#include <mutex>
#include <condition_variable>
#include <sys/resource.h>
#include <thread>
#include <vector>

static long now(clockid_t clock) {
    timespec time;
    clock_gettime(clock, &time);
    return time.tv_sec * 1000000000L + time.tv_nsec;
}

// CPU time of the process.
static long used() {
    rusage usage;
    getrusage(RUSAGE_SELF, &usage);
    return (usage.ru_utime.tv_sec + usage.ru_stime.tv_sec) * 1000000000L +
           (usage.ru_utime.tv_usec + usage.ru_stime.tv_usec) * 1000L;
}

static std::atomic<unsigned> sink;

// Not a tail call anywhere: the caller has to stay on the stack.
static void __attribute__((noinline)) spin() {
    unsigned x = 1;
    for (int i = 0; i < 20000; i++)
        x = x * 1664525 + 1013904223;
    sink += x;
    asm volatile("" ::: "memory");
}

static void __attribute__((noinline)) burn(long ns) {
    long end = now(CLOCK_THREAD_CPUTIME_ID) + ns;
    while (now(CLOCK_THREAD_CPUTIME_ID) < end)
        spin();
    asm volatile("" ::: "memory");
}

static std::atomic<long> taken[8];

#define PART(number, name)                                                                         \
    extern "C" void __attribute__((noinline)) part_##name(long ns) {                               \
        long from = now(CLOCK_THREAD_CPUTIME_ID);                                                  \
        burn(ns);                                                                                  \
        taken[number] += now(CLOCK_THREAD_CPUTIME_ID) - from;                                      \
    }

PART(0, a)
PART(1, b)
PART(2, c)
PART(3, d)

using Part = void (*)(long);
static const Part parts[] = {part_a, part_b, part_c, part_d};

extern "C" void __attribute__((noinline)) descend(int depth, long ns) {
    volatile char frame[64];
    frame[0] = 1;
    if (depth == 0)
        part_a(ns);
    else
        descend(depth - 1, ns);
    frame[1] = frame[0];
}

static long turn_ns = 200000000; // of CPU time

static void take_turns(const char *shape, long ns) {
    for (long left = ns; left > 0; left -= turn_ns) {
        long turn = left < turn_ns ? left : turn_ns;
        if (!strcmp(shape, "deep")) {
            descend(300, turn * 7 / 10);
            part_b(turn * 3 / 10);
        } else if (!strcmp(shape, "four")) {
            for (int i = 0; i < 4; i++)
                parts[i](turn * (4 - i) / 10);
        } else {
            part_a(turn * 7 / 10);
            part_b(turn * 3 / 10);
        }
    }
}

extern "C" void __attribute__((noinline)) wait_for_end(std::mutex &mutex,
                                                       std::condition_variable &end, bool &over) {
    std::unique_lock<std::mutex> lock(mutex);
    end.wait(lock, [&] { return over; });
}

int main(int argc, char **argv) {
    if (argc < 3)
        return 2;
    long ns = atof(argv[1]) * 1e9;
    const char *shape = argv[2];
    std::mutex mutex;
    std::condition_variable end;
    bool over = false;
    std::vector<std::thread> sleepers, workers;
    if (!strcmp(shape, "idle"))
        for (int i = 0; i < 200; i++)
            sleepers.emplace_back([&] { wait_for_end(mutex, end, over); });
    if (argc > 3)
        turn_ns = atol(argv[3]) * 1000000;
    long before = 0;
    if (argc > 4) {
        // Whoever started us says when.
        printf("ready\n");
        fflush(stdout);
        getchar();
        before = used();
    }
    if (!strcmp(shape, "threads"))
        for (int i = 0; i < 4; i++)
            workers.emplace_back([=] { parts[i](ns * (4 - i) / 10); });
    else if (!strcmp(shape, "idle"))
        for (int i = 0; i < 2; i++)
            workers.emplace_back([=] { take_turns("two", ns / 2); });
    else
        take_turns(shape, ns);
    for (auto &worker : workers)
        worker.join();
    {
        std::lock_guard<std::mutex> lock(mutex);
        over = true;
    }
    end.notify_all();
    for (auto &sleeper : sleepers)
        sleeper.join();
    for (int i = 0; i < 4; i++)
        printf("part_%c %ld\n", 'a' + i, taken[i].load());
    printf("cpu %ld\n", used() - before);
    return 0;
}
