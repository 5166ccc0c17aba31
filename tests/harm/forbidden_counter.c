// guards: programs and their children that may not read the cycle counter (PR_SET_TSC)
#include <malloc.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

static void churn(void)
{
    static void *slots[1000];
    for (int round = 0; round < 300; round++) {
        for (int i = 0; i < 1000; i++)
            slots[i] = malloc((i * 37 + round) % 5000 + 1);
        for (int i = 0; i < 1000; i++)
            free(slots[i]);
    }
    for (int i = 0; i < 50; i++) {
        char *large = malloc(3 << 20);
        memset(large, 1, 3 << 20);
        free(large);
    }
    malloc_trim(0);
}

int main(void)
{
#ifdef PR_SET_TSC
    prctl(PR_SET_TSC, PR_TSC_SIGSEGV);
#endif
    churn();
    pid_t child = fork();
    if (!child) {
        churn();
        _exit(7);
    }
    int status = 0;
    waitpid(child, &status, 0);
    int good = WIFEXITED(status) && WEXITSTATUS(status) == 7;
    printf("%s\n", good ? "ok" : "the child did not end well");
    return !good;
}
