// forked_children N: forks N children, one after the other, which allocate 1 MB and end by _exit. Prints their pids.
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

int main(int argc, char **argv) {
    int count = argc > 1 ? atoi(argv[1]) : 1;
    for (int i = 0; i < count; i++) {
        pid_t child = fork();
        if (child == 0) {
            for (int k = 0; k < 1000; k++) memset(malloc(1000), 1, 1000);
            _exit(0);
        }
        if (child < 0 || waitpid(child, NULL, 0) != child) return 1;
        printf("%d\n", child);
    }
    return 0;
}
