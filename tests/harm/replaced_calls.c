// guards: prctl, syscall and dlsym of a library that is preloaded after the agent
// preload: replaced_calls_lib.c after
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <stdio.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <unistd.h>

int main(void)
{
    printf("syscall %d\n", syscall(SYS_getppid) == 4242);
    printf("with six arguments %ld\n", syscall(SYS_getpid, 1L, 2L, 3L, 4L, 5L, 6L));
    printf("the kernel's %d\n", syscall(SYS_gettid) == gettid());
    errno = 0;
    long failed = syscall(SYS_close, -1);
    printf("a failing one %ld %d\n", failed, errno == EBADF);
    printf("prctl %d %d\n", prctl(12345), prctl(54321, 1L, 2L, 3L, 4L));
    int (*found)(void) = dlsym(RTLD_DEFAULT, "getppid");
    printf("dlsym %d\n", found());
    void *self = dlopen(NULL, RTLD_NOW);
    found = dlvsym(self, "getppid", "any");
    printf("dlvsym %d\n", found ? found() : -1);
    return 0;
}
