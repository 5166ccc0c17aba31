// Uses every form of C++'s operators, directly and through the C++ library.
#pragma once
#include <cstdio>
#include <cstdlib>
#include <map>
#include <memory>
#include <new>
#include <string>
#include <thread>
#include <vector>

struct Part {
    int numbers[10];
    virtual ~Part() {}
};
struct alignas(64) Wide {
    char bytes[100];
    ~Wide() {}
};

template <class T> static void forms() {
    delete new T;
    delete[] new T[10];
    delete new (std::nothrow) T;
    delete[] new (std::nothrow) T[10];
    T *volatile none = nullptr;
    delete none;
    delete[] none;
}

static void calls_by_hand() {
    using std::align_val_t;
    using std::nothrow;
    operator delete(operator new(40));
    operator delete(operator new(40), nothrow);
    operator delete(operator new(40), std::size_t(40));
    operator delete[](operator new[](40));
    operator delete[](operator new[](40), nothrow);
    operator delete[](operator new[](40), std::size_t(40));
    operator delete(operator new(40, align_val_t(64)), align_val_t(64));
    operator delete(operator new(40, align_val_t(64)), align_val_t(64), nothrow);
    operator delete(operator new(40, align_val_t(64)), 40, align_val_t(64));
    operator delete[](operator new[](40, align_val_t(64)), align_val_t(64));
    operator delete[](operator new[](40, align_val_t(64)), align_val_t(64), nothrow);
    operator delete[](operator new[](40, align_val_t(64)), 40, align_val_t(64));
    operator delete(operator new(40, align_val_t(64), nothrow), align_val_t(64));
    operator delete[](operator new[](40, align_val_t(64), nothrow), align_val_t(64));
}

static void library() {
    std::vector<std::string> texts;
    for (int i = 0; i < 50; i++) texts.push_back(std::string(i, 'x'));
    std::map<int, std::string> tree;
    for (int i = 0; i < 20; i++) tree[i] = "a text that is too long to lie within the string";
    auto shared = std::make_shared<Part>();
    auto unique = std::make_unique<int[]>(100);
    try {
        throw std::string("a text that is too long to lie within the string");
    } catch (std::string &) {
    }
}

static bool is_refused() {
    std::size_t volatile much = std::size_t(1) << 60;
    try {
        operator delete(operator new(much));
    } catch (std::bad_alloc &) {
        return !operator new(much, std::nothrow);
    }
    return false;
}

// Freed at the end, while the agent has long begun.
static Part *const early = new Part;
static std::string *const early_text = new std::string(200, 'y');

static void exercise() {
    auto rounds = [] {
        for (int i = 0; i < 2000; i++) {
            forms<Part>();
            forms<Wide>();
            calls_by_hand();
            if (i % 10 == 0) library();
        }
    };
    std::thread other(rounds);
    rounds();
    other.join();
    std::printf("refused %d\n", is_refused());
    delete early;
    delete early_text;
}
