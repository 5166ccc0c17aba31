// guards: seccomp's strict mode, by prctl and by the system call, in a program that allocates what it has allocated before
#define _GNU_SOURCE
#include <linux/seccomp.h>
#include <malloc.h>
#include <stdlib.h>
#include <stdio.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

static void *kept[300];

static void allocate(void)
{
    for (int round = 0; round < 20; round++) {
        for (int i = 1; i < 300; i++) kept[i] = malloc(i * 7);
        for (int i = 1; i < 300; i += 2) kept[i] = realloc(kept[i], i * 9);
        for (int i = 1; i < 300; i++) free(kept[i]);
    }
}

static int run(int way)
{
    pid_t child = fork();
    if (child == 0) {
        // As much as is used at once later, so that memory is there.
        allocate();
        for (int i = 0; i < 300; i++) kept[i] = malloc(i * 7);
        long failed;
        if (way == 0)
            failed = prctl(PR_SET_SECCOMP, SECCOMP_MODE_STRICT);
        else if (way == 1)
            failed = syscall(SYS_seccomp, SECCOMP_SET_MODE_STRICT, 0, NULL);
        else
            failed = syscall(SYS_prctl, PR_SET_SECCOMP, SECCOMP_MODE_STRICT, 0, 0, 0);
        if (failed) _exit(9);
        for (int i = 0; i < 300; i++) free(kept[i]);
        allocate();
        write(1, "fine\n", 5);
        syscall(SYS_exit, 3);
    }
    int status;
    waitpid(child, &status, 0);
    return WIFEXITED(status) ? WEXITSTATUS(status) : 100 + WTERMSIG(status);
}

int main(void)
{
    setvbuf(stdout, NULL, _IONBF, 0);
    // glibc is not to ask the system for memory in between, nor to give any back.
    mallopt(M_TOP_PAD, 16 << 20);
    mallopt(M_TRIM_THRESHOLD, 1 << 30);
    allocate();
    for (int way = 0; way < 3; way++) printf("%d\n", run(way));
    return 0;
}
