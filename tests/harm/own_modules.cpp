// guards: a program whose dl_iterate_phdr is its own, allocates, and is of no use before main
// build: -std=c++17 -rdynamic
#include "operators.h"
#include <dlfcn.h>
#include <link.h>
static bool is_ready;
static int calls;
extern "C" int dl_iterate_phdr(int (*visit)(dl_phdr_info *, size_t, void *), void *data) {
    if (!is_ready) abort();
    calls++;
    std::vector<int> room(100);
    auto real = reinterpret_cast<decltype(&dl_iterate_phdr)>(dlsym(RTLD_NEXT, "dl_iterate_phdr"));
    return real(visit, data) + (room.empty() ? 1 : 0);
}
int main() {
    is_ready = true;
    int modules = 0;
    dl_iterate_phdr([](dl_phdr_info *, size_t, void *count) { return ++*static_cast<int *>(count), 0; }, &modules);
    exercise();
    std::printf("modules %d\n", modules > 3);
}
