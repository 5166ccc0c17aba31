// guards: only the forms of `operator new` that do not throw are the program's own
// build: -std=c++17
#include <atomic>
#include "operators.h"
static std::atomic<long> made;
void *operator new(std::size_t n, const std::nothrow_t &) noexcept {
    made++;
    return malloc(n);
}
int main() {
    exercise();
    std::printf("made %ld\n", made.load());
}
