// guards: only `operator delete` is the program's own, and counts
// build: -std=c++17
#include <atomic>
#include "operators.h"
static std::atomic<long> freed;
void operator delete(void *p) noexcept {
    freed++;
    free(p);
}
int main() {
    exercise();
    std::printf("freed %ld\n", freed.load());
}
