// What is hard on a profiler, as told by lines on its input; answers "ok" to each, and
// "expected" prints what it allocated where. See steps.c.
#define _GNU_SOURCE
#include "steps.h"
#include <dlfcn.h>
#include <errno.h>
#include <pthread.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

TOTALS(pairs)
TOTALS(paths)
TOTALS(crowd)
TOTALS(switched)
TOTALS(handed)
TOTALS(small)
TOTALS(medium)

#define KEEPER(place)                                \
    SITE void *site_##place(long bytes) {            \
        void *p = malloc(bytes);                     \
        if (!p) abort();                             \
        born(&totals_##place, bytes);                  \
        return p;                                    \
    }
KEEPER(crowd)
KEEPER(switched)
KEEPER(handed)
KEEPER(small)
KEEPER(medium)

// ---- as many allocations a second as there can be

SITE void site_pairs(long n) {
    for (long i = 0; i < n; i++) {
        void *p = malloc(24);
        __asm__ volatile("" : "+r"(p));
        free(p);
    }
    TOTALS_ADD(totals_pairs.objects, n), TOTALS_ADD(totals_pairs.bytes, 24 * n);
}

static void *pairs_thread(void *n) {
    site_pairs((long)n);
    return NULL;
}

static void pairs(long n, long count) {
    pthread_t threads[16];
    for (int i = 0; i < count && i < 16; i++)
        if (pthread_create(&threads[i], NULL, pairs_thread, (void *)n)) fail("pthread_create");
    for (int i = 0; i < count && i < 16; i++) pthread_join(threads[i], NULL);
}

// ---- objects that another thread frees, which allocates none

static void *handed[1 << 16];

static void *free_handed(void *n) {
    for (long i = 0; i < (long)n; i++) {
        died(&totals_handed, 40);
        free(handed[i]);
    }
    return NULL;
}

static void hand_over(long n) {
    pthread_t thread;
    for (long i = 0; i < n + 10 && i < 1 << 16; i++) handed[i] = site_handed(40);
    if (pthread_create(&thread, NULL, free_handed, (void *)n)) fail("pthread_create");
    pthread_join(thread, NULL);
}

// ---- a stack of its own for each number

SITE void site_paths(long bits, int depth) {
    if (depth == 0) {
        void *p = malloc(40);
        __asm__ volatile("" : "+r"(p));
        free(p);
        TOTALS_ADD(totals_paths.objects, 1), TOTALS_ADD(totals_paths.bytes, 40);
    } else if (bits & 1) {
        site_paths(bits >> 1, depth - 1);
        __asm__ volatile("# one");
    } else {
        site_paths(bits >> 1, depth - 1);
        __asm__ volatile("# the other\n nop");
    }
}

// ---- many threads at once

static pthread_barrier_t everybody;

static void *one_of_many(void *unused) {
    pthread_barrier_wait(&everybody);
    for (int i = 0; i < 20; i++) {
        void *p = site_crowd(100 + i);
        if (i % 2) {
            free(p);
            died(&totals_crowd, 100 + i);
        }
    }
    pthread_barrier_wait(&everybody);
    return unused;
}

static void crowd(long n) {
    pthread_attr_t attributes;
    pthread_t *threads = calloc(n, sizeof *threads);
    pthread_attr_init(&attributes);
    pthread_attr_setstacksize(&attributes, 65536);
    pthread_barrier_init(&everybody, NULL, n + 1);
    for (long i = 0; i < n; i++)
        if (pthread_create(&threads[i], &attributes, one_of_many, NULL)) fail("pthread_create");
    pthread_barrier_wait(&everybody);
    pthread_barrier_wait(&everybody);
    for (long i = 0; i < n; i++) pthread_join(threads[i], NULL);
    free(threads);
}

// ---- coroutines by hand: switch_stacks(&saved, to) leaves one stack for another

void switch_stacks(void **saved, void *to);
#if defined __x86_64__
__asm__(".text\n.globl switch_stacks\n.type switch_stacks,@function\nswitch_stacks:\n"
        ".cfi_startproc\n"
        "push %rbp\n push %rbx\n push %r12\n push %r13\n push %r14\n push %r15\n"
        "mov %rsp,(%rdi)\n mov %rsi,%rsp\n"
        "pop %r15\n pop %r14\n pop %r13\n pop %r12\n pop %rbx\n pop %rbp\n ret\n"
        ".cfi_endproc\n.size switch_stacks,.-switch_stacks\n");
enum { SAVED_WORDS = 6, ENTRY_WORD = 6 };
#elif defined __aarch64__
__asm__(".text\n.globl switch_stacks\n.type switch_stacks,%function\nswitch_stacks:\n"
        ".cfi_startproc\n"
        "stp x29,x30,[sp,#-96]!\n stp x19,x20,[sp,#16]\n stp x21,x22,[sp,#32]\n"
        "stp x23,x24,[sp,#48]\n stp x25,x26,[sp,#64]\n stp x27,x28,[sp,#80]\n"
        "mov x9,sp\n str x9,[x0]\n mov sp,x1\n"
        "ldp x19,x20,[sp,#16]\n ldp x21,x22,[sp,#32]\n ldp x23,x24,[sp,#48]\n"
        "ldp x25,x26,[sp,#64]\n ldp x27,x28,[sp,#80]\n ldp x29,x30,[sp],#96\n ret\n"
        ".cfi_endproc\n.size switch_stacks,.-switch_stacks\n");
