// Allocates 100 objects of 100 bytes, sends itself SIGUSR2, and lives on; with "fork", so does a
// child. With "free", says whether the signal has a handler.
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

static void *volatile kept[100];

__attribute__((noinline)) static void allocate(void)
{
    for (int i = 0; i < 100; i++) kept[i] = malloc(100);
}

int main(int count, char **arguments)
{
    struct sigaction action;
    allocate();
    if (count > 1 && !strcmp(arguments[1], "free")) {
        sigaction(SIGUSR2, NULL, &action);
        printf("handler %d\n", action.sa_handler != SIG_DFL);
        printf("before %d\n", signal(SIGUSR2, SIG_IGN) != SIG_DFL);
    }
    raise(SIGUSR2);
    raise(SIGUSR2);
    if (count > 1 && !strcmp(arguments[1], "fork")) {
        fflush(stdout);
        if (fork() == 0) {
            allocate();
            raise(SIGUSR2);
            raise(SIGUSR2);
            puts("child");
            return 0;
        }
        int status = 0;
        wait(&status);
        printf("its status %d\n", status);
    }
    puts("alive");
    return 0;
}
