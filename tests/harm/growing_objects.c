// guards: a large object that grows needs the memory of one, keeps its contents, and stays sparse
// seconds: 180
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MIB = 1 << 20, FINAL = 160 * MIB, STEP = MIB, SPARSE = 512 * MIB };

// Peak of this program alone: getrusage also counts the memory of whoever started it.
static long peak_mib(void)
{
    char line[256];
    long kib = -1;
    FILE *status = fopen("/proc/self/status", "r");
    while (status && fgets(line, sizeof line, status))
        if (sscanf(line, "VmHWM: %ld", &kib) == 1)
            break;
    if (status)
        fclose(status);
    return kib < 0 ? 1 << 20 : kib >> 10;
}

static int sparse_stays_sparse(void)
{
    char *p = malloc(SPARSE);
    for (size_t at = 0; p && at < SPARSE; at += MIB)
        p[at] = (char)(at / MIB + 1);
    for (size_t size = SPARSE; p && size <= 2ul * SPARSE; size += SPARSE / 2)
        p = realloc(p, size);
    if (!p)
        return 0;
    int good = 1;
    for (size_t at = 0; at < SPARSE; at += MIB)
        good &= p[at] == (char)(at / MIB + 1) && p[at + 5000] == 0;
    free(p);
    if (peak_mib() >= 60)
        fprintf(stderr, "a sparse object takes %ld MiB\n", peak_mib());
    return good && peak_mib() < 60;
}

static int grows_within_its_size(void)
{
    unsigned *p = NULL;
    for (size_t size = STEP; size <= FINAL; size += STEP) {
        p = realloc(p, size);
        if (!p)
            return 0;
        for (size_t at = size - STEP; at < size; at += sizeof *p)
            p[at / sizeof *p] = (unsigned)(at * 2654435761u);
        // Something behind it, so that it has to move.
        void *next = malloc(300000);
        if (!next)
            return 0;
    }
    int good = 1;
    for (size_t at = 0; at < FINAL; at += sizeof *p)
        good &= p[at / sizeof *p] == (unsigned)(at * 2654435761u);
    free(p);
    if (peak_mib() >= FINAL / MIB + 30)
        fprintf(stderr, "a growing object takes %ld MiB\n", peak_mib());
    return good && peak_mib() < FINAL / MIB + 30;
}

int main(void)
{
    int sparse = sparse_stays_sparse();
    int grows = grows_within_its_size();
    printf("sparse %d, grows %d\n", sparse, grows);
    return !(sparse && grows);
}
