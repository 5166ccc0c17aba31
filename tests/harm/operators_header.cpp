// guards: the program's own operators, in the forms of C++98 only
// build: -std=c++17
#include "headers.h"
#include "operators.h"
void *operator new(std::size_t n) { return make(n); }
void operator delete(void *p) noexcept { drop(p); }
int main() {
    exercise();
    std::printf("made %ld, live %ld\n", made.load(), live.load());
}
