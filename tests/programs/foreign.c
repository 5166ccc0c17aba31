// Allocates on stacks that are not its threads' own, and on memory where such a stack has
// been; does what lines on its input say, as steps.c does, and counts what it allocates where.
#define _GNU_SOURCE
#include "steps.h"
#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <stdint.h>
#include <string.h>
#include <sys/mman.h>
#include <ucontext.h>
#include <unistd.h>

#define PAGE 4096

TOTALS(routine)
TOTALS(handler)
TOTALS(supplied)
TOTALS(deep)
TOTALS(chained)
TOTALS(tiny)

#define ALLOCATES(place)                             \
    SITE void site_##place(long bytes) {             \
        void *p = malloc(bytes);                     \
        if (!p) abort();                             \
        *(volatile char *)p = 1;                     \
        born(&totals_##place, bytes);                  \
        free(p);                                     \
        died(&totals_##place, bytes);                  \
    }
ALLOCATES(routine)
ALLOCATES(handler)
ALLOCATES(supplied)
ALLOCATES(deep)
ALLOCATES(chained)
ALLOCATES(tiny)

static __thread volatile char *innermost[2];

// Calls `site` under `frames` frames of a kilobyte.
SITE long under(int frames, void (*site)(long)) {
    volatile char frame[1000];
    frame[0] = (char)frames;
    if (frames < 2) innermost[frames] = frame;
    if (frames == 0)
        for (int i = 0; i < 3; i++) site(100 + i);
    else
        under(frames - 1, site);
    return frame[0];
}

static void nothing(long bytes) { (void)bytes; }

// Bytes of a frame of `under`.
static size_t frame_bytes(void) {
    under(1, nothing);
    return (size_t)(innermost[1] - innermost[0]);
}

static size_t whole_pages(size_t bytes) { return (bytes + PAGE - 1) & -(size_t)PAGE; }

// Memory that nobody may touch, for `map` and `unmap` to work on: nobody else comes to lie
// in a hole of it.
static char *reserve(size_t bytes) {
    char *at = mmap(NULL, bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (at == MAP_FAILED) fail("mmap");
    return at;
}

static void replace(char *at, size_t bytes, int access) {
    int flags = MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED;
    if (bytes && mmap(at, bytes, access, flags, -1, 0) == MAP_FAILED) fail("mmap");
}

static void map(char *at, size_t bytes) { replace(at, bytes, PROT_READ | PROT_WRITE); }

static void unmap(char *at, size_t bytes) { replace(at, bytes, PROT_NONE); }

static void release(char *at, size_t bytes) {
    if (munmap(at, bytes)) fail("munmap");
}

// ---- coroutines

static ucontext_t here, there;
static int depth;

static void routine(void) { under(depth, site_routine); }

static void run_on(char *stack, size_t bytes, int frames) {
    depth = frames;
    if (getcontext(&there)) fail("getcontext");
    there.uc_stack.ss_sp = stack;
    there.uc_stack.ss_size = bytes;
    there.uc_link = &here;
    makecontext(&there, routine, 0);
    if (swapcontext(&here, &there)) fail("swapcontext");
}

enum { LARGE = 64 * PAGE };

// Uses a stack, and in its place a smaller one that ends lower: the same frames at the same
// places further in, nothing mapped further out.
static void shrink(char *stack, int frames, void (*use)(char *stack, size_t bytes, int frames)) {
    size_t frame = frame_bytes();
    for (int fewer = 1; frames - fewer > 6; fewer += 3) {
        size_t bytes = LARGE - (size_t)fewer * frame;
        map(stack, LARGE);
        use(stack, LARGE, frames);
        unmap(stack, LARGE);
        map(stack, whole_pages(bytes));
        use(stack, bytes, frames - fewer);
        unmap(stack, LARGE);
    }
}

static void unmapped(long rounds) {
    char *stack = reserve(LARGE);
    for (long i = 0; i < rounds; i++) shrink(stack, 60 - (int)(i % 4), run_on);
    release(stack, LARGE);
}

// The upper part of a stack goes while the lower one is in use.
static void truncated(long rounds) {
    size_t frame = frame_bytes();
    char *stack = reserve(LARGE);
    for (long i = 0; i < rounds; i++) {
        size_t bytes = LARGE;
        map(stack, LARGE);
        for (int frames = 60 - (int)(i % 4); frames > 0; frames--, bytes -= frame) {
            size_t left = whole_pages(bytes);
            unmap(stack + left, LARGE - left);
            run_on(stack, bytes, frames);
        }
    }
    release(stack, LARGE);
}

static void on_heap(long rounds) {
    static const size_t sizes[] = {16, 256, 64, 1024, 32, 4096};
    for (long i = 0; i < rounds; i++) {
        size_t bytes = sizes[i % 6] << 10;
        char *stack = malloc(bytes);
        run_on(stack, bytes, 8);
        free(stack);
    }
}

// Stacks side by side with a page between that nobody may read.
static void guards(long rounds) {
    enum { STACKS = 8, STEP = 5 * PAGE };
    char *all = reserve(STACKS * STEP + PAGE);
    for (int i = 0; i < STACKS; i++) map(all + i * STEP + PAGE, 4 * PAGE);
    for (long i = 0; i < rounds; i++)
        for (int k = 0; k < STACKS; k++) run_on(all + k * STEP + PAGE, 4 * PAGE, i % 7);
    release(all, STACKS * STEP + PAGE);
}

// Stacks of a single page, between pages that nobody may touch: by new threads, whose first
// allocation is there.
static void tiny_routine(void) {
    for (int i = 0; i < 3; i++) site_tiny(100 + 1000 * i);
}

static void *on_tiny(void *stack) {
    ucontext_t back, away;
    for (int i = 0; i < 2; i++) {
        if (getcontext(&away)) fail("getcontext");
        away.uc_stack.ss_sp = stack;
        away.uc_stack.ss_size = PAGE;
        away.uc_link = &back;
        makecontext(&away, tiny_routine, 0);
        if (swapcontext(&back, &away)) fail("swapcontext");
    }
    return NULL;
}

static void tiny(long rounds) {
    char *all = reserve(3 * PAGE);
    map(all + PAGE, PAGE);
    for (long i = 0; i < rounds; i++) {
        pthread_t thread;
        if (pthread_create(&thread, NULL, on_tiny, all + PAGE)) fail("pthread_create");
        pthread_join(thread, NULL);
    }
    release(all, 3 * PAGE);
}

// ---- signals

static int handler_depth;

static void handler(int signal) {
    (void)signal;
    int saved = errno;
    under(handler_depth, site_handler);
    errno = saved;
}

static void on_alternate(char *at, size_t bytes, int frames) {
    handler_depth = frames;
    stack_t stack = {.ss_sp = at, .ss_size = bytes};
    struct sigaction action = {.sa_handler = handler, .sa_flags = SA_ONSTACK};
    sigaction(SIGUSR2, &action, NULL);
    if (sigaltstack(&stack, NULL)) fail("sigaltstack");
    raise(SIGUSR2);
    stack.ss_flags = SS_DISABLE;
    if (sigaltstack(&stack, NULL)) fail("sigaltstack");
}

static void small_handler(int signal) {
    (void)signal;
    int saved = errno;
    site_handler(200);
    errno = saved;
}

// As small as portable programs have them (SIGSTKSZ), a page below that nobody may touch.
static void *small_body(void *memory) {
    stack_t stack = {.ss_sp = memory, .ss_size = 8192};
    struct sigaction action = {.sa_handler = small_handler, .sa_flags = SA_ONSTACK};
    sigaction(SIGUSR2, &action, NULL);
    if (sigaltstack(&stack, NULL)) fail("sigaltstack");
    for (int i = 0; i < 3; i++) pthread_kill(pthread_self(), SIGUSR2);
    stack.ss_flags = SS_DISABLE;
    if (sigaltstack(&stack, NULL)) fail("sigaltstack");
    return NULL;
}

static void small_signals(long rounds) {
    char *all = reserve(4 * PAGE);
    map(all + PAGE, 2 * PAGE);
    for (long i = 0; i < rounds; i++) {
        pthread_t thread;
        if (pthread_create(&thread, NULL, small_body, all + PAGE)) fail("pthread_create");
        pthread_join(thread, NULL);
    }
    release(all, 4 * PAGE);
}

static void signals(long rounds) {
    char *stack = reserve(LARGE);
    for (long i = 0; i < rounds; i++) {
        shrink(stack, 30 - (int)(i % 4), on_alternate);
        under((int)(i % 9), site_deep);
    }
    release(stack, LARGE);
}

// ---- threads on memory of the program's own

static void *supplied_body(void *frames) {
    under((int)(intptr_t)frames, site_supplied);
    return NULL;
}

static void thread_on(char *stack, size_t bytes, void *(*body)(void *), void *argument) {
    pthread_attr_t attributes;
    pthread_t thread;
    pthread_attr_init(&attributes);
    if (pthread_attr_setstack(&attributes, stack, bytes)) fail("pthread_attr_setstack");
    if (pthread_create(&thread, &attributes, body, argument)) fail("pthread_create");
    pthread_join(thread, NULL);
}

static void supply(char *stack, size_t bytes, int frames) {
    thread_on(stack, bytes, supplied_body, (void *)(intptr_t)frames);
}

static void supplied(long rounds) {
    char *stack = reserve(LARGE);
    for (long i = 0; i < rounds; i++) {
        shrink(stack, 40 - (int)(i % 4), supply);
        under((int)(i % 200), site_deep);
    }
    release(stack, LARGE);
}

// ---- segments of one stack, as Rust's stacker makes them

#ifdef __x86_64__
// Calls `f` on the stack that ends at `top`; a debugger sees the caller through rbp.
__attribute__((naked, noinline)) static void on_segment(void (*f)(void), char *top) {
    (void)f, (void)top;
    __asm__("push %rbp\n.cfi_def_cfa rsp, 16\n.cfi_offset rbp, -16\n"
            "mov %rsp, %rbp\n.cfi_def_cfa_register rbp\n"
            "mov %rsi, %rsp\ncall *%rdi\n"
            "mov %rbp, %rsp\npop %rbp\n.cfi_def_cfa rsp, 8\nret\n");
}

static void on_it(void) { under(depth, site_chained); }

static void chain(char *stack, size_t bytes, int frames) {
    depth = frames;
    on_segment(on_it, stack + bytes);
}

// Segments below the thread's own stack, without a page between.
static void *beside(void *stack) {
    for (int i = 0; i < 8; i++) {
        under(i % 3, site_chained);
        shrink(stack, 60 - i % 4, chain);
    }
    return NULL;
}

static void chained(long rounds) {
    enum { OWN = 16 * PAGE };
    char *stack = reserve(LARGE + OWN);
    map(stack + LARGE, OWN);
    for (long i = 0; i < rounds; i++) thread_on(stack + LARGE, OWN, beside, stack);
    release(stack, LARGE + OWN);
}
#else
static void chained(long rounds) { (void)rounds; }
#endif

// ---- all of it

static void step(char *line) {
    static const struct {
        const char *name;
        void (*run)(long);
    } steps[] = {{"unmapped", unmapped}, {"truncated", truncated}, {"on_heap", on_heap},
                 {"guards", guards},     {"signals", signals},     {"supplied", supplied},
                 {"chained", chained},   {"tiny", tiny},           {"small_signals", small_signals}};
    char word[32];
    long n;
    if (!strcmp(line, "expected")) {
        print_expected();
        return;
    }
    if (sscanf(line, "deep %ld", &n) == 1) {
        under((int)n, site_deep);
        return;
    }
    if (sscanf(line, "%31s %ld", word, &n) == 2)
        for (size_t i = 0; i < sizeof steps / sizeof *steps; i++)
            if (!strcmp(word, steps[i].name)) {
                steps[i].run(n);
                return;
            }
    errno = EINVAL;
    fail(line);
}

int main(void) { return follow(step); }
