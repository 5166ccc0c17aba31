// A program with the fault that its argument names, for the sanitizers to find.
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <new>
#include <thread>
#include <vector>

#define PLACE __attribute__((noinline))

static void *volatile kept;

PLACE static void leak_malloc() { kept = malloc(1234), kept = nullptr; }
PLACE static void leak_new() { kept = new char[321], kept = nullptr; }
PLACE static void overflow() {
    char *p = (char *)malloc(10);
    kept = p;
    p[10 + (p == nullptr)] = 1;
}
PLACE static void overflow_aligned() {
    char *p = (char *)aligned_alloc(64, 64);
    kept = p;
    p[64] = 1;
}
PLACE static void use_after_free() {
    char *p = new char[40];
    kept = p;
    delete[] p;
    ((char volatile *)kept)[3] = 1;
}
PLACE static void free_twice() {
    void *p = calloc(3, 30);
    kept = p;
    free(p);
    free(kept);
}
PLACE static void mismatch() {
    kept = new int[10];
    free(kept);
}
PLACE static void wrong_size() {
    kept = ::operator new(100);
    ::operator delete(kept, size_t(40));
}
PLACE static void wrong_alignment() {
    kept = ::operator new(256, std::align_val_t(128));
    ::operator delete(kept);
}
PLACE static void race() {
    int *shared = new int(0);
    auto count = [shared] {
        for (int i = 0; i < 1000; i++) ++*(int volatile *)shared;
    };
    std::thread one(count), other(count);
    one.join(), other.join();
    delete shared;
}
PLACE static void uninitialised() {
    int *p = (int *)malloc(64);
    kept = p;
    if (((int volatile *)p)[5] == 77) puts("by chance");
    free(p);
}
PLACE static void undefined(int by) {
    int big = 0x7fffffff;
    printf("%d\n", big + by);
}

int main(int, char **arguments) {
    // Something of everything, so that what is preloaded has had its turn.
    std::vector<std::unique_ptr<char[]>> many;
    for (size_t i = 1; i < 2000; i++) many.emplace_back(new char[i]);
    std::thread([] { free(realloc(calloc(10, 10), 5000)); }).join();
    many.clear();
    struct fault {
        const char *name;
        void (*commit)();
    } faults[] = {{"none", [] {}},
                  {"leak_malloc", leak_malloc},
                  {"leak_new", leak_new},
                  {"overflow", overflow},
                  {"overflow_aligned", overflow_aligned},
                  {"use_after_free", use_after_free},
                  {"free_twice", free_twice},
                  {"mismatch", mismatch},
                  {"wrong_size", wrong_size},
                  {"wrong_alignment", wrong_alignment},
                  {"race", race},
                  {"uninitialised", uninitialised},
                  {"undefined", [] { undefined(1); }}};
    for (fault &fault : faults)
        if (!strcmp(fault.name, arguments[1])) fault.commit();
    puts("to the end");
}
