// A plugin in C++, of a program in C, with operators of its own unless -DPLAIN.
#define PLUGIN
#ifndef PLAIN
#include "../headers.h"
void *operator new(std::size_t n) { return make(n); }
void operator delete(void *p) noexcept { drop(p); }
#endif
#include "../operators.h"
extern "C" void run_plugin() {
    exercise();
#ifndef PLAIN
    std::printf("made %ld, live %ld\n", made.load(), live.load());
#endif
    std::fflush(stdout);
}
