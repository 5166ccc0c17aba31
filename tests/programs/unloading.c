// Loads and unloads a library, named as its argument, while stacks are misread that lead
// into it; does what lines on its input say, and says "ok" to each.
#define _GNU_SOURCE
#include "steps.h"
#include <dlfcn.h>
#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <stdint.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

static const char *path;

static void *load(void) {
    void *library = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    if (!library) fail(dlerror());
    return library;
}

static uintptr_t first, last;

// Notes where a loaded library is: it need not come to lie there again.
static void locate(void *site) {
    Dl_info info;
    if (!site || !dladdr(site, &info)) fail("the plugin");
    first = (uintptr_t)info.dli_fbase;
    last = first + 0x2000;
}

// Where the library is when it is loaded.
static void find(void) {
    void *library = load();
    locate(dlsym(library, "site_plugin"));
    dlclose(library);
}

static int going;

static void *load_and_unload(void *unused) {
    while (__atomic_load_n(&going, __ATOMIC_RELAXED)) dlclose(load());
    return unused;
}

static double now(void) {
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return (double)time.tv_sec + (double)time.tv_nsec * 1e-9;
}

#ifdef __x86_64__
// Allocates and frees where the unwind tables take `address` for the return address.
__attribute__((naked, noinline)) static void misread(uintptr_t address) {
    (void)address;
    __asm__("push %rdi\nmov $100, %edi\ncall malloc@PLT\n"
            "mov %rax, %rdi\ncall free@PLT\npop %rdi\nret\n");
}
#else
static void misread(uintptr_t address) {
    (void)address;
    free(malloc(100));
}
#endif

static void misread_all(void) {
    for (uintptr_t at = first + 1; at < last; at += 7) misread(at);
}

static void race(long milliseconds) {
    pthread_t thread;
    double end = now() + (double)milliseconds / 1000;
    going = 1;
    if (pthread_create(&thread, NULL, load_and_unload, NULL)) fail("pthread_create");
    while (now() < end) misread_all();
    __atomic_store_n(&going, 0, __ATOMIC_RELAXED);
    pthread_join(thread, NULL);
}

static void fork_in_between(long times) {
    pthread_t thread;
    going = 1;
    if (pthread_create(&thread, NULL, load_and_unload, NULL)) fail("pthread_create");
    for (long i = 0; i < times; i++) {
        misread_all();
        pid_t pid = fork();
        if (pid == 0) {
            // The loader's lock may be another thread's, who is not here: only allocate.
            alarm(20);
            misread_all();
            _exit(17);
        }
        int status;
        if (pid < 0 || waitpid(pid, &status, 0) != pid) fail("fork");
        if (!WIFEXITED(status) || WEXITSTATUS(status) != 17) fail("a child");
    }
    __atomic_store_n(&going, 0, __ATOMIC_RELAXED);
    pthread_join(thread, NULL);
}

// Allocates in a library whose first page nobody may read.
static void header(long times) {
    void *library = load();
    void *(*site)(long) = (void *(*)(long))dlsym(library, "site_plugin");
    locate((void *)site);
    if (mprotect((void *)first, 4096, PROT_NONE)) fail("mprotect");
    for (long i = 0; i < times; i++) free(site(640));
    misread_all();
    if (mprotect((void *)first, 4096, PROT_READ)) fail("mprotect");
    dlclose(library);
}

static void *held;
static volatile int closed;

static void on_signal(int signal) {
    (void)signal;
    int saved = errno;
    if (held) dlclose(held);
    held = NULL;
    closed++;
    errno = saved;
}

// Unloads in a signal handler, wherever that interrupts: not allowed, but done. Never while
// the program itself is in the loader.
static void handled(long times) {
    struct sigaction action = {.sa_handler = on_signal};
    sigaction(SIGUSR2, &action, NULL);
    timer_t timer;
    struct sigevent event = {.sigev_notify = SIGEV_SIGNAL, .sigev_signo = SIGUSR2};
    if (timer_create(CLOCK_MONOTONIC, &event, &timer)) fail("timer_create");
    for (long i = 0; i < times; i++) {
        held = load();
        closed = 0;
        struct itimerspec soon = {.it_value.tv_nsec = 20000 + i * 7919 % 400000};
        timer_settime(timer, 0, &soon, NULL);
        while (!closed) misread_all();
    }
    timer_delete(timer);
}

int main(int count, char **arguments) {
    static char line[256];
    if (count < 2) return 2;
    path = arguments[1];
    setvbuf(stdout, NULL, _IOLBF, 4096);
    find();
    say("ready");
    while (fgets(line, sizeof line, stdin)) {
        long n = 0;
        if (sscanf(line, "race %ld", &n) == 1)
            race(n);
        else if (sscanf(line, "fork %ld", &n) == 1)
            fork_in_between(n);
        else if (sscanf(line, "header %ld", &n) == 1)
            header(n);
        else if (sscanf(line, "handled %ld", &n) == 1)
            handled(n);
        else
            fail(line);
        say("ok");
    }
    return 0;
}
