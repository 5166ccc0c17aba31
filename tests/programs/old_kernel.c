// Runs a command as if the kernel were older: old_kernel YEAR ERRNO COMMAND...
//
// System calls that came after that year's kernel fail with ERRNO: 38 (ENOSYS) as there, or 1
// (EPERM) as the filters of old container runtimes have it for calls that they do not know.
// YEAR is 2016 (Linux 4.9) or 2013 (Linux 3.10). Advice on memory and flags of later kernels
// get EINVAL, as there.
#define _GNU_SOURCE
#include <errno.h>
#include <linux/audit.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <unistd.h>

#define COUNT(array) (sizeof(array) / sizeof((array)[0]))

// From here on, numbers are the same on all architectures, and of 2018 or later.
#define FIRST_COMMON 424
// glibc asks for this one and knows what ENOSYS means; with EPERM no thread starts anywhere.
#define SYS_CLONE3 435

static const int after_2016[] = {SYS_statx, SYS_rseq, SYS_io_pgetevents};
static const int after_2013[] = {
    SYS_renameat2, SYS_getrandom, SYS_memfd_create, SYS_copy_file_range, SYS_mlock2,
    SYS_membarrier, SYS_preadv2, SYS_pwritev2, SYS_userfaultfd, SYS_execveat, SYS_bpf,
    SYS_sched_setattr, SYS_sched_getattr,
};
// In containers: calls into other processes.
static const int into_others[] = {SYS_process_vm_readv, SYS_process_vm_writev, SYS_kcmp};

static struct sock_filter code[128];
static int length;

static void add(struct sock_filter instruction) { code[length++] = instruction; }

static void fail_with(int error) {
    add((struct sock_filter)BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | error));
}

static void refuse(const int *calls, size_t n, int error) {
    for (size_t i = 0; i < n; i++) {
        add((struct sock_filter)BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, calls[i], 0, 1));
        fail_with(error);
    }
}

// Of a call, arguments from a value on.
static void refuse_argument(int call, int argument, int from) {
    size_t low = offsetof(struct seccomp_data, args) + 8 * argument;
    add((struct sock_filter)BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, call, 0, 4));
    add((struct sock_filter)BPF_STMT(BPF_LD | BPF_W | BPF_ABS, low));
    add((struct sock_filter)BPF_JUMP(BPF_JMP | BPF_JGE | BPF_K, from, 0, 1));
    fail_with(EINVAL);
    add((struct sock_filter)BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)));
}

int main(int count, char **arguments) {
    if (count < 4) return 2;
    int year = atoi(arguments[1]), error = atoi(arguments[2]);
    add((struct sock_filter)BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)));
    add((struct sock_filter)BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_CLONE3, 0, 1));
    fail_with(ENOSYS);
    add((struct sock_filter)BPF_JUMP(BPF_JMP | BPF_JGE | BPF_K, FIRST_COMMON, 0, 1));
    fail_with(error);
    refuse(after_2016, COUNT(after_2016), error);
    refuse(into_others, COUNT(into_others), EPERM);
    if (year < 2016) refuse(after_2013, COUNT(after_2013), error);
    // MADV_FREE is of 4.5, MADV_WIPEONFORK of 4.14, and what comes after is later.
    refuse_argument(SYS_madvise, 2, 18);
    add((struct sock_filter)BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW));
    struct sock_fprog program = {.len = (unsigned short)length, .filter = code};
    if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) ||
        prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program)) {
        perror("seccomp");
        return 1;
    }
    if (syscall(SYS_pidfd_open, getpid(), 0) != -1 || errno != error) {
        fprintf(stderr, "the filter does not work\n");
        return 1;
    }
    execvp(arguments[3], arguments + 3);
    perror(arguments[3]);
    return 127;
}
