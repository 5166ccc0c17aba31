// Loses objects of 100 bytes and exits: exits LOST CODE [CHILDREN]. Keeps others in a variable.
// With CHILDREN it begins with as many forked processes that lose ten each, and run on their own.
#include <cstdlib>
#include <string>
#include <sys/wait.h>
#include <unistd.h>
#include <vector>

namespace {

std::vector<std::string> *kept;

}  // namespace

// Not by a tail call, which would leave no frame.
#define PLACE(name)                                               \
    extern "C" __attribute__((noinline, noclone)) void *name() {  \
        void *p = malloc(100);                                    \
        asm volatile("" : "+r"(p));                               \
        return p;                                                 \
    }
PLACE(lost_at_exit)
PLACE(lost_in_child)

__attribute__((noinline)) static void lose(int n, void *(*place)()) {
    for (int i = 0; i < n; i++) {
        void *volatile p = place();
        (void)p;
    }
}

int main(int argc, char **argv) {
    kept = new std::vector<std::string>;
    for (int i = 0; i < 100; i++) kept->push_back(std::string(200, 'x'));
    int children = argc > 3 ? atoi(argv[3]) : 0;
    for (int i = 0; i < children; i++) {
        if (fork() == 0) {
            // Enough that the child gets a segment of its own.
            for (int n = 0; n < 3000; n++) free(malloc(2000));
            lose(10, lost_in_child);
            exit(0);
        }
    }
    while (wait(nullptr) > 0) {
    }
    lose(argc > 1 ? atoi(argv[1]) : 0, lost_at_exit);
    if (argc > 2 && argv[2][0] == '_') _exit(0);
    return argc > 2 ? atoi(argv[2]) : 0;
}
