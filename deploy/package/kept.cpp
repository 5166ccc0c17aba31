// Keeps 3,000,000 bytes in site_kept and makes short-lived objects on two threads, for
// deploy/smoke-old. C++11, for old compilers. Prints "ready", and ends when its input does.
#include <cstdio>
#include <stdexcept>
#include <string>
#include <thread>
#include <unistd.h>
#include <vector>

static std::vector<std::string *> kept;

__attribute__((noinline)) void site_kept() {
    for (int i = 0; i < 3000; i++) {
        kept.push_back(static_cast<std::string *>(operator new(1000)));
    }
}

__attribute__((noinline)) void site_brief() {
    std::vector<std::string> brief;
    for (int i = 0; i < 100; i++) brief.emplace_back(i, 'x');
    try {
        throw std::runtime_error("thrown through the agent's frames' callers");
    } catch (const std::exception &) {
    }
}

int main() {
    std::thread([] {
        for (;; usleep(1000)) site_brief();
    }).detach();
    std::puts("ready");
    std::fflush(stdout);
    for (char c; read(0, &c, 1) == 1;) {
        if (c == 'k') site_kept(), std::puts("kept"), std::fflush(stdout);
        site_brief();
    }
    _exit(0);
}
