// ends_children COUNT exit|quick|kill: forks as many children one after another as a server does for its requests;
// each allocates 1 MB in pieces, then ends at once. Prints "done". With "quick", all end by quick_exit, the parent too.
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

int main(int argc, char **argv) {
    if (argc < 3) return 2;
    for (int left = atoi(argv[1]); left > 0; left--) {
        pid_t child = fork();
        if (child < 0) return 3;
        if (child == 0) {
            static char *volatile pieces[500];
            for (int i = 0; i < 500; i++) memset(pieces[i] = malloc(2000), 1, 2000);
            if (!strcmp(argv[2], "kill")) raise(SIGKILL);
            if (!strcmp(argv[2], "quick")) quick_exit(0);
            _exit(0);
        }
        int status;
        if (waitpid(child, &status, 0) != child) return 4;
        int expected = strcmp(argv[2], "kill") ? 0 : SIGKILL;
        if (status != expected) return 5;
    }
    puts("done");
    fflush(stdout);
    if (!strcmp(argv[2], "quick")) quick_exit(0);
}
