// Uses what glibc's libc_malloc_debug.so offers, and what its checks would find.
#pragma once
#include <malloc.h>
#include <mcheck.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

// Bytes behind an object's request are its owner's, as far as malloc_usable_size says.
static int keeps_all_bytes(size_t bytes) {
    unsigned char *p = malloc(bytes);
    size_t usable = malloc_usable_size(p);
    if (usable < bytes || usable > 2 * bytes + 8192) return 0;
    memset(p, 0x5a, usable);
    p = realloc(p, usable + 100);
    int kept = 1;
    for (size_t i = 0; i < usable; i++) kept &= p[i] == 0x5a;
    free(p);
    return kept;
}

static int traced(void) {
    char name[64], line[256];
    snprintf(name, sizeof name, "malloc_debug.%d", (int)getpid());
    setenv("MALLOC_TRACE", name, 1);
    mtrace();
    for (int i = 0; i < 100; i++) free(malloc(i * 10));
    muntrace();
    int found = 0;
    FILE *trace = fopen(name, "r");
    while (trace && fgets(line, sizeof line, trace)) found += strstr(line, " + 0x") != NULL;
    if (trace) fclose(trace);
    unlink(name);
    return found;
}

int main(void) {
    int kept = 0;
    for (size_t bytes = 1; bytes < 300000; bytes += bytes / 3 + 1) kept += keeps_all_bytes(bytes);
    printf("kept %d\n", kept);
    void *aligned = NULL;
    int failed = posix_memalign(&aligned, 4096, 5000);
    printf("aligned %d %d\n", failed, (int)((uintptr_t)aligned % 4096));
    free(aligned);
    printf("traced %d\n", traced());
    printf("checks %d\n", mcheck(NULL));
    void *probed = malloc(10);
    printf("probed %d\n", mprobe(probed));
    free(probed);
    struct mallinfo2 statistics = mallinfo2();
    printf("in use %d\n", statistics.uordblks > 0);
    return 0;
}
