// Works in functions of assembly that no unwind table describes: called directly, by a pointer, and
// in a library (bare.c with -DLIBRARY), and one that has moved the stack pointer, whose caller
// nobody can find. Says what each caller used: "site_NAME NANOSECONDS".
#include <stdio.h>
#include <time.h>

#ifdef __x86_64__
#define LOOP "1: dec %rdi\n jnz 1b\n"
#define RETURN "ret\n"
#define PUSH "sub $64, %rsp\n"
#define POP "add $64, %rsp\n"
#else
#define LOOP "1: subs x0, x0, #1\n b.ne 1b\n"
#define RETURN "ret\n"
#define PUSH "stp x29, x30, [sp, #-64]!\n mov x30, xzr\n"
#define POP "ldp x29, x30, [sp], #64\n"
#endif

#define FUNCTION(name, begin, end)                                                                 \
    __asm__(".text\n .globl " #name "\n .type " #name ", %function\n .p2align 4\n" #name           \
            ":\n" begin LOOP end RETURN ".size " #name ", . - " #name "\n");

#ifdef LIBRARY
FUNCTION(bare_elsewhere, "", "")
#else
FUNCTION(bare, "", "")
FUNCTION(bare_with_stack, PUSH, POP)

void bare(long rounds);
void bare_with_stack(long rounds);
void bare_elsewhere(long rounds);

static long used(void) {
    struct timespec time;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &time);
    return time.tv_sec * 1000000000L + time.tv_nsec;
}

// Not known to the compiler, nor the linker.
static void (*volatile pointer)(long) = bare;

// Each call is followed by something: it is no jump.
#define SITE(name, call)                                                                           \
    static void __attribute__((noinline)) name(long rounds) {                                      \
        call(rounds);                                                                              \
        __asm__ volatile("" ::: "memory");                                                         \
    }
SITE(site_direct, bare)
SITE(site_pointer, pointer)
SITE(site_library, bare_elsewhere)
SITE(site_lost, bare_with_stack)

static void __attribute__((noinline)) spend(const char *name, void (*site)(long), long ns) {
    long begin = used(), now = begin;
    while (now - begin < ns) {
        // Seldom asked: on a busy machine, asking the clock is when the scheduler takes the processor away,
        // and a thread that is to be stopped then stops there.
        site(300000000);
        now = used();
    }
    printf("%s %ld\n", name, now - begin);
}

int main(void) {
    spend("site_direct", site_direct, 400000000);
    spend("site_pointer", site_pointer, 400000000);
    spend("site_library", site_library, 400000000);
    spend("site_lost", site_lost, 200000000);
    return 0;
}
#endif
