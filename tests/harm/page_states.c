// guards: memory of a freed large object comes back without what its owner did to the pages: advice, protection, locks, mappings over them
// seconds: 300
#define _GNU_SOURCE
#include <fcntl.h>
#include <linux/mempolicy.h>
#include <malloc.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

// From Linux 6.13 and 5.7 on; not in all headers.
enum { GUARD_INSTALL = 102, DONT_UNMAP = 4 };
enum { KIB = 1 << 10, MIB = 1 << 20, MOST = 4, FILE_BYTES = 64 * KIB };

static size_t page;
static int file;
// True if the system gives huge pages to every mapping: an allocator may then refuse them for its own.
static int has_huge_pages;

// Part of an object: whole pages within it.
struct part {
    char *at;
    size_t bytes;
};

static struct part inside(char *object, size_t bytes)
{
    uintptr_t first = ((uintptr_t)object + page - 1) / page * page;
    uintptr_t end = ((uintptr_t)object + bytes) / page * page;
    return (struct part){(char *)first, end - first};
}

static int advise(struct part p, int advice) { return madvise(p.at, p.bytes, advice); }

static int over(struct part p, int protection, int flags, int fd)
{
    size_t bytes = p.bytes < FILE_BYTES ? p.bytes : FILE_BYTES;
    return mmap(p.at, bytes, protection, flags | MAP_FIXED, fd, 0) == MAP_FAILED;
}

static int bind_memory(struct part p)
{
    unsigned long nodes = 1;
    return (int)syscall(SYS_mbind, p.at, p.bytes, MPOL_BIND, &nodes, 8 * sizeof nodes, 0);
}

enum state {
    DONT_FORK, WIPE_ON_FORK, MERGEABLE, HUGE, NO_HUGE, SEQUENTIAL, RANDOM, DONT_DUMP,
    READ_ONLY, NO_ACCESS, GUARDED, LOCKED, NUMA, FILE_OVER, SHARED_OVER, MOVED_AWAY, HOLE, STATES
};

static const char *const names[STATES] = {
    "dontfork", "wipeonfork", "mergeable", "hugepage", "nohugepage", "sequential", "random", "dontdump",
    "read-only", "no access", "guard pages", "locked", "mbind", "a file over it", "shared memory over it",
    "moved away", "a hole"
};

// Returns 0 if the kernel did it.
static int apply(enum state state, struct part p)
{
    struct part first = {p.at, page};
    switch (state) {
    case DONT_FORK: return advise(p, MADV_DONTFORK);
    case WIPE_ON_FORK: return advise(p, MADV_WIPEONFORK);
    case MERGEABLE: return advise(p, MADV_MERGEABLE);
    case HUGE: return advise(p, MADV_HUGEPAGE);
    case NO_HUGE: return advise(p, MADV_NOHUGEPAGE);
    case SEQUENTIAL: return advise(p, MADV_SEQUENTIAL);
    case RANDOM: return advise(p, MADV_RANDOM);
    case DONT_DUMP: return advise(p, MADV_DONTDUMP);
    case READ_ONLY: return mprotect(p.at, p.bytes, PROT_READ);
    case NO_ACCESS: return mprotect(p.at, p.bytes, PROT_NONE);
    case GUARDED: return advise(p, GUARD_INSTALL);
    case LOCKED: return mlock(first.at, first.bytes);
    case NUMA: return bind_memory(p);
    case FILE_OVER: return over(p, PROT_READ | PROT_WRITE, MAP_SHARED, file);
    case SHARED_OVER: return over(p, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1);
    case MOVED_AWAY: return mremap(p.at, p.bytes, p.bytes, MREMAP_MAYMOVE | DONT_UNMAP, NULL) == MAP_FAILED;
    case HOLE: return munmap(first.at, first.bytes);
    default: return -1;
    }
}

// Flags of mappings, as in the kernel's smaps, that no new memory has.
static int flags_are_default(char *object, size_t bytes)
{
    static const char *const set[] = {"dc", "wf", "mg", "hg", "sr", "rr", "dd", "lo", "sh", "um"};
    char line[512];
    int is_within = 0, good = 1;
    FILE *maps = fopen("/proc/self/smaps", "r");
    while (maps && fgets(line, sizeof line, maps)) {
        uintptr_t start, end;
        if (sscanf(line, "%lx-%lx ", &start, &end) == 2)
            is_within = start < (uintptr_t)object + bytes && end > (uintptr_t)object;
        if (!is_within || strncmp(line, "VmFlags:", 8))
            continue;
        for (size_t i = 0; i < sizeof set / sizeof *set; i++) {
            char word[8];
            snprintf(word, sizeof word, " %s ", set[i]);
            good &= !strstr(line, word);
        }
        good &= has_huge_pages || !strstr(line, " nh ");
    }
    if (maps)
        fclose(maps);
    return good && maps;
}

