// How deep on its stack each allocation goes: runs it on memory that was painted before, and
// looks how far the paint is gone. Prints "depth CASE BYTES" for each case.
#define _GNU_SOURCE
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <ucontext.h>
#include <unistd.h>

#define SITE __attribute__((noinline, noclone))
enum { BYTES = 256 << 10 };

static char *stack;
static __thread ucontext_t here, there;
static void (*body)(void);
static void *kept[4096];
static int count;

static void run(void) { body(); }

static long used(void (*what)(void)) {
    memset(stack, 0xa5, BYTES);
    body = what;
    getcontext(&there);
    there.uc_stack.ss_sp = stack;
    there.uc_stack.ss_size = BYTES;
    there.uc_link = &here;
    makecontext(&there, run, 0);
    swapcontext(&here, &there);
    long at = 0;
    while (at < BYTES && stack[at] == (char)0xa5) at++;
    return BYTES - at;
}

SITE static void nothing(void) { __asm__ volatile(""); }
SITE static void allocate(void) { kept[count++] = malloc(100); }
SITE static void allocate_here(void) { kept[count++] = malloc(100); __asm__ volatile("nop"); }
SITE static void allocate_many(void) {
    for (int i = 0; i < 3000; i++) {
        void *p = malloc(16 + i * 13 % 4000);
        *(volatile char *)p = 1;
        free(p);
    }
}
SITE static void release(void) { free(kept[--count]); }
SITE static void resize(void) { kept[count - 1] = realloc(kept[count - 1], 100 + 16 * count); }
SITE static void clear(void) { kept[count++] = calloc(3, 70); }
SITE static void align(void) {
    if (posix_memalign(&kept[count++], 64, 100)) abort();
}

static void tell(const char *name, void (*what)(void)) {
    printf("depth %s %ld\n", name, used(what) - used(nothing));
}

static void *thread(void *unused) {
    tell("thread_first", allocate);
    tell("thread_second", allocate);
    tell("thread_free", release);
    return unused;
}

static void pause_ms(long ms) {
    struct timespec time = {ms / 1000, ms % 1000 * 1000000};
    nanosleep(&time, NULL);
}

int main(void) {
    stack = mmap(NULL, BYTES, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    setvbuf(stdout, malloc(4096), _IOFBF, 4096);
    used(nothing);
    tell("first", allocate);
    tell("again", allocate);
    tell("again", allocate);
    tell("new_place", allocate_here);
    tell("free", release);
    tell("realloc", resize);
    tell("realloc", resize);
    tell("calloc", clear);
    tell("calloc", clear);
    tell("memalign", align);
    tell("memalign", align);
    tell("many", allocate_many);
    tell("many", allocate_many);
    pause_ms(1100);
    tell("refresh", allocate);
    pthread_t id;
    for (int i = 0; i < 2; i++) {
        pthread_create(&id, NULL, thread, NULL);
        pthread_join(id, NULL);
    }
    return 0;
}
