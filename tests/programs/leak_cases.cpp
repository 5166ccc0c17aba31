// One case for each argument: loses objects, or keeps them in some way, and ends. Prints nothing.
// The second argument: leak_library.c as a library, for its thread-local variable.
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <dlfcn.h>
#include <malloc.h>
#include <new>
#include <pthread.h>
#include <string>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <time.h>
#include <csignal>
#include <ucontext.h>
#include <unistd.h>
#include <vector>

#include "wipe.h"

#define CASE __attribute__((noinline, noclone)) void

extern "C" {
__attribute__((weak)) void __lsan_disable();
__attribute__((weak)) void __lsan_enable();
__attribute__((weak)) void __lsan_ignore_object(const void *);
}

namespace {

struct Node {
    Node *next, *other;
    char body[32];
};

struct First { virtual ~First() = default; long a; };
struct Second { virtual ~Second() = default; long b; };
struct Both : First, Second { long c; };

void *made(size_t bytes) {
    void *p = malloc(bytes);
    if (!p) abort();
    memset(p, 0, bytes);
    return p;
}

// Uses a value in a way that no compiler sees through.
template <class T> T used(T value) {
    asm volatile("" : "+r"(value) : : "memory");
    return value;
}

Node *node(Node *next) {
    Node *made_here = static_cast<Node *>(made(sizeof(Node)));
    made_here->next = next;
    return made_here;
}

void *volatile in_bss;
void *volatile in_data = reinterpret_cast<void *>(1);
void *volatile many[64];
volatile uintptr_t disguised;
thread_local void *volatile own;
volatile int ready;

void run(void *(*body)(void *), void *argument, bool join) {
    pthread_t thread;
    if (pthread_create(&thread, nullptr, body, argument)) abort();
    if (join) pthread_join(thread, nullptr);
    else while (!ready) usleep(1000);
}

void *stay() {
    ready = 1;
    for (;;) pause();
}

char *mapped(size_t bytes) {
    void *at = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (at == MAP_FAILED) abort();
    return static_cast<char *>(at);
}

// ---- lost

CASE plain() { for (int i = 0; i < 10; i++) used(made(100)); }
CASE zero() { used(malloc(0)); }
CASE large() { used(made(10 << 20)); }
CASE operators() { used(new char[50]); used(new long); used(new (std::align_val_t(64)) char[64]); }
CASE aligned() {
    void *p;
    if (posix_memalign(&p, 4096, 5000)) abort();
    memset(used(p), 0, 5000);
    memset(used(aligned_alloc(64, 128)), 0, 128);
    memset(used(memalign(256, 100)), 0, 100);
}
// Sizes that programs like to give buffers: all of a page or more.
CASE pages() { for (size_t size : {4096, 8192, 12288}) used(made(size)); }
CASE freed_pages() {
    void **p = static_cast<void **>(made(8192));
    in_bss = p;
    p[1000] = made(100);
    free(used(p));
}
CASE to_itself() { Node *n = node(nullptr); n->next = used(n); }
CASE cycle() {
    Node *first = node(nullptr), *third = node(node(first));
    first->next = used(third);
}
CASE tree() {
    Node *leaves[4] = {node(nullptr), node(nullptr), node(nullptr), node(nullptr)};
    Node *left = node(leaves[0]), *right = node(leaves[2]), *top = node(left);
    left->other = leaves[1];
    right->other = leaves[3];
    top->other = right;
    used(top);
    memset(used(leaves), 0, sizeof leaves);
}
CASE unlinked() {
    in_bss = node(node(node(nullptr)));
    Node *head = static_cast<Node *>(in_bss);
    head->next = head->next->next;
}
CASE overwritten() { in_bss = made(100); in_bss = made(200); }
CASE disguise() { disguised = ~reinterpret_cast<uintptr_t>(used(made(100))); }
CASE behind_end() { in_bss = static_cast<char *>(made(100)) + (1 << 16); }
CASE unaligned() {
    char *bytes = mapped(4096);
    in_bss = bytes;
    void *p = made(100);
    memcpy(bytes + 3, &p, sizeof p);
}
CASE by_threads() {
    for (int i = 0; i < 50; i++)
        run([](void *) -> void * { used(made(100)); return nullptr; }, nullptr, true);
}
// Deeper than what a thread writes at its end, on any processor.
CASE dead_stack() {
    run([](void *) -> void * { void *volatile p[1024]; p[0] = made(100); return nullptr; }, nullptr, true);
}
CASE dead_variable() {
    run([](void *) -> void * { own = made(100); return nullptr; }, nullptr, true);
}

// ---- kept

CASE global() { in_bss = made(100); in_data = made(200); }
CASE by_list() {
    Node *head = nullptr;
    for (int i = 0; i < 100; i++) head = node(head);
    in_bss = head;
}
CASE variable() { own = made(100); }
CASE variable_of_thread() {
    run([](void *) -> void * { own = made(100); return stay(); }, nullptr, false);
}
CASE variable_of_library(const char *path) {
    void *library = dlopen(path, RTLD_NOW);
    auto keep = library ? reinterpret_cast<void (*)(void *)>(dlsym(library, "keep")) : nullptr;
    if (!keep) abort();
    keep(made(100));
}
CASE specific() {
    pthread_key_t key;
    for (int i = 0; i < 100; i++) {
        if (pthread_key_create(&key, nullptr)) abort();
        pthread_setspecific(key, made(10));
    }
}
CASE specific_destroyed() {
    pthread_key_t key;
    if (pthread_key_create(&key, free)) abort();
    in_data = reinterpret_cast<void *>(uintptr_t(key));
    run([](void *) -> void * {
        pthread_setspecific(uintptr_t(in_data), made(100));
        return nullptr;
    }, nullptr, true);
}
CASE stack_of_thread() {
    run([](void *) -> void * { void *volatile p = made(100); stay(); return p; }, nullptr, false);
}
CASE stack_of_main() {
    void *volatile p = made(100);
    exit(p == nullptr);
}
#if defined(__x86_64__)
CASE in_register() {
    run([](void *) -> void * {
        void *p = made(100);
        asm volatile(
            "movq %0, %%r12\n\txorl %%eax, %%eax\n\tmovl $1, %1\n\t1: pause\n\tjmp 1b"
            : : "a"(p), "m"(ready)
            : "r12", "rbx", "rbp", "rcx", "rdx", "rsi", "rdi", "r8", "r9", "r10", "r11", "r13", "r14", "r15", "memory");
        return nullptr;
    }, nullptr, false);
}
#endif
ucontext_t main_context, coroutine;
void in_coroutine() {
    void *volatile p = made(100);
    swapcontext(&coroutine, &main_context);
    abort();
    (void)p;
}
void switched(void *stack) {
    getcontext(&coroutine);
    coroutine.uc_stack.ss_sp = stack;
    coroutine.uc_stack.ss_size = 1 << 16;
    coroutine.uc_link = &main_context;
    makecontext(&coroutine, in_coroutine, 0);
    swapcontext(&main_context, &coroutine);
}
CASE context_in_heap() { in_bss = made(1 << 16); switched(in_bss); }
CASE context_in_mapping() { switched(mapped(1 << 16)); }
CASE interior() { in_bss = static_cast<char *>(made(500)) + 200; }
CASE far_interior() { in_bss = static_cast<char *>(made(5000)) + 2000; }
CASE held_pages() {
    void **outer = static_cast<void **>(made(4096));
    in_bss = outer + 100;
    void **inner = static_cast<void **>(outer[511] = made(12288));
    inner[1535] = made(8192);
}
CASE reused_pages() {
    void *many_pages[16];
    for (void *&p : many_pages) p = made(8192);
    for (void *&p : many_pages) free(p);
    // The next smaller class, which with a header takes as much.
    for (int i = 0; i < 16; i++) {
        void **p = static_cast<void **>(made(7168));
        many[i] = p;
        p[895] = made(8192);
    }
    memset(used(many_pages), 0, sizeof many_pages);
}
CASE base_class() { in_bss = used(static_cast<Second *>(new Both)); }
CASE array() { in_bss = used(new std::string[10]); }
CASE long_string() { in_bss = used(new std::string(100, 'x')); }
CASE only_mapping() {
    char *at = mapped(1 << 16);
    void *p = made(100);
    memcpy(at + 32768, &p, sizeof p);
}
CASE only_epoll() {
    int poll = epoll_create1(0), event = eventfd(0, 0);
    epoll_event entry = {};
    entry.data.ptr = made(100);
    epoll_ctl(poll, EPOLL_CTL_ADD, event, &entry);
    memset(used(&entry), 0, sizeof entry);
}
CASE only_timer() {
    sigevent notification = {};
    notification.sigev_notify = SIGEV_SIGNAL;
    notification.sigev_signo = SIGUSR2;
    notification.sigev_value.sival_ptr = made(100);
    timer_t timer;
    if (timer_create(CLOCK_MONOTONIC, &notification, &timer)) abort();
    memset(used(&notification), 0, sizeof notification);
}
CASE guarded() {
    void *p;
    if (posix_memalign(&p, 4096, 4 * 4096)) abort();
    memset(p, 0, 4 * 4096);
    in_bss = p;
    void **last = reinterpret_cast<void **>(static_cast<char *>(p) + 3 * 4096);
    *last = made(100);
    if (mprotect(static_cast<char *>(p) + 4096, 4096, PROT_NONE)) abort();
}
CASE shrunk() {
    void *p = realloc(realloc(made(200), 110), 64);
    in_bss = p;
    *static_cast<void **>(p) = made(100);
}
CASE moved() {
    std::vector<void *> *all = new std::vector<void *>;
    for (int i = 0; i < 100; i++) all->push_back(made(10));
    in_bss = all;
}
CASE of_threads() {
    for (int i = 0; i < 64; i++)
        run([](void *at) -> void * { many[uintptr_t(at)] = made(100); return nullptr; },
            reinterpret_cast<void *>(uintptr_t(i)), true);
}
CASE in_fork() {
    in_bss = made(100);
    pid_t child = fork();
    if (child == 0) { used(made(100)); _exit(0); }
    waitpid(child, nullptr, 0);
}
CASE freed_at_exit() {
    in_bss = made(100);
    atexit([] { free(in_bss); });
}
CASE disabled() {
    if (__lsan_disable) __lsan_disable();
    used(made(100));
    if (__lsan_enable) __lsan_enable();
}
CASE ignored() {
    Node *n = node(node(nullptr));
    if (__lsan_ignore_object) __lsan_ignore_object(n);
    used(n);
}

const struct { const char *name; void (*run)(); } CASES[] = {
#define NAMED(name) {#name, name}
    NAMED(plain), NAMED(zero), NAMED(large), NAMED(operators), NAMED(aligned), NAMED(to_itself),
    NAMED(cycle), NAMED(tree), NAMED(unlinked), NAMED(overwritten), NAMED(disguise),
    NAMED(behind_end), NAMED(unaligned), NAMED(by_threads), NAMED(dead_stack),
    NAMED(dead_variable), NAMED(global), NAMED(by_list), NAMED(variable),
    NAMED(variable_of_thread), NAMED(specific), NAMED(specific_destroyed),
    NAMED(stack_of_thread), NAMED(stack_of_main),
#if defined(__x86_64__)
    NAMED(in_register),
#endif
    NAMED(context_in_heap), NAMED(context_in_mapping), NAMED(interior), NAMED(far_interior),
    NAMED(pages), NAMED(freed_pages), NAMED(held_pages), NAMED(reused_pages),
    NAMED(base_class), NAMED(array), NAMED(long_string), NAMED(only_mapping), NAMED(only_epoll),
    NAMED(only_timer), NAMED(guarded), NAMED(shrunk), NAMED(moved), NAMED(of_threads),
    NAMED(in_fork), NAMED(freed_at_exit), NAMED(disabled), NAMED(ignored),
};

}  // namespace

int main(int count, char **arguments) {
    const char *wanted = count > 1 ? arguments[1] : "";
    bool found = false;
    if (strcmp(wanted, "variable_of_library") == 0 && count > 2) {
        variable_of_library(arguments[2]);
        found = true;
    }
    for (auto &one : CASES) {
        if (strcmp(one.name, wanted) == 0) {
            one.run();
            found = true;
        }
    }
    wipe();
    return found ? 0 : 2;
}
