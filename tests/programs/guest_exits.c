// guest_exits FILE vfork|clone: a child in this process's memory calls exit(). Then prints "ready", and
// allocates until there is FILE. Ends by itself after a minute.
#define _GNU_SOURCE
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

static int leave(void *unused) {
    (void)unused;
    exit(3);
}

int main(int argc, char **argv) {
    if (argc < 3) return 2;
    pid_t child;
    if (!strcmp(argv[2], "vfork")) {
        child = vfork();
        if (child == 0) exit(3);
    } else {
        size_t bytes = 1 << 18;
        char *stack = mmap(0, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        child = clone(leave, stack + bytes, CLONE_VM | SIGCHLD, 0);
    }
    int status;
    if (waitpid(child, &status, 0) != child || WEXITSTATUS(status) != 3) return 4;
    // The child has closed the streams' buffers, which are ours.
    if (write(1, "ready\n", 6) != 6) return 5;
    for (int hundredth = 0; access(argv[1], F_OK); hundredth++) {
        if (hundredth == 6000) _exit(6);
        for (int i = 0; i < 100; i++) {
            char *volatile piece = malloc(1000);
            memset(piece, 1, 1000);
            free(piece);
        }
        usleep(10000);
    }
    _exit(0);
}