static int huge_pages_are_given(void)
{
    char text[128] = "";
    int setting = open("/sys/kernel/mm/transparent_hugepage/enabled", O_RDONLY);
    int is_read = setting >= 0 && read(setting, text, sizeof text - 1) > 0;
    close(setting);
    return is_read && strstr(text, "[always]");
}

static int policy_is_default(char *object)
{
    int mode = 0;
    return syscall(SYS_get_mempolicy, &mode, NULL, 0, object, MPOL_F_ADDR) != 0 || mode == MPOL_DEFAULT;
}

static int file_is_untouched(void)
{
    static char text[FILE_BYTES];
    if (pread(file, text, sizeof text, 0) != sizeof text)
        return 0;
    for (size_t at = 0; at < sizeof text; at++)
        if (text[at] != 'f')
            return 0;
    return 1;
}

// Where an object is touched next: in each page of its beginning, in few of the rest.
static size_t next(size_t at)
{
    return at + (at < 512 * KIB ? KIB : 128 * KIB + 4 * KIB);
}

static void fill(char *object, size_t bytes)
{
    for (size_t at = 0; at < bytes; at = next(at))
        object[at] = (char)(at / KIB + 1);
}

// Writes to an object, and has a forked child read it.
static int is_like_new(char *object, size_t bytes, enum state state)
{
    fill(object, bytes);
    pid_t child = fork();
    if (!child) {
        for (size_t at = 0; at < bytes; at = next(at))
            if (object[at] != (char)(at / KIB + 1))
                _exit(1);
        _exit(0);
    }
    int status = -1;
    waitpid(child, &status, 0);
    return status == 0 && flags_are_default(object, bytes) && policy_is_default(object + bytes / 2)
        && (state != FILE_OVER || file_is_untouched());
}

struct way {
    const char *name;
    size_t bytes, alignment;
    int count, rounds;
    // Not 0: the objects are made so small, in place, before they are freed.
    size_t shrunk;
};

static const struct way ways[] = {
    {"200 KiB", 200 * KIB, 0, MOST, 1},
    {"1 MiB", MIB, 0, MOST, 1},
    {"1 MiB, aligned", MIB, 4 * KIB, MOST, 1},
    {"64 KiB, aligned to 1 MiB", 64 * KIB, MIB, MOST, 1},
    {"5 MiB", 5 * MIB, 0, 2, 1},
    {"20 MiB", 20 * MIB, 0, 2, 1},
    {"50 MiB, again and again", 50 * MIB, 0, 1, 2},
    {"50 MiB, made smaller", 50 * MIB, 0, 1, 1, MIB},
};

static char *allocate(const struct way *way)
{
    void *made = NULL;
    if (!way->alignment)
        made = malloc(way->bytes);
    else if (posix_memalign(&made, way->alignment, way->bytes))
        return NULL;
    return made;
}

// Exits with 0 if memory is like new, 2 if the kernel refused the state.
static void try(const struct way *way, enum state state)
{
    char *objects[MOST];
    for (int round = 0; round < way->rounds; round++) {
        for (int n = 0; n < way->count; n++) {
            objects[n] = allocate(way);
            fill(objects[n], way->bytes);
        }
        for (int n = 0; n < way->count; n++)
            if (apply(state, inside(objects[n], way->bytes)))
                _exit(2);
        for (int n = 0; n < way->count; n++) {
            if (way->shrunk) {
                // What is kept is as the program left it.
                objects[n] = realloc(objects[n], way->shrunk);
                continue;
            }
            free(objects[n]);
        }
        for (int n = 0; n < way->count; n++)
            objects[n] = allocate(way);
        for (int n = 0; n < way->count; n++)
            if (!is_like_new(objects[n], way->bytes, state))
                _exit(1);
        for (int n = 0; n < way->count; n++)
            free(objects[n]);
    }
    _exit(0);
}

int main(void)
{
    int failures = 0;
    page = (size_t)sysconf(_SC_PAGESIZE);
    has_huge_pages = huge_pages_are_given();
    file = memfd_create("file", 0);
    for (size_t at = 0; at < FILE_BYTES; at++)
        if (pwrite(file, "f", 1, at) != 1)
            return 1;
    for (size_t w = 0; w < sizeof ways / sizeof *ways; w++)
        for (enum state state = 0; state < STATES; state++) {
            int status = -1;
            pid_t child = fork();
            if (!child)
                try(&ways[w], state);
            waitpid(child, &status, 0);
            if (status == 2 << 8)
                printf("not tried: %s, %s\n", ways[w].name, names[state]);
            else if (status != 0)
                printf("%s, %s: %s %d\n", ways[w].name, names[state], WIFSIGNALED(status) ? "signal" : "exit",
                       WIFSIGNALED(status) ? WTERMSIG(status) : WEXITSTATUS(status));
            failures += status != 0 && status != 2 << 8;
        }
    puts(failures ? "states remain" : "ok");
    return failures != 0;
}
