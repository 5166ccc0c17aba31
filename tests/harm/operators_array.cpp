// guards: only `operator new[]` and `operator delete[]` are the program's own
// build: -std=c++17
#include "headers.h"
#include "operators.h"
void *operator new[](std::size_t n) { return make(n); }
void operator delete[](void *p) noexcept { drop(p); }
int main() {
    exercise();
    std::printf("made %ld, live %ld\n", made.load(), live.load());
}