enum { SAVED_WORDS = 12, ENTRY_WORD = 1 };
#endif

static void *scheduler, *routines[4];
static int running;

static void routine(void) {
    for (;;) {
        void *p = site_switched(90 + running);
        if (running % 2) {
            free(p);
            died(&totals_switched, 90 + running);
        }
        switch_stacks(&routines[running], scheduler);
    }
}

static void switched(long turns) {
    for (int i = 0; i < 4; i++) {
        long bytes = 65536;
        char *stack = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        if (stack == MAP_FAILED) fail("mmap");
        // As after a call: the entry's stack pointer is 8 below a multiple of 16 where
        // calls push, and a multiple of 16 where they do not.
        void **top = (void **)(stack + bytes) - 2;
        top -= SAVED_WORDS == 6 ? SAVED_WORDS + 2 : SAVED_WORDS;
        top[ENTRY_WORD] = (void *)routine;
        routines[i] = top;
    }
    for (long turn = 0; turn < turns; turn++)
        for (running = 0; running < 4; running++) switch_stacks(&scheduler, routines[running]);
}

// ---- the loader at work: lazy binding, thread-local storage made at its first use

static void lazy(const char *provider, const char *user, long n) {
    if (!dlopen(provider, RTLD_NOW | RTLD_GLOBAL)) fail(dlerror());
    void *library = dlopen(user, RTLD_LAZY | RTLD_LOCAL);
    if (!library) fail(dlerror());
    void (*site)(long) = (void (*)(long))dlsym(library, "site_lazy");
    site(n);
}

static void *(*site_local)(void);

static void *touch(void *unused) {
    return site_local() ? unused : NULL;
}

static void local(const char *user, long n) {
    void *library = dlopen(user, RTLD_LAZY | RTLD_LOCAL);
    if (!library) fail(dlerror());
    site_local = (void *(*)(void))dlsym(library, "site_local");
    for (long i = 0; i < n; i++) {
        pthread_t thread;
        if (pthread_create(&thread, NULL, touch, NULL)) fail("pthread_create");
        pthread_join(thread, NULL);
    }
}

// ---- a load that continues until it is told to rest

enum { LOAD_THREADS = 2, RING = 4000 };

static int resting;
static long work;
static pthread_t load_threads[LOAD_THREADS];
static struct { void *at; long bytes; } rings[LOAD_THREADS][RING];

static void drop(long thread, long at) {
    if (!rings[thread][at].at) return;
    free(rings[thread][at].at);
    long bytes = rings[thread][at].bytes;
    died(bytes < 500 ? &totals_small : &totals_medium, bytes);
    rings[thread][at].at = NULL;
}

static void *load_thread(void *number) {
    long thread = (long)number;
    unsigned long random = 88172645463325252ul + thread;
    while (!__atomic_load_n(&resting, __ATOMIC_RELAXED)) {
        random ^= random << 13, random ^= random >> 7, random ^= random << 17;
        long at = random % RING, kind = random >> 32 & 7;
        drop(thread, at);
        long bytes = kind ? 32 + (long)(random >> 40 & 63) : 500 + (long)(random >> 40 & 511);
        rings[thread][at].bytes = bytes;
        rings[thread][at].at = kind ? site_small(bytes) : site_medium(bytes);
        long rounds = __atomic_load_n(&work, __ATOMIC_RELAXED);
        for (long i = 0; i < rounds; i++) __asm__ volatile("" : "+r"(random));
    }
    return NULL;
}

static void load(void) {
    resting = 0;
    for (long i = 0; i < LOAD_THREADS; i++)
        if (pthread_create(&load_threads[i], NULL, load_thread, (void *)i)) fail("pthread_create");
}

static void rest(void) {
    __atomic_store_n(&resting, 1, __ATOMIC_RELAXED);
    for (int i = 0; i < LOAD_THREADS; i++) pthread_join(load_threads[i], NULL);
}

static void clear(void) {
    for (long thread = 0; thread < LOAD_THREADS; thread++)
        for (long at = 0; at < RING; at++) drop(thread, at);
}

// ---- all of it

static void step(char *line) {
    long n = 0, m = 0;
    static char first[4096], second[4096];
    if (sscanf(line, "pairs %ld %ld", &n, &m) == 2)
        pairs(n, m);
    else if (sscanf(line, "paths %ld", &n) == 1)
        for (long i = 0; i < n; i++) site_paths(i, 20);
    else if (sscanf(line, "crowd %ld", &n) == 1)
        crowd(n);
    else if (sscanf(line, "handed %ld", &n) == 1)
        hand_over(n);
    else if (sscanf(line, "switched %ld", &n) == 1)
        switched(n);
    else if (sscanf(line, "lazy %4095s %4095s %ld", first, second, &n) == 3)
        lazy(first, second, n);
    else if (sscanf(line, "local %4095s %ld", first, &n) == 2)
        local(first, n);
    else if (sscanf(line, "work %ld", &n) == 1)
        __atomic_store_n(&work, n, __ATOMIC_RELAXED);
    else if (!strcmp(line, "load"))
        load();
    else if (!strcmp(line, "rest"))
        rest();
    else if (!strcmp(line, "clear"))
        clear();
    else if (!strcmp(line, "expected"))
        print_expected();
    else {
        errno = EINVAL;
        fail(line);
    }
}

int main(void) { return follow(step); }
