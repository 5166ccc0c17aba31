// A child of vfork limits its own memory and executes a program. Prints the KiB that its parent has mapped once it
// has allocated and freed large objects, before and after that.
#define _GNU_SOURCE
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

static long mapped_kib(void) {
    long pages = 0;
    FILE *file = fopen("/proc/self/statm", "r");
    if (!file || fscanf(file, "%ld", &pages) != 1)
        exit(2);
    fclose(file);
    return pages * (sysconf(_SC_PAGESIZE) / 1024);
}

static long churn(void) {
    for (int i = 0; i < 300; i++) {
        size_t bytes = 9000000 + i % 7 * 1000000;
        char *object = malloc(bytes);
        memset(object, 1, bytes);
        free(object);
    }
    char *growing = 0;
    for (size_t bytes = 1 << 20; bytes < 64 << 20; bytes += 1 << 20) {
        growing = realloc(growing, bytes);
        growing[bytes - 1] = 1;
    }
    free(growing);
    return mapped_kib();
}

int main(void) {
    churn();
    long before = churn();
    pid_t child = vfork();
    if (child == 0) {
        struct rlimit limit = {200 << 20, 200 << 20};
        setrlimit(RLIMIT_AS, &limit);
        prlimit(0, RLIMIT_DATA, &limit, 0);
        execl("/bin/true", "true", (char *)0);
        _exit(1);
    }
    int status;
    waitpid(child, &status, 0);
    printf("%ld %ld\n", before, churn());
    return 0;
}
