// guards: a sparse object that grows in many steps is not read in each
#include <stdio.h>
#include <stdlib.h>
#include <sys/resource.h>

enum { MIB = 1 << 20 };

static long faults(void)
{
    struct rusage usage;
    getrusage(RUSAGE_SELF, &usage);
    return usage.ru_minflt;
}

// Reading a page that was never written to takes a fault: a million to copy 4 GiB, 16,384 to copy the
// first step.
static int sparse_grows_without_being_read(void)
{
    enum { STEPS = 64 };
    const size_t step = 64ul * MIB;
    char *p = NULL;
    long before = faults();
    for (size_t n = 1; n <= STEPS; n++) {
        p = realloc(p, n * step);
        if (!p)
            return 0;
        p[n * step - 1] = (char)n;
    }
    long taken = faults() - before;
    int good = 1;
    for (size_t n = 1; n <= STEPS; n++)
        good &= p[n * step - 1] == (char)n;
    free(p);
    if (taken > 8000)
        fprintf(stderr, "%ld faults\n", taken);
    return good && taken <= 8000;
}

int main(void)
{
    int good = sparse_grows_without_being_read();
    puts(good ? "ok" : "its pages were read");
    return !good;
}
