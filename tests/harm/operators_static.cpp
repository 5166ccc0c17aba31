// guards: the C++ library within the executable, and a library that uses the shared one
// build: -std=c++17 -static-libstdc++ -rdynamic
// library: operators_user_lib.cpp -std=c++17
#include "operators.h"
extern "C" void use_library();
int main() {
    exercise();
    use_library();
    return 0;
}
