// guards: operators of a library that the program is linked with
// build: -std=c++17
// library: operators_header_lib.cpp
#include "operators.h"
extern "C" void report();
extern "C" void *thing();
int main() {
    exercise();
    for (int i = 0; i < 1000; i++) delete[] static_cast<int *>(thing());
    report();
}
