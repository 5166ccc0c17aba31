// Lives in unlucky surroundings, and tells how it and its children fare. Does what lines
// on its input say, one after the other, and answers "ok" to each.
#define _GNU_SOURCE
#include "steps.h"
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

TOTALS(main)
TOTALS(child)

enum { MOST = 10000, OBJECT = 1000 };
static void *kept[MOST];
static long count;

SITE void site_main(void) {
    void *p = malloc(OBJECT);
    if (!p || count == MOST) abort();
    memset(p, 7, OBJECT);
    kept[count++] = p;
    born(&totals_main, OBJECT);
}

SITE void *site_child(void) {
    void *p = malloc(OBJECT);
    if (!p) abort();
    memset(p, 8, OBJECT);
    return p;
}

SITE void *site_churn(void) {
    void *p = malloc(64);
    if (!p) abort();
    __asm__ volatile("" : "+r"(p));
    return p;
}

static void drop_one(void) {
    free(kept[--count]);
    died(&totals_main, OBJECT);
}

// ---- children

static pid_t by_clone(void) { return (pid_t)syscall(SYS_clone, SIGCHLD, 0, 0, 0, 0); }

static pid_t by_clone_into_namespace(void) {
    return (pid_t)syscall(SYS_clone, SIGCHLD | CLONE_NEWPID, 0, 0, 0, 0);
}

static pid_t by_unshare(void) {
    if (unshare(CLONE_NEWPID)) fail("unshare");
    return fork();
}

static pid_t child_by(const char *how) {
    if (!strcmp(how, "fork")) return fork();
    if (!strcmp(how, "_Fork")) return _Fork();
    if (!strcmp(how, "clone")) return by_clone();
    if (!strcmp(how, "clone_newpid")) return by_clone_into_namespace();
    if (!strcmp(how, "unshare")) return by_unshare();
    errno = EINVAL;
    fail(how);
    return -1;
}

static void tell_end(pid_t pid) {
    int status;
    if (waitpid(pid, &status, 0) != pid) fail("waitpid");
    printf("ended %d %d\n", WIFEXITED(status) ? WEXITSTATUS(status) : -1,
           WIFSIGNALED(status) ? WTERMSIG(status) : 0);
}

// Frees `n` of its parent's objects, makes as many of its own, frees half of those.
static void childs_work(long n) {
    for (long i = 0; i < n; i++) free(kept[--count]);
    void *last = NULL;
    for (long i = 0; i < n; i++) {
        free(last);
        last = i % 2 ? site_child() : NULL;
    }
}

static void child(const char *how, long n) {
    fflush(stdout);
    pid_t pid = child_by(how);
    if (pid < 0) fail("a child");
    if (pid == 0) {
        childs_work(n);
        _exit(17);
    }
    tell_end(pid);
}

// `n` children, one after the other, that end at once.
static void forks(long n) {
    fflush(stdout);
    for (long i = 0; i < n; i++) {
        pid_t pid = fork();
        if (pid < 0) fail("fork");
        if (pid == 0) _exit(0);
        if (waitpid(pid, NULL, 0) != pid) fail("waitpid");
    }
}

static pid_t worker;
static int orders[2];

// A child that waits until it is told to free one of its parent's objects, and ends in
// order.
static void hire(void) {
    if (pipe(orders)) fail("pipe");
    fflush(stdout);
    worker = fork();
    if (worker < 0) fail("fork");
    if (worker == 0) {
        char byte;
        close(orders[1]);
        if (read(orders[0], &byte, 1) != 1) _exit(1);
        childs_work(1);
        exit(17);
    }
    close(orders[0]);
}

static void dismiss(void) {
    // It may have died, as is told below.
    if (write(orders[1], "x", 1) != 1 && errno != EPIPE) fail("the worker");
    close(orders[1]);
    tell_end(worker);
}

// ---- memory

// Memory that is not malloc's, and not the program's while it is idle.
static void **places(long n) {
    void **at = mmap(NULL, n * sizeof *at, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (at == MAP_FAILED) fail("mmap");
    return at;
}

// Takes up to the given MiB in blocks of 4 KiB, untouched, until malloc refuses; tells how
// many it got.
static void fill(long mebibytes) {
    long wanted = mebibytes * 256, got = 0;
    void **blocks = places(wanted);
    while (got < wanted && (blocks[got] = malloc(4096))) got++;
    for (long i = 0; i < got; i++) free(blocks[i]);
    munmap(blocks, wanted * sizeof *blocks);
    printf("filled %ld\n", got / 256);
}

// Takes the given MiB and writes to them.
static void hog(long mebibytes) {
    for (long i = 0; i < mebibytes * 16; i++) {
        char *p = malloc(65536);
        if (p) memset(p, 1, 65536);
    }
}

static int churning;

// How many objects `churn` has made: in a file that outlives the process, where one is given.
static long *made;

static void count_in(const char *path) {
    int fd = open(path, O_RDWR | O_CREAT, 0600);
    if (fd < 0 || ftruncate(fd, sizeof *made)) fail(path);
    made = mmap(NULL, sizeof *made, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    if (made == MAP_FAILED) fail(path);
    close(fd);
}

// Each object lives for a second or two: it outlives many short sessions.
static void *churn(void *unused) {
    enum { RING = 200000 };
    void **ring = places(RING);
    for (long i = 0; __atomic_load_n(&churning, __ATOMIC_RELAXED); i = (i + 1) % RING) {
        free(ring[i]);
        ring[i] = site_churn();
        if (made) __atomic_fetch_add(made, 1, __ATOMIC_RELAXED);
        if (i % 64 == 0) usleep(500);
    }
    return unused;
}

static void start_churning(void) {
    pthread_t thread;
    churning = 1;
    if (pthread_create(&thread, NULL, churn, NULL)) fail("pthread_create");
    pthread_detach(thread);
}

static void forbid_cycles(void) {
    if (prctl(PR_SET_TSC, PR_TSC_SIGSEGV)) fail("prctl");
}

static void lock_all(const char *what) {
    int flags = !strcmp(what, "current") ? MCL_CURRENT
              : !strcmp(what, "future")  ? MCL_FUTURE
                                         : MCL_CURRENT | MCL_FUTURE;
    printf("locked %d\n", mlockall(flags) ? errno : 0);
}

// ---- all of it

static void step(char *line) {
    long n = 0;
    char word[128];
    if (sscanf(line, "keep %ld", &n) == 1)
        for (long i = 0; i < n; i++) site_main();
    else if (sscanf(line, "drop %ld", &n) == 1)
        for (long i = 0; i < n; i++) drop_one();
    else if (sscanf(line, "child %63s %ld", word, &n) == 2)
        child(word, n);
    else if (sscanf(line, "forks %ld", &n) == 1)
        forks(n);
    else if (sscanf(line, "fill %ld", &n) == 1)
        fill(n);
    else if (sscanf(line, "hog %ld", &n) == 1)
        hog(n);
    else if (sscanf(line, "lock %63s", word) == 1)
        lock_all(word);
    else if (!strcmp(line, "forbid_cycles"))
        forbid_cycles();
    else if (!strcmp(line, "hire"))
        hire();
    else if (!strcmp(line, "dismiss"))
        dismiss();
    else if (sscanf(line, "churn %127s", word) == 1) {
        count_in(word);
        start_churning();
    } else if (!strcmp(line, "churn"))
        start_churning();
    else if (!strcmp(line, "expected"))
        print_expected();
    else {
        errno = EINVAL;
        fail(line);
    }
}

int main(void) {
    signal(SIGPIPE, SIG_IGN);
    return follow(step);
}
