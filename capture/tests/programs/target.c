// A program to capture: it does one thing, then says how that went.
//   target CALL THREADS [MEGABYTES]
// Besides CALL in the first thread there are THREADS others: one looks for children that it did
// not make, the rest wait or compute.
#define _GNU_SOURCE
#include <errno.h>
#include <linux/futex.h>
#include <poll.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

static volatile int chld, usr1, bad, hidden, word;
static volatile int stop;
// Whether the first thread spins, and whether its registers have their values.
static volatile int spins, loaded;
static int interrupted;

static void on_chld(int s) { (void)s; chld++; }
static void on_usr1(int s) { (void)s; __atomic_add_fetch(&usr1, 1, __ATOMIC_SEQ_CST); }

static void look(void) {
    if (waitpid(-1, NULL, WNOHANG) != -1 || errno != ECHILD) bad++;
    if (waitpid(-1, NULL, WNOHANG | __WALL) != -1 || errno != ECHILD) hidden++;
}

static void *looking(void *p) {
    struct timespec ms = {0, 1000000};
    while (!stop) { look(); nanosleep(&ms, NULL); }
    return p;
}

static void *waiting(void *p) {
    struct timespec ms = {0, 300000};
    long n = (long)p;
    for (volatile long i = 0; !stop; i++)
        if (n % 4 == 1) nanosleep(&ms, NULL);
        else if (n % 4 == 2) poll(NULL, 0, 20);
        else if (n % 4 == 3) { free(malloc(1000)); if (i % 1000 == 0) nanosleep(&ms, NULL); }
        else { int w = 0; struct timespec t = {0, 20000000}; syscall(SYS_futex, &w, FUTEX_WAIT, 0, &t); }
    return p;
}

static void *reader(void *p) {
    char c;
    if (spins) {
        while (!loaded) sched_yield();
        printf("ready\n");
        fflush(stdout);
    }
    while (read(0, &c, 1) < 0 && errno == EINTR) {}
    word = 1;
    syscall(SYS_futex, &word, FUTEX_WAKE, 1);
    stop = 1;
    return p;
}

static void start(void *(*f)(void *), long n) {
    pthread_t t;
    pthread_attr_t a;
    pthread_attr_init(&a);
    pthread_attr_setstacksize(&a, 256 << 10);
    if (pthread_create(&t, &a, f, (void *)n)) { perror("thread"); exit(1); }
}

// Registers with known values until `stop`; gives what is wrong.
static long spin(void) {
    static double in[8] = {1.5, 2.5, 3.5, 4.5, 5.5, 6.5, 7.5, 8.5}, out[8];
    uint64_t b, c, d, e;
    int wide = __builtin_cpu_supports("avx2");
    if (wide) asm volatile("vmovupd %0, %%ymm5; vmovupd %0, %%ymm15" : : "m"(*(double(*)[4])in) : "xmm5", "xmm15");
    else asm volatile("movupd %0, %%xmm5; movupd %0, %%xmm15" : : "m"(*in));
    asm volatile(
        "fldpi\n"
        "mov $0x1111111111111111, %%r12\n mov $0x2222222222222222, %%r13\n"
        "mov $0x3333333333333333, %%r14\n mov $0x4444444444444444, %%r15\n"
        "mov $0x5555555555555555, %%r8\n mov $0x6666666666666666, %%r9\n"
        "mov $0x7777777777777777, %%r10\n mov $0x7e7e7e7e7e7e7e7e, %%rsi\n"
        // In the red zone.
        "movabs $0x0123456789abcdef, %%rax\n mov %%rax, -8(%%rsp)\n mov %%rax, -120(%%rsp)\n"
        "movl $1, %4\n"
        "1: cmpl $0, %5\n je 1b\n"
        "cmp -8(%%rsp), %%rax\n jne 2f\n cmp -120(%%rsp), %%rax\n jne 2f\n"
        "cmp %%r12, %%r12\n"
        "mov $0x5555555555555555, %%rax\n cmp %%rax, %%r8\n jne 2f\n"
        "mov $0x6666666666666666, %%rax\n cmp %%rax, %%r9\n jne 2f\n"
        "mov $0x7777777777777777, %%rax\n cmp %%rax, %%r10\n jne 2f\n"
        "mov $0x7e7e7e7e7e7e7e7e, %%rax\n cmp %%rax, %%rsi\n jne 2f\n"
        "jmp 3f\n 2: xor %%r12, %%r12\n 3:\n"
        "mov %%r12, %0\n mov %%r13, %1\n mov %%r14, %2\n mov %%r15, %3\n"
        : "=&b"(b), "=&c"(c), "=&d"(d), "=&D"(e), "=m"(loaded)
        : "m"(stop)
        : "rax", "rsi", "r8", "r9", "r10", "r12", "r13", "r14", "r15", "cc", "memory");
    long double pi;
    asm volatile("fstpt %0" : "=m"(pi));
    long wrong = (b != 0x1111111111111111) + (c != 0x2222222222222222) + (d != 0x3333333333333333) + (e != 0x4444444444444444);
    int lanes = 2;
    if (wide) { asm volatile("vmovupd %%ymm5, %0; vmovupd %%ymm15, %1; vzeroupper" : "=m"(*(double(*)[4])out), "=m"(*(double(*)[4])(out + 4))); lanes = 4; }
    else asm volatile("movupd %%xmm5, %0; movupd %%xmm15, %1" : "=m"(*(double(*)[2])out), "=m"(*(double(*)[2])(out + 4)));
    for (int i = 0; i < lanes; i++) wrong += (out[i] != in[i]) + (out[4 + i] != in[i]);
    return wrong + (pi < 3.14159L || pi > 3.1416L);
}

