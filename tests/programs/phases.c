// Memory that comes and goes. Says "ready"; at a line of input it touches memory in two functions and
// says "grown"; at the next it frees what one of them touched and says "shrunk"; at the end of its input
// it ends.
#define _GNU_SOURCE
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>

#define SITE __attribute__((noinline, noclone))
#define MIB (1L << 20)

static char *map(long bytes) {
    char *at = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (at == MAP_FAILED) return NULL;
    // Keeps the kernel from merging it with a neighbour.
    madvise(at, bytes, MADV_NOHUGEPAGE);
    return at;
}

SITE int touch_kept(char *at) {
    memset(at, 1, 64 * MIB);
    return at[1];
}

SITE int touch_peak(char *at) {
    memset(at, 1, 192 * MIB);
    return at[1];
}

static void await_line(const char *said) {
    char line[64];
    puts(said);
    fflush(stdout);
    if (!fgets(line, sizeof line, stdin)) line[0] = 0;
}

int main(void) {
    char *kept = map(64 * MIB), *peak = map(192 * MIB);
    if (!kept || !peak) return 1;
    await_line("ready");
    int sum = touch_kept(kept) + touch_peak(peak);
    await_line("grown");
    munmap(peak, 192 * MIB);
    await_line("shrunk");
    return sum != 2;
}
