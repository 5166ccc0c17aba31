// Uses CPU time in ways that are hard on a profiler which sends signals, and says at the end what it
// used: "cpu NANOSECONDS".
//
// timed SHAPE [wait]: `wait`: says "ready", and begins after a line of input. SHAPE is
// `signals` (its own SIGPROF and real-time signals), `takes` (as `stays`, but after a line of input
// it handles all real-time signals itself, and after another says how many came), `forks`, `family`
// (children and their children, which work and never allocate; each says "PID NANOSECONDS"),
// `storm` (2000 short threads that never allocate), `epoll` (a server that must not be
// interrupted), `stacks` (handlers on small stacks, coroutines), `masks` (blocks all signals two
// fifths of the time), `deaf` (its threads block them all the time), `breeds` (forks children that
// end at once, all the time, and has so much memory that a fork takes long), `strangers` (children
// that `fork` has not made), `guests` (children that have its memory, and reset all signals, as those
// of Python and posix_spawn do), `again8` (executes itself, down to `again1`), `stays` (until it is
// killed).

#include <atomic>
#include <cerrno>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <ctime>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <pthread.h>
#include <sched.h>
#include <sys/epoll.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <sys/wait.h>
#include <thread>
#include <ucontext.h>
#include <unistd.h>
#include <vector>

static volatile unsigned long sink;

static long now(clockid_t clock) {
    timespec time;
    clock_gettime(clock, &time);
    return time.tv_sec * 1000000000L + time.tv_nsec;
}

// CPU time of site_burn in this process.
static std::atomic<long> burnt;

extern "C" void __attribute__((noinline)) site_burn(long ns) {
    long begin = now(CLOCK_THREAD_CPUTIME_ID), used;
    while ((used = now(CLOCK_THREAD_CPUTIME_ID) - begin) < ns)
        for (unsigned long i = 0; i < 10000; i++)
            sink += i * i;
    burnt += used;
}

// Not optimised away.
static void allocate(size_t bytes) {
    void *volatile memory = malloc(bytes);
    free(memory);
}

static void fail(const char *what) {
    printf("failed: %s\n", what);
    _exit(3);
}

static std::atomic<long> came[65];

static void count(int number) { came[number]++; }

static void handle(int number) {
    struct sigaction action = {};
    action.sa_handler = count;
    sigaction(number, &action, nullptr);
}

static void signals() {
    std::vector<int> own;
    for (int number = SIGRTMIN; number <= SIGRTMIN + 20; number++)
        own.push_back(number);
    sigset_t waited;
    sigemptyset(&waited);
    sigaddset(&waited, SIGRTMAX);
    pthread_sigmask(SIG_BLOCK, &waited, nullptr);
    for (int number : own)
        handle(number);
    handle(SIGPROF);
    itimerval timer = {{0, 10000}, {0, 10000}};
    setitimer(ITIMER_PROF, &timer, nullptr);
    for (int round = 0; round < 20; round++) {
        for (int number : own)
            raise(number);
        raise(SIGRTMAX);
        siginfo_t info;
        if (sigwaitinfo(&waited, &info) != SIGRTMAX || info.si_code == SI_TIMER)
            fail("sigwaitinfo");
        site_burn(50000000);
    }
    for (int number : own)
        if (came[number] != 20)
            fail("a real-time signal of its own");
    if (came[SIGPROF] < 10)
        fail("SIGPROF");
}

static void stay() {
    for (;;) {
        site_burn(1000000);
        allocate(64 << 10);
    }
}

static void takes() {
    std::thread(stay).detach();
    char line[16];
    if (!fgets(line, sizeof line, stdin))
        return;
    for (int number = SIGRTMIN; number <= SIGRTMAX; number++)
        handle(number);
    puts("taken");
    long before = -1, sum = 0;
    // Until none comes for half a second.
    while (before != sum) {
        before = sum;
        site_burn(500000000);
        sum = 0;
        for (auto &number : came)
            sum += number;
    }
    struct sigaction action;
    for (int number = SIGRTMIN; number <= SIGRTMAX; number++)
        if (sigaction(number, nullptr, &action) || action.sa_handler != count)
            fail("its handlers");
}

// Whether a session that begins with the program continues in its children: then one signal is its.
static int sessions_signals = 1;

