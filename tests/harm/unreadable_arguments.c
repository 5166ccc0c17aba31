// guards: functions that the agent defines and the kernel answers: EFAULT for an address that cannot be read, no fault
// seconds: 60
#define _GNU_SOURCE
#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/signalfd.h>
#include <sys/syscall.h>
#include <unistd.h>

enum { PAGE = 4096, STACK = 65536 };

static int failures;

// One line for each: an expression that is to fail with `EFAULT`.
#define FAULTS(call)                                                      \
    do {                                                                  \
        errno = 0;                                                        \
        long result = (call);                                             \
        if (result != -1 || errno != EFAULT) {                            \
            printf("%s: %ld, errno %d\n", #call, result, errno);          \
            failures++;                                                   \
        }                                                                 \
    } while (0)

static void pass_unreadable(void *bad)
{
    sigset_t set;
    siginfo_t information;
    struct timespec none = {0};
    sigemptyset(&set);
    FAULTS(setrlimit(RLIMIT_AS, bad));
    FAULTS(setrlimit(RLIMIT_DATA, bad));
    FAULTS(setrlimit(RLIMIT_FSIZE, bad));
    FAULTS(setrlimit64(RLIMIT_AS, bad));
    FAULTS(prlimit(0, RLIMIT_AS, bad, NULL));
    FAULTS(prlimit(getpid(), RLIMIT_DATA, bad, NULL));
    FAULTS(prlimit64(0, RLIMIT_DATA, bad, NULL));
    FAULTS(prlimit(0, RLIMIT_AS, NULL, bad));
    FAULTS(sigaltstack(bad, NULL));
    FAULTS(sigaltstack(NULL, bad));
    FAULTS(sigaltstack(bad, bad));
    FAULTS(sigtimedwait(bad, &information, &none));
    FAULTS(sigtimedwait(&set, &information, bad));
    FAULTS(sigwaitinfo(bad, NULL));
    FAULTS(prctl(PR_SET_NAME, bad));
    FAULTS(syscall(SYS_sigaltstack, bad, NULL));
    FAULTS(syscall(SYS_prlimit64, 0, RLIMIT_AS, bad, NULL));
}

// Comes last: after an attempt to install a filter, nothing is asked of the kernel that a filter may forbid.
static void pass_unreadable_filters(void *bad)
{
    FAULTS(prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) ?: prctl(PR_SET_SECCOMP, 2, bad));
    FAULTS(syscall(SYS_seccomp, 1, 0, bad));
}

// What was asked for takes effect, also if the answer overwrites it.
static void swap_stacks(void)
{
    static char first[STACK], second[STACK];
    stack_t stack = {.ss_sp = first, .ss_size = STACK}, known;
    int fails = sigaltstack(&stack, NULL);
    stack.ss_sp = second;
    fails |= sigaltstack(&stack, &stack) || stack.ss_sp != first;
    fails |= sigaltstack(NULL, &known) || known.ss_sp != second || known.ss_size != STACK;
    known.ss_flags = SS_DISABLE;
    fails |= sigaltstack(&known, &known) || known.ss_sp != second || known.ss_flags;
    fails |= sigaltstack(NULL, &known) || known.ss_flags != SS_DISABLE;
    if (fails) puts("another alternate stack"), failures++;
}

static void limit_memory(void)
{
    struct rlimit limit = {1L << 40, RLIM_INFINITY}, known;
    errno = EXDEV;
    if (setrlimit(RLIMIT_AS, &limit) || errno != EXDEV || getrlimit(RLIMIT_AS, &known)
        || known.rlim_cur != limit.rlim_cur)
        puts("another limit"), failures++;
    errno = 0;
    if (setrlimit(RLIMIT_NLIMITS, &limit) != -1 || errno != EINVAL) puts("no EINVAL"), failures++;
}

int main(void)
{
    void *page = mmap(NULL, PAGE, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    void *bad[] = {page, (char *)page + 8, (void *)8, (void *)-4096L, (void *)(1L << 62)};
    for (int i = 0; i < 5; i++) {
        free(malloc(1000));
        pass_unreadable(bad[i]);
    }
    swap_stacks();
    limit_memory();
    for (int i = 0; i < 5; i++) pass_unreadable_filters(bad[i]);
    return failures != 0;
}
