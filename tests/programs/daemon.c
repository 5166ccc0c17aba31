// daemon FILE: the parent ends at once; its child writes its pid to FILE.pid, waits without an allocation
// until there is FILE.go, then allocates until there is FILE.end. Ends by itself after a minute.
// daemon FILE late: the parent ends once the child has allocated.
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static char works[4096], go[4096], end[4096], pid[4096];

__attribute__((noinline)) static void work(void) {
    for (int i = 0; i < 100; i++) {
        char *volatile piece = malloc(1000);
        memset(piece, 1, 1000);
        free(piece);
    }
}

int main(int argc, char **argv) {
    if (argc < 2) return 2;
    snprintf(go, sizeof go, "%s.go", argv[1]);
    snprintf(end, sizeof end, "%s.end", argv[1]);
    snprintf(works, sizeof works, "%s.works", argv[1]);
    snprintf(pid, sizeof pid, "%s.pid", argv[1]);
    for (int i = 0; i < 10; i++) work();
    pid_t child = fork();
    if (child < 0) return 3;
    if (child) {
        char text[16];
        int length = snprintf(text, sizeof text, "%d\n", child);
        int file = open(pid, O_CREAT | O_WRONLY, 0600);
        if (write(file, text, length) != length) return 4;
        while (argc > 2 && access(works, F_OK)) usleep(1000);
        return 0;
    }
    setsid();
    // Who waits for the end of our output waits for the parent only.
    for (int file = 0; file < 3; file++) close(file);
    for (int hundredth = 0; access(go, F_OK); hundredth++) {
        if (hundredth == 6000) return 5;
        usleep(10000);
    }
    for (int hundredth = 0; access(end, F_OK); hundredth++) {
        if (hundredth == 6000) return 6;
        work();
        if (hundredth == 0) close(open(works, O_CREAT | O_WRONLY, 0600));
        usleep(10000);
    }
}
