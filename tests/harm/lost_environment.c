// guards: a forked child does not read an environment whose strings are gone: `putenv` by a library that was unloaded
#define _GNU_SOURCE
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

enum { PAGE = 4096 };
// The kernel chooses it for no other mapping.
static const uintptr_t UNUSED_ADDRESS = 1 << 28;

static void allocate(void) {
    for (int i = 0; i < 3000; i++) {
        char *p = malloc(100 + i);
        memset(p, 1, 100);
        free(p);
    }
}

int main(void) {
    const int flags = MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED_NOREPLACE;
    char *text = mmap((void *)UNUSED_ADDRESS, PAGE, PROT_READ | PROT_WRITE, flags, -1, 0);
    if (text == MAP_FAILED) return 2;
    strcpy(text, "OF_A_LIBRARY=1");
    clearenv();
    putenv(text);
    munmap(text, PAGE);
    int failed = 0;
    for (int i = 0; i < 5; i++) {
        allocate();
        pid_t child = fork();
        if (child == 0) {
            allocate();
            _exit(0);
        }
        int status;
        failed += waitpid(child, &status, 0) != child || status != 0;
    }
    clearenv();
    printf("%d of 5 children failed\n", failed);
    return failed != 0;
}
