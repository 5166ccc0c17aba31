// guards: large objects that are made read-only and sealed (mseal, Linux 6.10) before they are freed
#include <malloc.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

enum { SYS_MSEAL = 462, PAGE = 65536 };

// Returns 0 if objects of a size are usable after one was freed whose pages cannot be changed any more.
static int try(size_t bytes)
{
    char *sealed = memalign(PAGE, bytes);
    memset(sealed, 7, bytes);
    mprotect(sealed, bytes, PROT_READ);
    // An older kernel has no such call: the pages remain read-only.
    syscall(SYS_MSEAL, sealed, bytes, 0L);
    free(sealed);
    for (int i = 0; i < 100; i++) {
        char *plain = malloc(bytes - 100);
        memset(plain, 1, bytes - 100);
        free(plain);
        char *zeroed = calloc(1, bytes / 2);
        for (size_t at = 0; at < bytes / 2; at += 64)
            if (zeroed[at])
                return 1;
        zeroed[bytes / 2 - 1] = 3;
        free(zeroed);
    }
    void *small[500];
    for (int i = 0; i < 500; i++) {
        small[i] = malloc(20000);
        memset(small[i], 1, 20000);
    }
    for (int i = 0; i < 500; i++)
        free(small[i]);
    malloc_trim(0);
    return 0;
}

int main(void)
{
    int bad = try(256 << 10);
    bad += try(4 << 20);
    bad += try(40 << 20);
    printf("%d bad\n", bad);
    return bad != 0;
}
