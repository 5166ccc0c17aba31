// Does one thing after the other, as told by lines on its input, and answers "ok" to
// each; "expected" prints what it allocated where.
#define _GNU_SOURCE
#include "steps.h"
#include <dlfcn.h>
#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <spawn.h>
#include <stdint.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <ucontext.h>
#include <unistd.h>

extern char **environ;

TOTALS(main)
TOTALS(child)
TOTALS(thread)
TOTALS(exiting)
TOTALS(small_stack)
TOTALS(deep)
TOTALS(coroutine)
TOTALS(interrupted)
TOTALS(handler)
TOTALS(huge)

// Keeps n objects of 1000 bytes: a place's own line on the stack.
#define KEEPER(place)                                \
    SITE void *site_##place(long bytes) {            \
        void *p = malloc(bytes);                     \
        if (!p) abort();                             \
        memset(p, 7, bytes < 4096 ? bytes : 4096);   \
        born(&totals_##place, bytes);                  \
        return p;                                    \
    }
KEEPER(main)
KEEPER(child)
KEEPER(thread)
KEEPER(exiting)
KEEPER(small_stack)
KEEPER(coroutine)
KEEPER(interrupted)
KEEPER(handler)
KEEPER(huge)

// ---- processes

static void child_body(long n) {
    for (long i = 0; i < n; i++) site_child(1000);
}

static pid_t plain_fork(void) { return fork(); }

// A fork that the C library does not know of: no handler runs in the child.
static pid_t bare_fork(void) { return (pid_t)syscall(SYS_clone, SIGCHLD, 0, 0, 0, 0); }

// A child that stays until its parent ends.
static void fork_one(pid_t (*make)(void), long n) {
    int ready[2];
    if (pipe(ready)) fail("pipe");
    fflush(stdout);
    pid_t pid = make();
    if (pid < 0) fail("fork");
    if (pid == 0) {
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        child_body(n);
        if (write(ready[1], "x", 1) != 1) _exit(1);
        for (;;) pause();
    }
    char byte;
    close(ready[1]);
    if (read(ready[0], &byte, 1) != 1) fail("the child");
    close(ready[0]);
    printf("child %d\n", (int)pid);
}

static int churning;

static void *churn(void *unused) {
    (void)unused;
    while (__atomic_load_n(&churning, __ATOMIC_RELAXED)) {
        void *p = site_thread(1000);
        free(p);
        died(&totals_thread, 1000);
    }
    return NULL;
}

// Forks while other threads are in the middle of allocating.
static void fork_many(long n) {
    pthread_t threads[3];
    churning = 1;
    for (int i = 0; i < 3; i++) pthread_create(&threads[i], NULL, churn, NULL);
    for (long i = 0; i < n; i++) {
        pid_t pid = fork();
        if (pid < 0) fail("fork");
        if (pid == 0) {
            child_body(20);
            _exit(17);
        }
        int status;
        if (waitpid(pid, &status, 0) != pid || !WIFEXITED(status) || WEXITSTATUS(status) != 17)
            fail("a child of a process with threads");
    }
    __atomic_store_n(&churning, 0, __ATOMIC_RELAXED);
    for (int i = 0; i < 3; i++) pthread_join(threads[i], NULL);
}

static void end_well(pid_t pid) {
    int status;
    if (waitpid(pid, &status, 0) != pid || status) fail("a spawned program");
}

static void spawn(void) {
    char *const arguments[] = {"true", NULL};
    pid_t pid;
    if (posix_spawn(&pid, "/bin/true", NULL, NULL, arguments, environ)) fail("posix_spawn");
    end_well(pid);
    pid = vfork();
    if (pid == 0) {
        execv("/bin/true", arguments);
        _exit(1);
    }
    end_well(pid);
}

