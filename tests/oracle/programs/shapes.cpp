// Stacks of every shape: `shapes NAME...` runs each named part. What is compared is the
// stacks of the allocations; the parts check nothing themselves but that they ran.
#include "shapes.h"

#include <alloca.h>
#include <dlfcn.h>
#include <pthread.h>
#include <setjmp.h>
#include <signal.h>
#include <stdexcept>
#include <string>
#include <sys/mman.h>
#include <sys/time.h>
#include <thread>
#include <time.h>
#include <ucontext.h>
#include <vector>

#define NOINLINE __attribute__((noinline, noclone))

// What keeps a call from becoming a jump.
volatile unsigned long sink;

NOINLINE void allocate(size_t bytes) {
    void *volatile p = malloc(bytes);
    free(p);
    sink = sink + (bytes);
}

static unsigned long seed = 88172645463325252ul;

static unsigned random_below(unsigned n) {
    seed ^= seed << 13;
    seed ^= seed >> 7;
    seed ^= seed << 17;
    return (seed >> 20) % n;
}

// ---- a walk through frames of all kinds, at random

static void wander(int depth);
// Not in coroutines: the stack of exceptions being handled, and the alternate stack, are
// one for all of a thread's.
static bool may_signal = true, may_throw = true;

NOINLINE static void plain(int depth) {
    wander(depth);
    sink = sink + 1;
}

NOINLINE static void many_saved(int depth) {
    unsigned long a = sink, b = a * 3, c = b ^ a, d = c + 7, e = d * b, f = e ^ 5;
    wander(depth);
    sink = sink + (a + b * c - d * e + f);
}

NOINLINE static void big_frame(int depth) {
    volatile char block[5000];
    block[depth] = 1;
    wander(depth);
    sink = sink + (block[depth]);
}

NOINLINE static void with_alloca(int depth) {
    volatile char *block = (volatile char *)alloca(16 + random_below(500));
    block[0] = depth;
    wander(depth);
    sink = sink + (block[0]);
}

NOINLINE static void with_vla(int depth) {
    unsigned n = 1 + random_below(100);
    volatile long block[n];
    block[n - 1] = depth;
    wander(depth);
    sink = sink + (block[n - 1]);
}

NOINLINE static void aligned(int depth) {
    alignas(64) volatile char block[64];
    block[0] = depth;
    wander(depth);
    sink = sink + (block[0] + (unsigned long)block);
}

NOINLINE static void aligned_with_arguments(int depth, long a, long b, long c, long d, long e,
                                            long on_stack, long too) {
    alignas(128) volatile long block[16];
    block[0] = a + b + c + d + e + on_stack;
    wander(depth);
    sink = sink + (block[0] + too);
}

NOINLINE static void aligned_vla(int depth, int n, long a, long b, long c, long d, long on_stack) {
    alignas(64) volatile long block[8];
    volatile char *more = (volatile char *)alloca(n);
    more[0] = a + b + c + d;
    block[0] = on_stack;
    wander(depth);
    sink = sink + (block[0] + more[0] + on_stack);
}

struct Allocates {
    size_t bytes;
    ~Allocates() { allocate(bytes); }
};

NOINLINE static void throws(int depth) {
    Allocates here{24};
    if (random_below(3) == 0)
        throw std::runtime_error("a message too long for the string itself to hold");
    wander(depth);
}

NOINLINE static void catches(int depth) {
    if (!may_throw)
        return plain(depth);
    try {
        Allocates there{40};
        throws(depth);
    } catch (std::exception &error) {
        Allocates in_handler{strlen(error.what())};
        wander(depth);
    }
}

NOINLINE static void rethrows(int depth) {
    if (!may_throw)
        return many_saved(depth);
    try {
        try {
            throws(depth);
        } catch (...) {
            Allocates first{56};
            throw;
        }
    } catch (std::runtime_error &) {
        wander(depth);
    }
}

static int sorting_depth;

static int compare(const void *a, const void *b) {
    int depth = sorting_depth;
    if (depth > 0) {
        sorting_depth = 0;
        wander(depth);
    }
    return *(const int *)a - *(const int *)b;
}

NOINLINE static void sorts(int depth) {
    int numbers[] = {3, 1, 2, 5};
    sorting_depth = depth;
    qsort(numbers, 4, sizeof(int), compare);
    sink = sink + (numbers[0]);
}

