// Allocates and frees for a fixed amount of work, and prints the CPU time that it took in µs: `toil ROUNDS`. Of 256
// objects of 16 to 271 bytes, one is replaced in each round; what is done with it takes some hundred instructions.
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>

#define SITE __attribute__((noinline, noclone))

static unsigned char *slots[256];

SITE static unsigned char *site_toil(unsigned long bytes) {
    unsigned char *volatile p = malloc(bytes);
    if (!p) abort();
    return p;
}

SITE static unsigned long work(unsigned char *p, unsigned long bytes) {
    unsigned long sum = 0;
    memset(p, 1, bytes);
    for (int i = 0; i < 64; i++) sum = sum * 31 + p[i % 16];
    return sum;
}

static long microseconds(struct timeval time) {
    return time.tv_sec * 1000000 + time.tv_usec;
}

int main(int count, char **arguments) {
    unsigned long random = 88172645463325252ul, sum = 0;
    struct rusage usage;
    if (count != 2) return 2;
    for (long i = atol(arguments[1]); i > 0; i--) {
        random ^= random << 13, random ^= random >> 7, random ^= random << 17;
        unsigned slot = random & 255;
        unsigned long bytes = 16 + (random >> 8 & 255);
        free(slots[slot]);
        slots[slot] = site_toil(bytes);
        sum += work(slots[slot], bytes);
    }
    __asm__ volatile("" : "+r"(sum));
    getrusage(RUSAGE_SELF, &usage);
    printf("%ld\n", microseconds(usage.ru_utime) + microseconds(usage.ru_stime));
    return 0;
}
