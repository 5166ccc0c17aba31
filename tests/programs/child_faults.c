/* Forks children that end at once, and prints how many page faults a child and the parent take for each: the
   median of the children's, and the parent's mean. */
#include <stdio.h>
#include <stdlib.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

enum { CHILDREN = 101 };

static int ascending(const void *a, const void *b)
{
    const long *x = a, *y = b;
    return (*x > *y) - (*x < *y);
}

int main(void)
{
    static long faults[CHILDREN];
    for (int i = 0; i < 1000; i++)
        free(malloc(100 + i));
    struct rusage before, after, child;
    getrusage(RUSAGE_SELF, &before);
    for (int i = 0; i < CHILDREN; i++) {
        pid_t pid = fork();
        if (pid == 0)
            _exit(0);
        if (pid < 0 || wait4(pid, NULL, 0, &child) != pid)
            return 1;
        faults[i] = child.ru_minflt;
    }
    getrusage(RUSAGE_SELF, &after);
    qsort(faults, CHILDREN, sizeof faults[0], ascending);
    printf("%ld %ld\n", faults[CHILDREN / 2], (after.ru_minflt - before.ru_minflt) / CHILDREN);
    return 0;
}