NOINLINE static void searches(int depth) {
    int numbers[] = {1, 2, 3, 5}, key = 3;
    sorting_depth = depth;
    sink = sink + (bsearch(&key, numbers, 4, sizeof(int), compare) != nullptr);
}

static int once_depth;

NOINLINE static void once(int depth) {
    pthread_once_t control = PTHREAD_ONCE_INIT;
    once_depth = depth;
    pthread_once(&control, [] { wander(once_depth); });
    sink = sink + 1;
}

NOINLINE static void jumps(int depth) {
    jmp_buf to;
    if (setjmp(to) == 0) {
        wander(depth);
        longjmp(to, 1);
    }
    allocate(72);
}

static int signal_depth;

static void on_signal(int) {
    allocate(88);
    wander(signal_depth);
}

// Raised, not sent: nothing is interrupted in the middle of an allocation.
static void raised(int depth, int number) {
    if (!may_signal)
        return plain(depth);
    signal_depth = depth;
    raise(number);
    sink = sink + 1;
}

NOINLINE static void on_this_stack(int depth) { raised(depth, SIGUSR1); }

NOINLINE static void on_other_stack(int depth) {
    stack_t now;
    sigaltstack(nullptr, &now);
    raised(depth, now.ss_flags & SS_ONSTACK ? SIGUSR1 : SIGUSR2);
}

static int assembly_depth;

// Uses all registers that callees save, and more than jumps.
static void from_assembly() {
    asm volatile("" ::: "rbx", "r12", "r13", "r14", "r15");
    wander(assembly_depth);
    sink = sink + 1;
}

NOINLINE static void assembly(int depth) {
    assembly_depth = depth;
    with_cfi[random_below(WITH_CFI)](from_assembly);
    sink = sink + 1;
}

// ---- coroutines

struct Coroutine {
    ucontext_t context, back;
    void *stack;
    int depth;
    bool over;
};

static const size_t CO_STACK = 256 << 10;
static Coroutine *running;

NOINLINE static void yields(int depth) {
    Coroutine *self = running;
    if (self != nullptr && self->depth == 0) {
        self->depth = 1;
        running = nullptr;
        swapcontext(&self->context, &self->back);
        running = self;
        self->depth = 0;
    }
    wander(depth);
    sink = sink + 1;
}

static void body() {
    Coroutine *self = running;
    wander(12);
    self->over = true;
    running = nullptr;
}

