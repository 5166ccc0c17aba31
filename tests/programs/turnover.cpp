// Two threads replace a whole heap of 1,000 objects of 1,000 bytes again and again, each also
// those of the other. Answers each line on its input once every object has been replaced twice
// since; the first line lets them begin.
#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <thread>
#include <vector>

static std::atomic<void *> places[1000];
static std::atomic<long> turns[2];

extern "C" __attribute__((noinline)) void *site_turnover() {
    void *at = std::malloc(1000);
    if (!at) std::abort();
    return at;
}

static void replace(int thread) {
    for (;;) {
        for (auto &place : places)
            std::free(place.exchange(site_turnover()));
        turns[thread]++;
    }
}

int main() {
    char line[64];
    std::setvbuf(stdin, nullptr, _IONBF, 0);
    std::puts("ready");
    std::fflush(stdout);
    std::vector<std::thread> threads;
    while (std::fgets(line, sizeof line, stdin)) {
        while (threads.size() < 2)
            threads.emplace_back(replace, threads.size());
        long before[] = {turns[0], turns[1]};
        // The turn under way does not count.
        for (int i : {0, 1})
            while (turns[i] < before[i] + 3)
                std::this_thread::yield();
        std::puts("replaced");
        std::fflush(stdout);
    }
    std::_Exit(0);
}
