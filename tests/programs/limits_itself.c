// limits_itself RESOURCE WHO: allocates, limits itself to 200 MB and allocates until nothing is left. Prints how many MB
// it got, or why it got none. RESOURCE is "as" or "data"; WHO is "self", or "child" for a child of a system call that no
// fork handler sees.
#define _GNU_SOURCE
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

static void allocate(void) {
    for (int i = 0; i < 3000; i++) {
        void *volatile object = malloc(i);
        free(object);
    }
}

static int limit_and_allocate(int resource) {
    struct rlimit limit = {200 << 20, 200 << 20};
    if (setrlimit(resource, &limit))
        return 2;
    if (mmap(0, 1 << 20, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0) == MAP_FAILED) {
        puts("no mapping");
        return 3;
    }
    long mb = 0;
    for (char *object; (object = malloc(1 << 20)); mb++)
        object[0] = 1;
    printf("%ld\n", mb);
    fflush(stdout);
    return 0;
}

int main(int argc, char **argv) {
    if (argc < 3)
        return 2;
    int resource = strcmp(argv[1], "as") ? RLIMIT_DATA : RLIMIT_AS;
    allocate();
    if (!strcmp(argv[2], "self"))
        return limit_and_allocate(resource);
    long child = syscall(SYS_clone, SIGCHLD, 0, 0, 0, 0);
    if (child == 0) {
        allocate();
        _exit(limit_and_allocate(resource));
    }
    int status = 0;
    return waitpid(child, &status, 0) == child && WIFEXITED(status) ? WEXITSTATUS(status) : 4;
}
