// guards: errno after free, and after requests that succeed, where the system refuses what the allocator requests
// seconds: 180
#include <errno.h>
#include <malloc.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

enum { KIB = 1 << 10, MIB = 1 << 20, MARK = 77, SMALL = 20000 };

static int failures, is_scarce;

static void check(const char *call, const char *when, size_t bytes)
{
    if (errno == MARK)
        return;
    fprintf(stderr, "%s of %zu bytes, %s: errno %d\n", call, bytes, when, errno);
    failures++;
    errno = MARK;
}

static void give_up(void *p, const char *when, size_t bytes)
{
    errno = MARK;
    free(p);
    check("free", when, bytes);
}

// A request. One that is refused sets errno, and where mappings are scarce glibc may first try in vain.
static void *take(int kind, const char *when, size_t bytes)
{
    void *p = NULL;
    errno = MARK;
    switch (kind % 4) {
    case 0: p = malloc(bytes); break;
    case 1: p = calloc(1, bytes); break;
    case 2: p = memalign(64, bytes); break;
    case 3: p = realloc(realloc(NULL, bytes / 2), bytes); break;
    }
    if (p && !is_scarce)
        check("a request", when, bytes);
    return p;
}

static void use(const char *when, int locks)
{
    static void *small[SMALL];
    int kind = 0;
    for (int round = 0; round < 8; round++)
        for (size_t bytes = 16; bytes <= 64 * MIB; bytes *= 4) {
            char *p = take(kind++, when, bytes);
            if (!p)
                continue;
            memset(p, 1, bytes < 64 * KIB ? bytes : 64 * KIB);
            if (locks)
                mlock(p, bytes < 16 * KIB ? bytes : 16 * KIB);
            give_up(p, when, bytes);
        }
    for (int i = 0; i < SMALL; i++) {
        small[i] = take(i, when, 3000 + i % 5000);
        if (small[i] && locks && i % 100 == 0)
            mlock(small[i], 100);
    }
    for (int i = 0; i < SMALL; i++)
        give_up(small[i], when, 3000 + i % 5000);
}

static void *in_a_thread(void *unused)
{
    use("in another thread", 0);
    return unused;
}

// As many mappings as the kernel allows a process, but for a few.
static void with_many_mappings(void)
{
    enum { PAGE = 64 * KIB };
    size_t bytes = 140000UL * PAGE;
    int flags = MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE;
    char *base = mmap(NULL, bytes, PROT_NONE, flags, -1, 0);
    if (base == MAP_FAILED)
        return;
    for (size_t at = 0; at < bytes; at += 2 * PAGE)
        if (mprotect(base + at, PAGE, PROT_READ))
            break;
    is_scarce = 1;
    use("with many mappings", 0);
    use("with many mappings, locked", 1);
    munmap(base, bytes);
}

int main(void)
{
    pthread_t thread;
    use("at first", 0);
    use("locked", 1);
    pthread_create(&thread, NULL, in_a_thread, NULL);
    pthread_join(thread, NULL);
    if (!mlockall(MCL_CURRENT | MCL_FUTURE)) {
        use("with all memory locked", 0);
        munlockall();
    }
    with_many_mappings();
    puts(failures ? "errno was changed" : "ok");
    return failures != 0;
}
