// guards: the C++ library's own operators, the new-handler and exceptions
// build: -std=c++17
#include "operators.h"
static int asked;
static void handler() {
    if (++asked == 3) std::set_new_handler(nullptr);
}
int main() {
    exercise();
    std::set_new_handler(handler);
    std::printf("refused %d, handler asked %d\n", is_refused(), asked);
    std::printf("zero %d\n", operator new(0) != nullptr);
}
