// Forks children that work for a moment, one after another, and then says what CPU time it and all
// of them took: "cpu NANOSECONDS".

#include <stdio.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

static volatile unsigned sink;

static long used(int whose) {
    struct rusage usage;
    getrusage(whose, &usage);
    long seconds = usage.ru_utime.tv_sec + usage.ru_stime.tv_sec;
    return seconds * 1000000000L + (usage.ru_utime.tv_usec + usage.ru_stime.tv_usec) * 1000L;
}

int main(void) {
    for (int turn = 0; turn < 1500; turn++) {
        pid_t child = fork();
        if (child < 0)
            return 1;
        if (child == 0) {
            for (int i = 0; i < 150000; i++)
                sink = sink * 3 + 1;
            _exit(0);
        }
        waitpid(child, NULL, 0);
    }
    printf("cpu %ld\n", used(RUSAGE_SELF) + used(RUSAGE_CHILDREN));
    return 0;
}
