// Objects that are lost, and objects that only some searches find a pointer to: each is allocated by
// a function of its own, lost_… or by_….
//
// hidden plant: allocates them and returns. Else talks in lines: "plant" allocates them and prints
// "planted"; "more" loses some of them again and prints "done"; "wait" does nothing and prints "done".
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <pthread.h>
#include <sys/mman.h>
#include <unistd.h>

#include "wipe.h"

#define PLACE extern "C" __attribute__((noinline, noclone))

namespace {

void *made(size_t bytes) {
    void *p = malloc(bytes);
    if (!p) abort();
    memset(p, 0, bytes);
    return p;
}

}  // namespace

PLACE void *by_unaligned() { return made(80); }
PLACE void *by_tag() { return made(96); }
PLACE char *by_far() { return static_cast<char *>(made(5000)); }
PLACE char *by_near() { return static_cast<char *>(made(6000)); }
PLACE void *by_global() { return made(112); }
PLACE void *by_mapping() { return made(128); }
PLACE void *by_stack() { return made(144); }

PLACE void *lost_plain() { return made(100); }
// The first leads to the second; it and the other lead to the third.
PLACE void **lost_head() { return static_cast<void **>(made(32)); }
PLACE void **lost_tail() { return static_cast<void **>(made(48)); }
PLACE void **lost_shared() { return static_cast<void **>(made(64)); }
PLACE void **lost_other() { return static_cast<void **>(made(176)); }

namespace {

struct __attribute__((packed)) {
    char shift[3];
    void *p;
} volatile unaligned;
volatile uintptr_t tagged;
char *volatile far;
char *volatile near;
void *volatile global;
void *volatile *mapping;
volatile int waiting;

void *waits(void *) {
    void *volatile local = by_stack();
    waiting = 1;
    for (;;) pause();
    return local;
}

__attribute__((noinline)) void hide() {
    unaligned.p = by_unaligned();
    tagged = reinterpret_cast<uintptr_t>(by_tag()) | uintptr_t(0xfffc) << 48;
    far = by_far() + 3000;
    near = by_near() + 1000;
    global = by_global();
    mapping = static_cast<void *volatile *>(
        mmap(nullptr, 1 << 20, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
    mapping[5000] = by_mapping();
    pthread_t thread;
    pthread_create(&thread, nullptr, waits, nullptr);
    while (!waiting) usleep(1000);
}

}  // namespace

namespace app {

__attribute__((noinline)) void lose(int count) {
    for (int i = 0; i < count; i++) lost_plain();
    void **head = lost_head(), **shared = lost_shared(), **other = lost_other();
    head[0] = lost_tail();
    head[1] = shared;
    other[0] = shared;
    asm volatile("" : : "r"(head), "r"(other) : "memory");
}

}  // namespace app

namespace {

__attribute__((noinline)) void plant() {
    hide();
    app::lose(10);
}

}  // namespace

int main(int argc, char **) {
    setvbuf(stdout, nullptr, _IOLBF, 0);
    if (argc > 1) {
        plant();
        wipe();
        return 0;
    }
    puts("ready");
    char line[256];
    while (fgets(line, sizeof line, stdin)) {
        if (strcmp(line, "plant\n") == 0) {
            plant();
            wipe();
            puts("planted");
        } else {
            if (strcmp(line, "more\n") == 0) app::lose(10);
            wipe();
            puts("done");
        }
    }
}
