// Uses gperftools' leak checker as its users do. Built against nothing but the declarations below,
// which have the names and the layout of gperftools/heap-checker.h.
//
//   heap_checker CASE
//
// Prints what the checkers answered, and ends with 0.
#include <dirent.h>
#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/types.h>
#include <sys/wait.h>
#include <ucontext.h>
#include <unistd.h>

#include "wipe.h"

class HeapLeakChecker {
   public:
    static bool IsActive();
    static HeapLeakChecker *GlobalChecker();
    static bool NoGlobalLeaks();
    static void CancelGlobalCheck();
    explicit HeapLeakChecker(const char *name);
    ~HeapLeakChecker();
    bool NoLeaks() { return DoNoLeaks(DO_NOT_SYMBOLIZE); }
    ssize_t BytesLeaked() const;
    ssize_t ObjectsLeaked() const;
    class Disabler {
       public:
        Disabler();
        ~Disabler();
    };
    static void IgnoreObject(const void *p) { DoIgnoreObject(p); }
    static void UnIgnoreObject(const void *ptr);

   private:
    enum ShouldSymbolize { SYMBOLIZE, DO_NOT_SYMBOLIZE };
    bool DoNoLeaks(ShouldSymbolize should_symbolize);
    static void DoIgnoreObject(const void *ptr);
    void *lock_;
    const char *name_;
    void *start_snapshot_;
    bool has_checked_;
    ssize_t inuse_bytes_increase_;
    ssize_t inuse_allocs_increase_;
    bool keep_profiles_;
};

class HeapCleaner {
   public:
    typedef void (*void_function)(void);
    HeapCleaner(void_function f);
    static void RunHeapCleanups();
};

#define SITE __attribute__((noinline, noclone))

// Neither the object nor its address stays anywhere.
SITE static void leaks(size_t bytes) {
    char *volatile lost = (char *)malloc(bytes);
    memset(lost, 1, bytes);
    lost = NULL;
}

SITE static void forget() {
    wipe();
}

struct pair {
    pair *next;
    char bytes[92];
};

// One object that is ignored, which alone points to a second one.
SITE static pair *chain() {
    pair *first = (pair *)malloc(sizeof(pair)), *second = (pair *)malloc(sizeof(pair));
    first->next = second;
    second->next = NULL;
    return first;
}

SITE static void ignores() {
    pair *first = chain();
    HeapLeakChecker::IgnoreObject(first);
    first = NULL;
}

static uintptr_t hidden;

SITE static void ignores_for_a_while() {
    pair *first = chain();
    HeapLeakChecker::IgnoreObject(first);
    HeapLeakChecker::UnIgnoreObject(first);
    hidden = ~(uintptr_t)first;
}

SITE static void disabled() {
    HeapLeakChecker::Disabler disabler;
    {
        HeapLeakChecker::Disabler nested;
        pair *volatile lost = chain();
        lost = NULL;
    }
    leaks(70);
}

// What lies at the address of an object that was ignored and freed is another object.
SITE static void reuses() {
    void *first = malloc(3000);
    HeapLeakChecker::IgnoreObject(first);
    hidden = ~(uintptr_t)first;
    free(first);
    void *volatile later = NULL;
    // The clock's tick in which it was ignored has to pass.
    for (int i = 0; i < 1000 && !later; i++) {
        usleep(10000);
        void *next = malloc(3000);
        if (~(uintptr_t)next == hidden && i > 0) later = next;
        else free(next);
    }
    printf("same place: %d\n", later != NULL);
    later = NULL;
}

#if defined(__x86_64__)
static volatile uintptr_t disguised[2];

// The only pointers are left in registers that no function has to keep, as a copy of memory leaves
// them there. How many.
static __attribute__((always_inline)) inline int left_in_registers() {
    int wide = __builtin_cpu_supports("avx512f") != 0;
    for (int i = 0; i <= wide; i++) disguised[i] = ~(uintptr_t)malloc(910);
    wipe();
    uintptr_t word;
    if (wide)
        asm volatile("notq %0\n\tvpbroadcastq %0, %%zmm29\n\txorl %k0, %k0"
                     : "=r"(word)
                     : "0"(disguised[1]));
    asm volatile("notq %0\n\tmovq %0, %%xmm13\n\txorl %k0, %k0"
                 : "=r"(word)
                 : "0"(disguised[0])
                 : "xmm13");
    return 1 + wide;
}
#endif

void *kept;
static char *cached;

static void clean() {
    free(cached);
    cached = NULL;
}

static volatile sig_atomic_t children;

static void child_ended(int) { children++; }

// A coroutine with a small stack, and below it memory of others.
static struct {
    unsigned char others[8192];
    unsigned char stack[2048];
} memory;
static ucontext_t outside;

static void checks_on_small_stack() {
    HeapLeakChecker checker("small stack");
    checker.NoLeaks();
}

// Returns true if a check that is not made leaves the memory below the stack alone.
static bool keeps_memory_of_others() {
    // Binds the calls, for which the loader needs more stack.
    checks_on_small_stack();
    memset(memory.others, 0x5a, sizeof memory.others);
    ucontext_t inside;
    getcontext(&inside);
    inside.uc_stack.ss_sp = memory.stack;
    inside.uc_stack.ss_size = sizeof memory.stack;
    inside.uc_link = &outside;
    makecontext(&inside, checks_on_small_stack, 0);
    swapcontext(&outside, &inside);
    for (unsigned char byte : memory.others)
        if (byte != 0x5a) return false;
    return true;
}

