// guards: a program whose seccomp filter kills it for madvise(2), which glibc's allocator does not call here
#include <linux/audit.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/syscall.h>

enum { KIB = 1 << 10, MIB = 1 << 20, MOST = 20000 };

static void *taken[MOST];

static void use(int count, size_t bytes)
{
    for (int i = 0; i < count; i++) {
        taken[i] = malloc(bytes);
        memset(taken[i], 1, bytes);
    }
    for (int i = 0; i < count; i++)
        free(taken[i]);
}

int main(void)
{
    struct sock_filter code[] = {
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_madvise, 0, 1),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_KILL_PROCESS),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
    };
    struct sock_fprog filter = {sizeof code / sizeof *code, code};
    use(1000, 5 * KIB);
    // From the second time on, the memory of large objects is kept.
    for (int i = 0; i < 3; i++)
        use(1, 30 * MIB);
    if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) || prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &filter)) {
        // A kernel without filters: there is nothing to be harmed.
        puts("ok");
        return 0;
    }
    use(4, 64 * MIB);
    use(20, 16 * MIB);
    use(100, 1 * MIB);
    use(MOST, 5 * KIB);
    // What is kept fits none of these.
    for (size_t bytes = 9 * MIB; bytes <= 38 * MIB; bytes += MIB / 2)
        use(1, bytes);
    puts("ok");
    return 0;
}
