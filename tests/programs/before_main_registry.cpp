// A library with a static object that allocates, and keeps everything.
#include <vector>

static std::vector<char *> objects;

extern "C" __attribute__((noinline, noclone)) char *site_registry() {
    char *volatile object = new char[200];
    return object;
}

static const bool filled = [] {
    objects.reserve(500);
    for (int i = 0; i < 500; i++)
        objects.push_back(site_registry());
    return true;
}();

extern "C" void *registry() { return filled ? objects.back() : nullptr; }
