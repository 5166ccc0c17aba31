// guards: a thread made by clone with a small block for thread-local variables of its own may set its alternate signal stack
// modes: idle, 1024
#define _GNU_SOURCE
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

enum { PAGE = 4096, STACK = 1 << 16 };

static char stack[STACK] __attribute__((aligned(64))), alternate[1 << 15];
static volatile int result = -1;

static int thread(void *unused)
{
    (void)unused;
    stack_t new = {.ss_sp = alternate, .ss_size = sizeof alternate};
    result = sigaltstack(&new, NULL) != 0;
    syscall(SYS_exit, 0);
    return 0;
}

int main(void)
{
    // Nothing before the block is accessible, and it has no table of modules.
    char *pages = mmap(NULL, 3 * PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (pages == MAP_FAILED || mprotect(pages, PAGE, PROT_NONE))
        return 2;
    char *block = pages + PAGE;
#ifdef __x86_64__
    // The block's own address, at the places where compilers and the C library look for it.
    memcpy(block, &block, sizeof block);
    memcpy(block + 16, &block, sizeof block);
#endif
    int flags = CLONE_VM | CLONE_FS | CLONE_FILES | CLONE_SIGHAND | CLONE_THREAD | CLONE_SYSVSEM | CLONE_SETTLS;
    if (clone(thread, stack + STACK - 64, flags, NULL, NULL, block, NULL) < 0)
        return 3;
    while (result < 0)
        usleep(1000);
    puts(result ? "failed" : "ok");
    return result;
}
