// guards: operators of a library that calls its own directly
// build: -std=c++17
// library: operators_header_lib.cpp -Wl,-Bsymbolic-functions
#include "operators.h"
extern "C" void report();
extern "C" void *thing();
extern "C" void end_thing(void *);
int main() {
    exercise();
    for (int i = 0; i < 1000; i++) delete[] static_cast<int *>(thing());
    for (int i = 0; i < 1000; i++) end_thing(new int[10]);
    report();
}