static void forks() {
    const size_t bytes = 64 << 20;
    char *memory = (char *)mmap(nullptr, bytes, PROT_READ | PROT_WRITE,
                                MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    memset(memory, 1, bytes);
    std::atomic<bool> over{false};
    std::thread other([&] {
        while (!over)
            site_burn(1000000);
    });
    for (int round = 0; round < 60; round++) {
        pid_t child = fork();
        if (child == 0) {
            struct sigaction action;
            int handled = 0;
            for (int number = SIGRTMIN; number <= SIGRTMAX; number++)
                if (sigaction(number, nullptr, &action) || action.sa_handler != SIG_DFL)
                    handled++;
            if (handled > sessions_signals)
                _exit(5);
            allocate(100);
            site_burn(3000000);
            _exit(7);
        }
        int status;
        if (child < 0 || waitpid(child, &status, 0) != child || !WIFEXITED(status) ||
            WEXITSTATUS(status) != 7)
            fail("a child");
    }
    over = true;
    other.join();
    munmap(memory, bytes);
}

// Without the C library's buffers, which would be allocated.
static void say_used() {
    char line[64];
    int length = snprintf(line, sizeof line, "%d %ld\n", getpid(), now(CLOCK_PROCESS_CPUTIME_ID));
    if (write(1, line, length) != length)
        _exit(4);
}

static void family() {
    pid_t children[6];
    for (auto &child : children) {
        child = fork();
        if (child == 0) {
            site_burn(150000000);
            pid_t grandchild = fork();
            if (grandchild == 0)
                site_burn(300000000);
            else
                waitpid(grandchild, nullptr, 0);
            say_used();
            _exit(0);
        }
    }
    for (auto child : children)
        waitpid(child, nullptr, 0);
}

static int burn_and_end(void *) {
    site_burn(400000000);
    _exit(0);
}

// Children that have this process's memory, or a copy of it, and that no handler of `fork` has seen.
static void strangers() {
    site_burn(100000000);
    static char stack[64 << 10] __attribute__((aligned(16)));
    if (clone(burn_and_end, stack + sizeof stack, CLONE_VM | CLONE_VFORK | SIGCHLD, nullptr) < 0)
        fail("a child with this memory");
    wait(nullptr);
    if (syscall(SYS_clone, SIGCHLD, 0, 0, 0, 0) == 0)
        burn_and_end(nullptr);
    wait(nullptr);
}

static void *one(void *) {
    site_burn(1000000);
    return nullptr;
}

static void storm() {
    for (int round = 0; round < 100; round++) {
        pthread_t threads[20];
        for (auto &thread : threads)
            if (pthread_create(&thread, nullptr, one, nullptr))
                fail("a thread");
        for (auto &thread : threads)
            pthread_join(thread, nullptr);
    }
}

static void epoll() {
    int pair[2];
    socketpair(AF_UNIX, SOCK_STREAM, 0, pair);
    long interrupted = 0, served = 0;
    std::thread server([&] {
        int poll = epoll_create1(0);
        epoll_event event = {};
        event.events = EPOLLIN;
        epoll_ctl(poll, EPOLL_CTL_ADD, pair[1], &event);
        for (;;) {
            if (epoll_wait(poll, &event, 1, 100) < 0)
                interrupted++;
            char byte;
            if (recv(pair[1], &byte, 1, MSG_DONTWAIT) == 1) {
                if (byte == 'x')
                    return;
                site_burn(500000);
                allocate(1000);
                served += send(pair[1], &byte, 1, 0);
            }
        }
    });
    for (int request = 0; request < 2000; request++) {
        char byte = 'a';
        if (send(pair[0], &byte, 1, 0) != 1 || recv(pair[0], &byte, 1, 0) != 1 || byte != 'a')
            fail("a request");
    }
    send(pair[0], "x", 1, 0);
    server.join();
    if (interrupted || served != 2000)
        fail("epoll_wait was interrupted");
}

static ucontext_t back, inside;

static void coroutine() {
    for (;;) {
        site_burn(2000000);
        swapcontext(&inside, &back);
    }
}

// A stack of so many bytes above a page that nobody may touch.
static char *small(size_t bytes) {
    char *at = (char *)mmap(nullptr, bytes + 4096, PROT_READ | PROT_WRITE,
                            MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    mprotect(at, 4096, PROT_NONE);
    return at + 4096;
}

static void on_signal(int) { site_burn(20000000); }

static void stacks() {
    // Without another stack: on the coroutine's, which has room for the kernel's frame.
    getcontext(&inside);
    inside.uc_stack.ss_sp = small(8192);
    inside.uc_stack.ss_size = 8192;
    makecontext(&inside, coroutine, 0);
    for (int round = 0; round < 100; round++)
        swapcontext(&back, &inside);
    // With a small one for signals.
    stack_t other = {};
    other.ss_size = 8192;
    other.ss_sp = small(other.ss_size);
    sigaltstack(&other, nullptr);
    for (int round = 0; round < 100; round++)
        swapcontext(&back, &inside);
    struct sigaction action = {};
    action.sa_handler = on_signal;
    action.sa_flags = SA_ONSTACK;
    sigaction(SIGUSR1, &action, nullptr);
    for (int round = 0; round < 10; round++)
        raise(SIGUSR1);
}

extern "C" void __attribute__((noinline)) site_masked(long ns) {
    sigset_t all, before;
    sigfillset(&all);
    pthread_sigmask(SIG_BLOCK, &all, &before);
    site_burn(ns);
    pthread_sigmask(SIG_SETMASK, &before, nullptr);
}

static void masks() {
    for (int round = 0; round < 20; round++) {
        site_burn(60000000);
        site_masked(40000000);
    }
}

static void deaf() {
    std::thread threads[2];
    for (auto &thread : threads)
        thread = std::thread([] {
            sigset_t all;
            sigfillset(&all);
            pthread_sigmask(SIG_BLOCK, &all, nullptr);
            // Whoever finds another thread at the timers looks again when it allocates.
            for (int i = 0; i < 20; i++) {
                allocate(1 << 20);
                site_burn(50000000);
            }
        });
    for (auto &thread : threads)
        thread.join();
}

static void breeds() {
    const size_t bytes = 128 << 20;
    char *memory = (char *)mmap(nullptr, bytes, PROT_READ | PROT_WRITE,
                                MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    madvise(memory, bytes, MADV_NOHUGEPAGE);
    memset(memory, 1, bytes);
    long end = now(CLOCK_PROCESS_CPUTIME_ID) + 800000000;
    while (now(CLOCK_PROCESS_CPUTIME_ID) < end) {
        pid_t child = fork();
        if (child == 0)
            _exit(0);
        if (child < 0 || waitpid(child, nullptr, 0) != child)
            fail("a child");
    }
    // What that takes is told, too.
    munmap(memory, bytes);
}

static void guests() {
    for (int round = 0; round < 20; round++) {
        site_burn(20000000);
        pid_t child = vfork();
        if (child == 0) {
            struct sigaction action, standard = {};
            standard.sa_handler = SIG_DFL;
            for (int number = 1; number <= SIGRTMAX; number++)
                if (!sigaction(number, nullptr, &action) && action.sa_handler != SIG_DFL &&
                    action.sa_handler != SIG_IGN)
                    sigaction(number, &standard, nullptr);
            sock_fprog none = {};
            // Refused: there is no such program.
            prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &none);
            execl("/bin/true", "true", nullptr);
            _exit(1);
        }
        int status;
        if (child < 0 || waitpid(child, &status, 0) != child || status != 0)
            fail("a child");
        allocate(1000);
    }
}

int main(int count, char **arguments) {
    const char *shape = count > 1 ? arguments[1] : "";
    if (count > 2) {
        puts("ready");
        fflush(stdout);
        if (getchar() < 0)
            return 1;
        allocate(1 << 20);
        sessions_signals = 0;
    }
    setvbuf(stdout, nullptr, _IOLBF, 0);
    const struct {
        const char *name;
        void (*run)();
    } shapes[] = {{"signals", signals}, {"takes", takes}, {"forks", forks},   {"family", family},
                  {"storm", storm},     {"epoll", epoll}, {"stacks", stacks}, {"stays", stay},
                  {"masks", masks},     {"deaf", deaf},   {"breeds", breeds},
                  {"strangers", strangers}, {"guests", guests}};
    for (auto &known : shapes)
        if (!strcmp(known.name, shape))
            known.run();
    if (!strncmp(shape, "again", 5)) {
        site_burn(150000000);
        char next[16];
        snprintf(next, sizeof next, "again%d", atoi(shape + 5) - 1);
        if (strcmp(next, "again0")) {
            execl("/proc/self/exe", arguments[0], next, nullptr);
            fail("exec");
        }
    }
    rusage used;
    getrusage(RUSAGE_SELF, &used);
    printf("cpu %ld\nburnt %ld\n",
           (used.ru_utime.tv_sec + used.ru_stime.tv_sec) * 1000000000L +
               (used.ru_utime.tv_usec + used.ru_stime.tv_usec) * 1000L,
           burnt.load());
    return 0;
}