static Coroutine *create() {
    Coroutine *it = new Coroutine();
    it->stack = mmap(nullptr, CO_STACK, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    getcontext(&it->context);
    it->context.uc_stack.ss_sp = it->stack;
    it->context.uc_stack.ss_size = CO_STACK;
    it->context.uc_link = &it->back;
    makecontext(&it->context, body, 0);
    return it;
}

static bool resume(Coroutine *it) {
    running = it;
    swapcontext(&it->back, &it->context);
    running = nullptr;
    if (it->over) {
        munmap(it->stack, CO_STACK);
        delete it;
        return false;
    }
    return true;
}

static void coroutines() {
    std::vector<Coroutine *> all;
    may_signal = may_throw = false;
    for (int i = 0; i < 600; i++) {
        if (all.size() < 12)
            all.push_back(create());
        size_t next = random_below(all.size());
        if (!resume(all[next]))
            all.erase(all.begin() + next);
        allocate(96);
    }
    while (!all.empty())
        if (!resume(all.back()))
            all.pop_back();
    may_signal = may_throw = true;
}

static void (*const KINDS[])(int) = {
    plain, many_saved, big_frame, with_alloca, with_vla, aligned,
    [](int depth) { aligned_with_arguments(depth, 1, 2, 3, 4, 5, 6, 7); },
    [](int depth) { aligned_vla(depth, 100, 1, 2, 3, 4, 5); },
    catches, rethrows, sorts, searches, once, jumps, on_this_stack, on_other_stack, assembly, yields,
};

NOINLINE static void wander(int depth) {
    int steps = 1 + random_below(depth > 8 ? 2 : 3);
    for (int i = 0; i < steps && depth > 0; i++) {
        if (random_below(3) == 0)
            allocate(16 + depth);
        try {
            KINDS[random_below(sizeof KINDS / sizeof *KINDS)](depth - 1);
        } catch (std::runtime_error &) {
            allocate(104);
        }
    }
    allocate(8);
}

static void wandering() {
    for (int i = 0; i < 40; i++)
        wander(4 + random_below(12));
}

// ---- recursion

NOINLINE static void recurse(int depth) {
    volatile char block[24];
    block[0] = depth;
    if (depth > 0)
        recurse(depth - 1);
    if (depth % 64 == 0)
        allocate(depth + 1);
    sink = sink + (block[0]);
}

static void recursion() {
    recurse(2500);
    recurse(900);
    recurse(2500);
}

static void too_deep() { recurse(4000); }

// ---- exceptions of the C++ library

static void library() {
    for (int i = 0; i < 200; i++) {
        try {
            sink = sink + (std::stoi("not a number at all, and long enough to allocate"));
        } catch (std::invalid_argument &) {
        }
        try {
            std::vector<int> few(3);
            sink = sink + (few.at(10 + i));
        } catch (std::out_of_range &) {
        }
        catches(3);
        rethrows(3);
    }
}

// ---- threads

struct AtEnd {
    std::string text = std::string(100, 'x');
    ~AtEnd() { allocate(text.size()); }
};

static void threads() {
    for (int round = 0; round < 20; round++) {
        std::vector<std::thread> all;
        for (int i = 0; i < 4; i++)
            all.emplace_back([i] {
                static thread_local AtEnd at_end;
                sink = sink + (at_end.text.size());
                recurse(20 + i * 50);
                for (int n = 0; n < 50; n++) {
                    std::string text(40 + n, 'y');
                    allocate(text.size());
                }
            });
        for (auto &one : all)
            one.join();
    }
}

// ---- libraries

typedef void (*Entry)(void (*)(size_t));

static void call(const char *path, const char *name) {
    void *library = dlopen(path, RTLD_LAZY | RTLD_LOCAL);
    if (library == nullptr) {
        fprintf(stderr, "%s\n", dlerror());
        exit(1);
    }
    Entry entry = (Entry)dlsym(library, name);
    for (int i = 0; i < 3; i++)
        entry(allocate);
    dlclose(library);
}

static void libraries() {
    for (int i = 0; i < 60; i++)
        call(i & 1 ? "./libplugin_b.so" : "./libplugin_a.so", "entry");
}

// Lazy binding that allocates: the first call into a library that was loaded later makes
// the loader note a dependency; the first use of its thread-local words by a thread that
// is older than it makes their block.
static void lazily() {
    for (int i = 0; i < 20; i++) {
        void *provider = dlopen("./libprovider.so", RTLD_LAZY | RTLD_GLOBAL);
        void *user = dlopen("./libuser.so", RTLD_LAZY | RTLD_LOCAL);
        if (provider == nullptr || user == nullptr) {
            fprintf(stderr, "%s\n", dlerror());
            exit(1);
        }
        ((Entry)dlsym(user, "uses"))(allocate);
        dlclose(user);
        dlclose(provider);
    }
}

// ---- interruptions

static volatile long interruptions;

static void interrupted(int) {
    allocate(40);
    interruptions = interruptions + 1;
}

// Once, a little later.
static void set_timer() {
    struct itimerval once = {{0, 0}, {0, 200}};
    setitimer(ITIMER_REAL, &once, nullptr);
}

// A timer that repeats could expire before its handler returns: nothing else would run then.
static void interrupted_again(int number) {
    interrupted(number);
    set_timer();
}

static void handle(int number, void (*handler)(int), int flags) {
    struct sigaction action = {};
    action.sa_handler = handler;
    action.sa_flags = flags;
    sigaction(number, &action, nullptr);
}

NOINLINE static long twist(long n) { return n * 31 ^ (n >> 3); }

NOINLINE static long busy_alloca(int n) {
    volatile char *block = (volatile char *)alloca(n);
    block[n - 1] = twist(n);
    return block[n - 1] + twist(n + 1);
}

NOINLINE static long busy_aligned(long a, long b, long c, long d, long e, long f, long on_stack) {
    alignas(64) volatile long block[8];
    block[a & 7] = twist(b + c + d + e + f);
    return block[a & 7] + twist(on_stack);
}

NOINLINE static long busy_aligned_vla(long a, int n) {
    alignas(64) volatile long block[8];
    volatile char *more = (volatile char *)alloca(n);
    more[n - 1] = a;
    block[a & 7] = twist(more[n - 1]);
    return block[a & 7];
}

static int by_value(const void *a, const void *b) { return *(const int *)a - *(const int *)b; }

// Everything here is free of allocations: its handler makes them.
NOINLINE static void busy(unsigned round) {
    sink = sink + (busy_alloca(16 + round % 300));
    sink = sink + (busy_aligned(round, 2, 3, 4, 5, 6, 7));
    sink = sink + (busy_aligned_vla(round, 16 + round % 200));
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    int numbers[] = {3, 1, (int)round, 5};
    qsort(numbers, 4, sizeof(int), by_value);
    char text[300], copy[300];
    memset(text, 'a' + round % 26, sizeof text);
    memcpy(copy, text, round % sizeof copy);
    text[299] = 0;
    sink = sink + (strlen(text) + (strchr(text, 'q') != nullptr) + now.tv_nsec + copy[0] + numbers[0]);
    jmp_buf to;
    if (setjmp(to) == 0)
        longjmp(to, 1);
    pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
    pthread_mutex_lock(&mutex);
    pthread_mutex_unlock(&mutex);
    for (int i = 0; i < WITH_CFI; i++)
        with_cfi[i](empty);
    sink = sink + (provided(round));
}

static void interrupt(int flags) {
    handle(SIGALRM, interrupted_again, flags);
    interruptions = 0;
    set_timer();
    for (unsigned round = 0; interruptions < 1000; round++)
        busy(round);
    struct itimerval never = {};
    setitimer(ITIMER_REAL, &never, nullptr);
}

static void interruptions_here() { interrupt(SA_RESTART); }
static void interruptions_elsewhere() { interrupt(SA_RESTART | SA_ONSTACK); }

// Interrupts after every single instruction.
static void stepwise(int flags) {
    handle(SIGTRAP, interrupted, flags);
    for (unsigned round = 0; round < 2; round++) {
        trap_steps();
        busy(round);
        trap_no_steps();
    }
}

static void steps_here() { stepwise(0); }
static void steps_elsewhere() { stepwise(SA_ONSTACK); }

// ---- no way out

static void jumps_on() { allocate(16); }

// The CFA in a register that nobody has saved since: on_rbx, on_r12.
static void unsaved() {
    for (int i = 0; i < 20; i++) {
        with_cfi[2](jumps_on);
        with_cfi[3](jumps_on);
    }
}

static void allocates_twice() {
    allocate(8);
    allocate(16);
}

static void lost() {
    for (int i = 0; i < 20; i++)
        without_cfi(allocates_twice);
    // Code in no file, without a record, and larger than a trampoline.
    char *code = (char *)mmap(nullptr, 4096, PROT_READ | PROT_WRITE | PROT_EXEC,
                              MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    static const unsigned char CODE[] = {0x48, 0x83, 0xec, 0x18, 0xff, 0xd7, 0x48, 0x83, 0xc4, 0x18, 0xc3};
    memcpy(code, CODE, sizeof CODE);
    for (int i = 0; i < 20; i++)
        ((void (*)(void (*)()))code)(allocates_twice);
}

static const struct {
    const char *name;
    void (*run)();
} PARTS[] = {
    {"wandering", wandering},
    {"coroutines", coroutines},
    {"recursion", recursion},
    {"too_deep", too_deep},
    {"library", library},
    {"threads", threads},
    {"libraries", libraries},
    {"lazily", lazily},
    {"interruptions_here", interruptions_here},
    {"interruptions_elsewhere", interruptions_elsewhere},
    {"steps_here", steps_here},
    {"steps_elsewhere", steps_elsewhere},
    {"unsaved", unsaved},
    {"lost", lost},
};

int main(int count, char **names) {
    static char other[1 << 20];
    stack_t stack = {};
    stack.ss_sp = other;
    stack.ss_size = sizeof other;
    sigaltstack(&stack, nullptr);
    handle(SIGUSR1, on_signal, SA_NODEFER);
    handle(SIGUSR2, on_signal, SA_NODEFER | SA_ONSTACK);
    for (int i = 1; i < count; i++) {
        bool found = false;
        for (auto &part : PARTS)
            if (strcmp(part.name, names[i]) == 0) {
                part.run();
                found = true;
            }
        if (!found) {
            fprintf(stderr, "%s: no such part\n", names[i]);
            return 2;
        }
    }
    return 0;
}
