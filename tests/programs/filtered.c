// filtered WAY COMMAND...: executes a command under two seccomp filters. WAY: "allow", with a container's
// habit of refusing perf events; "kill", for which a process that makes a timer is killed as well;
// "refuse", for which it gets none.
#include <errno.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <unistd.h>

static int install(int call, unsigned action) {
    struct sock_filter code[] = {
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, call, 0, 1),
        BPF_STMT(BPF_RET | BPF_K, action),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
    };
    struct sock_fprog filter = {sizeof code / sizeof *code, code};
    return prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &filter);
}

int main(int count, char **arguments) {
    if (count < 3 || prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)) return 2;
    unsigned action = !strcmp(arguments[1], "kill")     ? SECCOMP_RET_KILL_PROCESS
                      : !strcmp(arguments[1], "refuse") ? SECCOMP_RET_ERRNO | EPERM
                                                        : SECCOMP_RET_ALLOW;
    if (install(__NR_perf_event_open, SECCOMP_RET_ERRNO | EPERM) ||
        install(__NR_timer_create, action)) {
        perror("filtered");
        return 2;
    }
    execvp(arguments[2], arguments + 2);
    perror(arguments[2]);
    return 2;
}
