// A library that has operators of its own, in the forms of C++98 only.
#include "../headers.h"
void *operator new(std::size_t n) { return make(n); }
void operator delete(void *p) noexcept { drop(p); }
// Before the program's first line.
static int *const early = new int[100];
extern "C" void report() {
    delete[] early;
    std::printf("made %ld, live %ld\n", made.load(), live.load());
}
extern "C" void *thing() { return new int[10]; }
extern "C" void end_thing(void *thing) { delete[] static_cast<int *>(thing); }
