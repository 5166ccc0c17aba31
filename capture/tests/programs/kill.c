// Preloaded into a process that captures: kills it at its DIE_AT-th request to the target, just
// before (DIE_HOW=before) or just after it. Without DIE_AT, prints the number of requests.
#define _GNU_SOURCE
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>

static int count;

static void die(int before) {
    const char *at = getenv("DIE_AT"), *how = getenv("DIE_HOW");
    if (!at || !how) return;
    int n = before ? ++count : count;
    if (n == atoi(at) && !strcmp(how, before ? "before" : "after")) kill(getpid(), SIGKILL);
}

long ptrace(unsigned request, ...) {
    va_list l;
    va_start(l, request);
    long pid = va_arg(l, int);
    void *address = va_arg(l, void *), *data = va_arg(l, void *);
    va_end(l);
    die(1);
    long r = syscall(SYS_ptrace, (long)request, pid, address, data);
    die(0);
    return r;
}

ssize_t process_vm_writev(pid_t p, const struct iovec *a, unsigned long an, const struct iovec *b, unsigned long bn, unsigned long f) {
    die(1);
    long r = syscall(SYS_process_vm_writev, p, a, an, b, bn, f);
    die(0);
    return r;
}
