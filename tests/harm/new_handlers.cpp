// guards: a new-handler is called by each form of `operator new`, also by those that do not throw
// build: -std=c++17 -fno-builtin
// modes: idle,1024,1
#include <cstdio>
#include <cstdlib>
#include <new>

static int calls;

static void gives_up_at_third_call() {
    if (++calls == 3) std::set_new_handler(nullptr);
}

static void refuses() {
    calls++;
    throw std::bad_alloc();
}

// Refused by every allocator.
static volatile std::size_t huge = static_cast<std::size_t>(-1) / 4;
static const std::align_val_t wide{64};

static void *allocate(int form) {
    switch (form) {
    case 0: return operator new(huge, std::nothrow);
    case 1: return operator new[](huge, std::nothrow);
    case 2: return operator new(huge, wide, std::nothrow);
    case 3: return operator new[](huge, wide, std::nothrow);
    case 4: return operator new(huge);
    case 5: return operator new[](huge);
    case 6: return operator new(huge, wide);
    default: return operator new[](huge, wide);
    }
}

static void attempt(const char *handler, int form) {
    calls = 0;
    try {
        void *p = allocate(form);
        std::printf("%s, form %d: %s after %d calls\n", handler, form, p ? "memory" : "null", calls);
    } catch (const std::bad_alloc &) {
        std::printf("%s, form %d: thrown after %d calls\n", handler, form, calls);
    }
}

int main() {
    for (int form = 0; form < 8; form++) {
        std::set_new_handler(gives_up_at_third_call);
        attempt("gives up", form);
        std::set_new_handler(refuses);
        attempt("refuses", form);
        std::set_new_handler(nullptr);
        attempt("none", form);
    }
    // The heap is usable afterwards.
    for (int i = 0; i < 1000; i++) delete[] new (std::nothrow) char[i * 100 + 1];
}
