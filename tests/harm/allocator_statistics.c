// guards: for a program that reads jemalloc's statistics, they stay true while large objects come, grow and go
// modes: idle
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

enum { MIB = 1 << 20 };

typedef int control(const char *, void *, size_t *, void *, size_t);

static size_t read_statistic(control *mallctl, const char *name)
{
    uint64_t epoch = 1;
    size_t value = 0, bytes = sizeof epoch;
    mallctl("epoch", &epoch, &bytes, &epoch, sizeof epoch);
    bytes = sizeof value;
    return mallctl(name, &value, &bytes, NULL, 0) ? 0 : value;
}

int main(void)
{
    control *mallctl = (control *)dlsym(RTLD_DEFAULT, "mallctl");
    for (int i = 0; i < 200; i++) {
        char *large = malloc(50 * MIB), *other = malloc(3 * MIB);
        large = realloc(large, 80 * MIB);
        large[5] = other[5] = 1;
        large = realloc(large, 2 * MIB);
        free(large);
        free(other);
    }
    // Without jemalloc there is nothing to read.
    size_t mapped = mallctl ? read_statistic(mallctl, "stats.mapped") : 0;
    size_t active = mallctl ? read_statistic(mallctl, "stats.active") : 0;
    int good = mapped < 400ul * MIB && active < 100ul * MIB;
    if (!good)
        fprintf(stderr, "mapped %zu, active %zu\n", mapped, active);
    puts(good ? "ok" : "untrue");
    return !good;
}