// Twice as many mappings.
static void map_many(long n) {
    size_t page = (size_t)sysconf(_SC_PAGESIZE);
    char *at = mmap(NULL, 2 * n * page, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (at == MAP_FAILED) fail("mmap");
    for (long i = 0; i < n; i++)
        if (mprotect(at + 2 * i * page, page, PROT_READ)) fail("mprotect");
}

// ---- threads

static void *short_life(void *number) {
    for (int i = 0; i < 8; i++) {
        void *p = site_thread(100);
        if (i % 2) {
            free(p);
            died(&totals_thread, 100);
        }
    }
    if ((intptr_t)number % 3 == 0) {
        site_exiting(300);
        pthread_exit(NULL);
    }
    return NULL;
}

static void threads(long n) {
    while (n > 0) {
        pthread_t batch[20];
        int count = n < 20 ? (int)n : 20;
        for (int i = 0; i < count; i++)
            if (pthread_create(&batch[i], NULL, short_life, (void *)(intptr_t)(n - i)))
                fail("pthread_create");
        for (int i = 0; i < count; i++) pthread_join(batch[i], NULL);
        n -= count;
    }
}

static pthread_key_t key;

static void at_thread_end(void *p) {
    free(p);
    died(&totals_exiting, 500);
    site_exiting(250);
}

static void *with_key(void *unused) {
    pthread_setspecific(key, site_exiting(500));
    return unused;
}

// Allocates and frees in the destructors of a thread's own data.
static void keys(long n) {
    pthread_key_create(&key, at_thread_end);
    for (long i = 0; i < n; i++) {
        pthread_t thread;
        if (pthread_create(&thread, NULL, with_key, NULL)) fail("pthread_create");
        pthread_join(thread, NULL);
    }
}

static void *on_small_stack(void *unused) {
    for (int i = 0; i < 50; i++) site_small_stack(64 + i);
    return unused;
}

static void small_stack(void) {
    pthread_attr_t attributes;
    pthread_t thread;
    pthread_attr_init(&attributes);
    if (pthread_attr_setstacksize(&attributes, 16384)) fail("a stack of 16 KiB");
    if (pthread_create(&thread, &attributes, on_small_stack, NULL)) fail("pthread_create");
    pthread_join(thread, NULL);
}

// ---- stacks

SITE long site_deep(long depth) {
    if (depth == 0) {
        born(&totals_deep, 1000);
        return malloc(1000) != NULL;
    }
    long below = site_deep(depth - 1);
    __asm__ volatile("" : "+r"(below));
    return below;
}

static ucontext_t scheduler, routines[4];
static int running;

static void routine(void) {
    for (int i = 0; i < 25; i++) {
        site_coroutine(123);
        swapcontext(&routines[running], &scheduler);
    }
}

static void coroutines(void) {
    for (int i = 0; i < 4; i++) {
        getcontext(&routines[i]);
        routines[i].uc_stack.ss_sp = malloc(65536);
        routines[i].uc_stack.ss_size = 65536;
        routines[i].uc_link = &scheduler;
        makecontext(&routines[i], routine, 0);
    }
    for (int turn = 0; turn < 25; turn++)
        for (running = 0; running < 4; running++) swapcontext(&scheduler, &routines[running]);
}

// ---- signals

static volatile sig_atomic_t handled;

static void handler(int signal) {
    (void)signal;
    int saved = errno;
    void *p = site_handler(77);
    site_handler(78);
    free(p);
    died(&totals_handler, 77);
    handled++;
    errno = saved;
}

// Allocates in a handler on a stack of its own, while the program does so as well. The
// real malloc is not reentrant: the handler only runs where the program is in our own
// code, not in the allocator.
static void raised(long n) {
    stack_t stack = {.ss_sp = malloc(65536), .ss_size = 65536, .ss_flags = 0};
    struct sigaction action = {.sa_handler = handler, .sa_flags = SA_ONSTACK};
    if (sigaltstack(&stack, NULL)) fail("sigaltstack");
    sigaction(SIGUSR2, &action, NULL);
    for (long i = 0; i < n; i++) {
        void *p = site_interrupted(500);
        raise(SIGUSR2);
        free(p);
        died(&totals_interrupted, 500);
    }
}

// ---- libraries

static void plugin(const char *path, long n) {
    void *library = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    if (!library) fail(dlerror());
    void *(*site)(long) = (void *(*)(long))dlsym(library, "site_plugin");
    for (long i = 0; i < n; i++)
        if (!site(640)) fail("the plugin");
    dlclose(library);
    if (dlopen(path, RTLD_NOW | RTLD_NOLOAD)) fail("the plugin is still loaded");
}

// ---- all of it

static void step(char *line) {
    long n = 0;
    char word[4096];
    if (sscanf(line, "keep %ld", &n) == 1)
        for (long i = 0; i < n; i++) site_main(1000);
    else if (!strcmp(line, "lock"))
        say(mlockall(MCL_CURRENT | MCL_FUTURE) ? "refused" : "locked");
    else if (sscanf(line, "huge %ld", &n) == 1)
        site_huge(n);
    else if (sscanf(line, "fork_many %ld", &n) == 1)
        fork_many(n);
    else if (sscanf(line, "fork %ld", &n) == 1)
        fork_one(plain_fork, n);
    else if (sscanf(line, "bare_fork %ld", &n) == 1)
        fork_one(bare_fork, n);
    else if (!strcmp(line, "spawn"))
        spawn();
    else if (sscanf(line, "threads %ld", &n) == 1)
        threads(n);
    else if (sscanf(line, "keys %ld", &n) == 1)
        keys(n);
    else if (sscanf(line, "map %ld", &n) == 1)
        map_many(n);
    else if (!strcmp(line, "small_stack"))
        small_stack();
    else if (sscanf(line, "deep %ld", &n) == 1)
        site_deep(n);
    else if (!strcmp(line, "coroutines"))
        coroutines();
    else if (sscanf(line, "raised %ld", &n) == 1)
        raised(n);
    else if (sscanf(line, "plugin %4095s %ld", word, &n) == 2)
        plugin(word, n);
    else if (sscanf(line, "exec %4095s", word) == 1) {
        char *const arguments[] = {word, NULL};
        execv(word, arguments);
        fail(word);
    } else if (!strcmp(line, "churn")) {
        pthread_t thread;
        churning = 1;
        pthread_create(&thread, NULL, churn, NULL);
        pthread_detach(thread);
    } else if (!strcmp(line, "expected"))
        print_expected();
    else {
        errno = EINVAL;
        fail(line);
    }
}

int main(void) { return follow(step); }
