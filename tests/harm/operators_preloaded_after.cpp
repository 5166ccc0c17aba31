// guards: operators of a library that is preloaded after the agent
// build: -std=c++17
// preload: operators_header_lib.cpp after
#include "operators.h"
#include <dlfcn.h>
int main() {
    exercise();
    void (*report)() = reinterpret_cast<void (*)()>(dlsym(RTLD_DEFAULT, "report"));
    if (report) report();
}
