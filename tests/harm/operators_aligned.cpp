// guards: only aligned forms of the operators are the program's own
// build: -std=c++17
#include <atomic>
#include "operators.h"
static std::atomic<long> made, freed;
// Offset by a page from what the C library hands out.
void *operator new(std::size_t n, std::align_val_t align) {
    made++;
    void *p = aligned_alloc(4096, n + 8192);
    if (!p) throw std::bad_alloc();
    return static_cast<char *>(p) + 4096;
}
void operator delete(void *p, std::align_val_t) noexcept {
    if (!p) return;
    freed++;
    free(static_cast<char *>(p) - 4096);
}
int main() {
    exercise();
    std::printf("made %ld, freed %ld\n", made.load(), freed.load());
}
