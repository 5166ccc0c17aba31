// Allocates in a sandbox that kills for any system call but those of a list.
//
// sandboxed LIST WAY: installs the filter itself; with WAY ending in "-exec" it first
// installs it and then executes itself. LIST is 0 (what the program needs), 1 (and getpid,
// rt_sigprocmask), 2 (and sysinfo), or "-", which is 0 without futex. WAY is prctl, syscall or seccomp: which entry point of
// the C library installs it.
#define _GNU_SOURCE
#include "expected.h"
#include <linux/audit.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <stddef.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <unistd.h>

#define COUNT(array) (sizeof(array) / sizeof((array)[0]))

static const int needed[] = {
    SYS_read, SYS_write, SYS_close, SYS_fstat, SYS_mmap, SYS_mprotect, SYS_munmap, SYS_brk,
    SYS_rt_sigaction, SYS_rt_sigreturn, SYS_nanosleep, SYS_exit, SYS_exit_group, SYS_futex,
    SYS_clock_gettime, SYS_clock_nanosleep, SYS_newfstatat, SYS_getrandom,
};
static const int more[] = {SYS_getpid, SYS_rt_sigprocmask};
static const int most[] = {SYS_sysinfo};
// What starting a program needs besides: the loader's calls, and those of an allocator
// that is not the C library's.
static const int loading[] = {
    SYS_execve, SYS_openat, SYS_pread64, SYS_set_tid_address, SYS_set_robust_list, SYS_rseq,
    SYS_prlimit64, SYS_faccessat, SYS_readlinkat, SYS_madvise, SYS_sched_getaffinity,
#ifdef __x86_64__
    SYS_access, SYS_arch_prctl, SYS_readlink, SYS_open,
#endif
};

static struct sock_filter code[256];
static int length;

static void add(struct sock_filter instruction) { code[length++] = instruction; }

static int left_out = -1;

static void allow(const int *calls, size_t n) {
    for (size_t i = 0; i < n; i++) {
        if (calls[i] == left_out) continue;
        add((struct sock_filter)BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, calls[i], 0, 1));
        add((struct sock_filter)BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW));
    }
}

static void install(int list, const char *way, int executes) {
    add((struct sock_filter)BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)));
    allow(needed, COUNT(needed));
    if (list > 0) allow(more, COUNT(more));
    if (list > 1) allow(most, COUNT(most));
    if (executes) allow(loading, COUNT(loading));
    add((struct sock_filter)BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_KILL_PROCESS));
    struct sock_fprog program = {.len = (unsigned short)length, .filter = code};
    if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)) abort();
    long failed = !strncmp(way, "prctl", 5)
                      ? prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program)
                      : syscall(SYS_seccomp, SECCOMP_SET_MODE_FILTER, 0, &program);
    if (failed) abort();
}

SITE void site_work(void) {
    for (int i = 0; i < 2000; i++) {
        void *p = malloc(16 + i % 500);
        if (!p) abort();
        __asm__ volatile("" : "+r"(p));
        free(p);
    }
}

// Keeps more than the sampled objects had room for until now.
SITE void site_kept(void) {
    for (int i = 0; i < 20000; i++) {
        char *p = malloc(1000);
        if (!p) abort();
        p[0] = 1;
    }
}

// On pages of the stack that no call has reached before.
SITE void site_deeper(int calls) {
    volatile char local[3000];
    local[0] = (char)calls;
    if (calls) site_deeper(calls - 1);
    else site_work();
    local[1] = local[0];
}

int main(int count, char **arguments) {
    static char line[64];
    if (count == 3) {
        const char *way = arguments[2];
        int executes = strstr(way, "-exec") != NULL;
        int list = arguments[1][0] - '0';
        if (arguments[1][0] == '-') {
            left_out = SYS_futex;
            list = 0;
        }
        install(list, way, executes);
        if (executes) {
            char *again[] = {arguments[0], NULL};
            execv(arguments[0], again);
            abort();
        }
    }
    say("ready");
    while (fgets(line, sizeof line, stdin)) {
        if (!strncmp(line, "filter ", 7)) {
            line[strcspn(line, "\n")] = 0;
            install(0, line + 7, 0);
        } else if (!strncmp(line, "keep", 4)) {
            site_kept();
        } else {
            site_work();
            site_deeper(60);
        }
        say("ok");
    }
    return 0;
}