static int descriptors() {
    int count = 0;
    DIR *directory = opendir("/proc/self/fd");
    while (readdir(directory)) count++;
    closedir(directory);
    return count;
}

static void *checks(void *) {
    HeapLeakChecker checker("thread's");
    return (void *)(intptr_t)checker.NoLeaks();
}

static void tell(const char *what, HeapLeakChecker &checker) {
    bool clean = checker.NoLeaks();
    printf("%s: %s %zd %zd\n", what, clean ? "clean" : "leaks", checker.BytesLeaked(),
           checker.ObjectsLeaked());
}

int main(int count, char **arguments) {
    const char *name = count > 1 ? arguments[1] : "";
    printf("active: %d global: %d\n", HeapLeakChecker::IsActive(),
           HeapLeakChecker::GlobalChecker() != NULL);
    if (!strcmp(name, "local")) {
        leaks(500);
        forget();
        HeapLeakChecker first("first one");
        kept = malloc(123);
        forget();
        tell("kept", first);
        HeapLeakChecker second("second one");
        for (int i = 0; i < 3; i++) leaks(100);
        forget();
        tell("lost", second);
        tell("again", second);
        HeapLeakChecker third("third one");
        forget();
        tell("nothing", third);
    } else if (!strcmp(name, "ignored")) {
        HeapLeakChecker checker("ignored");
        ignores();
        disabled();
        forget();
        tell("ignored", checker);
        ignores_for_a_while();
        forget();
        tell("no more", checker);
#if defined(__x86_64__)
    } else if (!strncmp(name, "registers", 9)) {
        // The loader saves registers on the stack at multiples of 64 bytes, so what remains of them
        // depends on the stack pointer.
        volatile char *shift = (volatile char *)__builtin_alloca(16 * atoi(name + 9) + 16);
        shift[0] = 0;
        HeapLeakChecker checker("registers");
        int count = left_in_registers();
        bool clean = checker.NoLeaks();
        printf("of %d: %s %zd\n", count, clean ? "clean" : "leaks", checker.ObjectsLeaked());
#endif
    } else if (!strcmp(name, "idle")) {
        printf("kept: %d\n", keeps_memory_of_others());
    } else if (!strcmp(name, "reused")) {
        HeapLeakChecker checker("reused");
        reuses();
        forget();
        tell("freed", checker);
    } else if (!strcmp(name, "unchecked")) {
        HeapLeakChecker *checker = new HeapLeakChecker("unchecked");
        printf("before: %zd %zd\n", checker->BytesLeaked(), checker->ObjectsLeaked());
        delete checker;
    } else if (!strcmp(name, "quiet")) {
        // What a program can see of a check, besides the time that it takes.
        signal(SIGCHLD, child_ended);
        // The C library fills in only the part that the kernel knows.
        sigset_t before = {}, after = {};
        sigprocmask(SIG_SETMASK, NULL, &before);
        int open = descriptors();
        errno = ERANGE;
        HeapLeakChecker checker("quiet");
        bool clean = checker.NoLeaks();
        printf("clean: %d errno kept: %d\n", clean, errno == ERANGE);
        sigprocmask(SIG_SETMASK, NULL, &after);
        printf("children: %d %d descriptors: %d mask: %d\n", (int)children,
               waitpid(-1, NULL, WNOHANG), descriptors() - open,
               memcmp(&before, &after, sizeof before));
    } else if (!strcmp(name, "threads")) {
        pthread_t threads[8];
        for (pthread_t &thread : threads) pthread_create(&thread, NULL, checks, NULL);
        int clean = 0;
        for (pthread_t &thread : threads) {
            void *result;
            pthread_join(thread, &result);
            clean += result != NULL;
        }
        printf("clean: %d\n", clean);
    } else if (!strcmp(name, "forks")) {
        leaks(400);
        forget();
        fflush(stdout);
        pid_t child = fork();
        if (!child) {
            leaks(77);
            forget();
            exit(3);
        }
        int status = 0;
        waitpid(child, &status, 0);
        printf("child: %d\n", WEXITSTATUS(status));
        HeapLeakChecker::CancelGlobalCheck();
    } else if (!strcmp(name, "code")) {
        return 7;
    } else if (!strcmp(name, "exit")) {
        printf("not flushed by the program");
        leaks(400);
        forget();
    } else if (!strcmp(name, "cancelled")) {
        leaks(400);
        forget();
        HeapLeakChecker *global = HeapLeakChecker::GlobalChecker();
        if (global) printf("before: %zd\n", global->BytesLeaked());
        printf("global: %s\n", HeapLeakChecker::NoGlobalLeaks() ? "clean" : "leaks");
        if (global) printf("after: %zd %zd\n", global->BytesLeaked(), global->ObjectsLeaked());
        HeapLeakChecker::CancelGlobalCheck();
    } else if (!strcmp(name, "cleaned")) {
        static HeapCleaner cleaner(clean);
        static HeapCleaner other(clean);
        cached = (char *)malloc(600);
        // Hidden, so that only the function can free it.
        hidden = ~(uintptr_t)cached;
        printf("global: %s\n", HeapLeakChecker::NoGlobalLeaks() ? "clean" : "leaks");
        printf("freed: %d\n", cached == NULL);
    }
    return 0;
}