static long call(const char *what) {
    char c = 0;
    long r;
    if (!strcmp(what, "spin")) return spin();
    if (!strcmp(what, "nanosleep")) {
        struct timespec t = {4, 0}, rest = {0, 0};
        while ((r = nanosleep(&t, &rest)) && errno == EINTR) { interrupted++; t = rest; }
        return r;
    }
    if (!strcmp(what, "futex")) {
        while (!word) if ((r = syscall(SYS_futex, &word, FUTEX_WAIT, 0, NULL)) && errno == EINTR) interrupted++;
        return 0;
    }
    if (!strcmp(what, "timed")) {
        struct timespec t = {100, 0};
        while (!word) if ((r = syscall(SYS_futex, &word, FUTEX_WAIT, 0, &t)) && errno == EINTR) interrupted++;
        return 0;
    }
    if (!strcmp(what, "read")) {
        while ((r = read(0, &c, 1)) < 0 && errno == EINTR) interrupted++;
        return c - 'x';
    }
    if (!strcmp(what, "poll") || !strcmp(what, "polltimed")) {
        struct pollfd p = {0, POLLIN, 0};
        while ((r = poll(&p, 1, strcmp(what, "poll") ? 100000 : -1)) < 0 && errno == EINTR) interrupted++;
        return r - 1;
    }
    if (!strcmp(what, "epoll")) {
        int f = epoll_create1(0);
        struct epoll_event e = {.events = EPOLLIN};
        epoll_ctl(f, EPOLL_CTL_ADD, 0, &e);
        while ((r = epoll_wait(f, &e, 1, -1)) < 0 && errno == EINTR) interrupted++;
        return r - 1;
    }
    if (!strcmp(what, "sigsuspend")) {
        sigset_t none, one;
        sigemptyset(&none); sigemptyset(&one); sigaddset(&one, SIGUSR1);
        sigprocmask(SIG_BLOCK, &one, NULL);
        sigsuspend(&none);
        sigset_t now;
        sigprocmask(SIG_BLOCK, NULL, &now);
        return usr1 != 1 || !sigismember(&now, SIGUSR1);
    }
    if (!strcmp(what, "vfork")) {
        if (!vfork()) { struct timespec t = {2, 0}; syscall(SYS_nanosleep, &t, NULL); _exit(0); }
        return wait(NULL) > 0 ? 0 : -1;
    }
    if (!strcmp(what, "churn")) {
        // Threads that come and go, allocations, system calls.
        while (!stop) {
            pthread_t t[4];
            for (int i = 0; i < 4; i++) pthread_create(&t[i], NULL, (void *(*)(void *))malloc, (void *)64L);
            for (int i = 0; i < 4; i++) { void *m; pthread_join(t[i], &m); free(m); }
            look();
        }
        return 0;
    }
    if (!strcmp(what, "exec")) {
        setenv("QUIET", "1", 1);
        execl("/proc/self/exe", "target", "exec", "3", NULL);
    }
    return -1;
}

int main(int argc, char **argv) {
    struct sigaction a = {.sa_handler = on_chld, .sa_flags = SA_RESTART};
    sigaction(SIGCHLD, &a, NULL);
    a.sa_handler = on_usr1;
    sigaction(SIGUSR1, &a, NULL);
    sigaction(SIGRTMIN, &a, NULL);
    if (argc > 3) {
        size_t n = (size_t)atol(argv[3]) << 20;
        char *m = mmap(NULL, n, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        if (argc > 4) madvise(m, n, MADV_NOHUGEPAGE);
        for (size_t i = 0; i < n; i += 4096) *(size_t *)(m + i) = i + 1;
        printf("memory %p\n", (void *)m);
    }
    long threads = atol(argv[2]);
    const char *what = argv[1];
    spins = !strcmp(what, "spin") && !getenv("QUIET");
    int reads = !strcmp(what, "read") || !strncmp(what, "poll", 4) || !strcmp(what, "epoll");
    sigset_t one, old;
    sigemptyset(&one); sigaddset(&one, SIGUSR1);
    if (!strcmp(what, "sigsuspend")) sigprocmask(SIG_BLOCK, &one, &old);
    if (!reads && strcmp(what, "nanosleep") && strcmp(what, "sigsuspend") && strcmp(what, "vfork")) start(reader, 0);
    for (long i = 0; i < threads; i++) start(i ? waiting : looking, i);
    if (!strcmp(what, "sigsuspend")) sigprocmask(SIG_SETMASK, &old, NULL);
    if (!spins && !getenv("QUIET")) printf("ready\n");
    fflush(stdout);
    struct timespec t0, t1;
    clock_gettime(CLOCK_MONOTONIC, &t0);
    long r = call(what);
    clock_gettime(CLOCK_MONOTONIC, &t1);
    long ms = (t1.tv_sec - t0.tv_sec) * 1000 + (t1.tv_nsec - t0.tv_nsec) / 1000000;
    // A signal may still be on its way.
    struct timespec settle = {0, 20000000};
    nanosleep(&settle, NULL);
    if (strcmp(what, "vfork")) look();
    printf("result %ld interrupted %d ms %ld chld %d bad %d hidden %d usr1 %d\n", r, interrupted, ms, chld, bad, hidden, usr1);
    return 0;
}
