// Objects that are lost, and objects that are kept in unusual places: each kind is allocated by a
// function of its own, lost_… or kept_….
//
// Talks in lines: "plant" allocates them and prints "planted"; "go N" allocates N objects of 100
// bytes each of which one in ten is lost and prints "gone"; "filter" installs a seccomp
// filter that allows everything and prints "filtered"; "registers" has a thread that leaves pointers
// in vector registers and waits, and prints "left"; "holes"
// maps a TiB of its own and many times a file of a GiB, keeps an object in each, leaves the rest
// empty and prints "mapped"; "churn" keeps
// objects in memory that forks leave out, from then on each for a moment only, and prints "churning";
// "share" does so in shared memory; "share much" maps 64 MiB of it and prints "mapped";
// "vfork" prints "waiting" and waits in the kernel until its child has read a line, then prints "back".
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <map>
#include <pthread.h>
#include <signal.h>
#include <string>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>
#include <vector>

#include "wipe.h"

#define PLACE extern "C" __attribute__((noinline, noclone))

namespace {

struct Node {
    Node *next;
    char body[40];
};

void *made(size_t bytes) {
    void *p = malloc(bytes);
    if (!p) abort();
    memset(p, 0, bytes);
    return p;
}

const int COUNT = 10;

}  // namespace

// ---- lost

PLACE void *lost_plain(size_t bytes) { return made(bytes); }
PLACE Node *lost_list() { return static_cast<Node *>(made(sizeof(Node))); }
PLACE Node *lost_ring() { return static_cast<Node *>(made(sizeof(Node))); }
PLACE std::string *lost_container() { return new std::string(200, 'x'); }
PLACE void *lost_with_thread() { return made(300); }
PLACE void *lost_large() { return made(3 << 20); }
PLACE void *lost_disguised() { return made(500); }
PLACE void *lost_in_registers() { return made(700); }
PLACE void *lost_shrunk() {
    // Stays where it is.
    void *p = realloc(made(200), 110);
    if (!p) abort();
    return p;
}
PLACE char *lost_aligned() {
    void *p = nullptr;
    if (posix_memalign(&p, 4096, 9000)) abort();
    memset(p, 1, 9000);
    return static_cast<char *>(p);
}

// ---- kept

PLACE void *kept_global() { return made(64); }
PLACE char *kept_interior() { return static_cast<char *>(made(5000)); }
PLACE void *kept_epoll() { return made(64); }
PLACE void *kept_timer() { return made(64); }
PLACE void *kept_tls() { return made(64); }
PLACE void *kept_stack() { return made(64); }
PLACE void *kept_mapping() { return made(64); }
PLACE void *kept_vector_register() { return made(64); }
PLACE void *kept_in_tree(int) { return made(64); }
PLACE Node *kept_list() { return static_cast<Node *>(made(sizeof(Node))); }
PLACE char *kept_inside_large() { return static_cast<char *>(made(3 << 20)); }
PLACE void *kept_thread_value() { return made(64); }
PLACE void *kept_by_shrunk() { return made(64); }
PLACE void **kept_shrunk() {
    // Stays where it is, and again.
    void *p = realloc(realloc(made(208), 112), 72);
    if (!p) abort();
    return static_cast<void **>(p);
}

namespace {

void *volatile global;
char *volatile interior;
void *volatile disguised;
thread_local void *volatile own;
void *volatile *mapping;
std::map<int, void *> *volatile tree;
Node *volatile list;
char *volatile inside_large;
void **volatile shrunk;
pthread_key_t key;
std::vector<void *> *pool;

__attribute__((noinline)) void lose() {
    for (int i = 0; i < COUNT; i++) lost_plain(100 + i);
    for (int i = 0; i < 2; i++) {
        Node *head = nullptr;
        for (int n = 0; n < COUNT; n++) {
            Node *node = lost_list();
            node->next = head;
            head = node;
        }
    }
    Node *first = lost_ring(), *last = first;
    for (int n = 1; n < COUNT; n++) {
        Node *node = lost_ring();
        last->next = node;
        last = node;
    }
    last->next = first;
    asm volatile("" : : "r"(first) : "memory");
    lost_container();
    lost_large();
    lost_aligned();
    lost_shrunk();
    disguised = reinterpret_cast<void *>(~reinterpret_cast<uintptr_t>(lost_disguised()));
}

void *ends(void *) {
    void *volatile local = lost_with_thread();
    (void)local;
    return nullptr;
}

volatile int waiting;

void *waits(void *) {
    void *volatile local = kept_stack();
    own = kept_tls();
    pthread_setspecific(key, kept_thread_value());
    waiting = 1;
    for (;;) pause();
    return local;
}

volatile int spinning;

void *spins(void *) {
#if defined(__x86_64__)
    // Only in a vector register: what calls have left on the stack is wiped.
    void *p = kept_vector_register();
    asm volatile(
        "movq %1, %%xmm9\n\t"
        "leaq -65536(%%rsp), %%rdi\n\t"
        "movl $8192, %%ecx\n\t"
        "xorl %%eax, %%eax\n\t"
        "rep stosq\n\t"
        "movl $1, %0\n\t"
        "xorl %%ecx, %%ecx\n\t"
        "xorl %%edx, %%edx\n\t"
        "xorl %%esi, %%esi\n\t"
        "xorl %%edi, %%edi\n\t"
        "1: pause\n\t"
        "jmp 1b"
        : "=m"(spinning)
        : "a"(p)
        : "rcx", "rdx", "rsi", "rdi", "xmm9", "memory", "cc");
#else
    own = kept_vector_register();
    spinning = 1;
    for (;;) pause();
#endif
    return nullptr;
}

volatile int leaving;

// Leaves the only pointers in vector registers, and calls a function that waits.
void *leaves(void *) {
#if defined(__x86_64__)
    static volatile uintptr_t words[2];
    int wide = __builtin_cpu_supports("avx512f") != 0;
    for (auto &word : words) word = ~reinterpret_cast<uintptr_t>(lost_in_registers());
    wipe();
    uintptr_t word = words[1];
    if (wide)
        asm volatile("notq %0\n\tvpbroadcastq %0, %%zmm29\n\txorl %k0, %k0" : "+r"(word));
    word = words[0];
    asm volatile("notq %0\n\tmovq %0, %%xmm13\n\txorl %k0, %k0" : "+r"(word) : : "xmm13");
#else
    for (int i = 0; i < 2; i++) lost_in_registers();
    wipe();
#endif
    leaving = gettid();
    for (;;) pause();
    return nullptr;
}

// Until the thread waits.
void await_waiting(int tid) {
    char path[64], text[256];
    snprintf(path, sizeof path, "/proc/self/task/%d/stat", tid);
    for (const char *state = nullptr; !state || state[2] != 'S'; usleep(1000)) {
        FILE *file = fopen(path, "r");
        state = file && fgets(text, sizeof text, file) ? strrchr(text, ')') : nullptr;
        if (file) fclose(file);
    }
}

__attribute__((noinline)) void keep() {
    shrunk = kept_shrunk();
    shrunk[0] = kept_by_shrunk();
    global = kept_global();
    interior = kept_interior() + 4000;
    int poll = epoll_create1(0), event = eventfd(0, 0);
    epoll_event entry = {};
    entry.events = EPOLLIN;
    entry.data.ptr = kept_epoll();
    epoll_ctl(poll, EPOLL_CTL_ADD, event, &entry);
    sigevent notification = {};
    notification.sigev_notify = SIGEV_SIGNAL;
    notification.sigev_signo = SIGUSR2;
    notification.sigev_value.sival_ptr = kept_timer();
    timer_t timer;
    timer_create(CLOCK_MONOTONIC, &notification, &timer);
    own = kept_tls();
    mapping = static_cast<void *volatile *>(
        mmap(nullptr, 1 << 20, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
    mapping[5000] = kept_mapping();
    tree = new std::map<int, void *>;
    for (int i = 0; i < 1000; i++) (*tree)[i] = kept_in_tree(i);
    for (int i = 0; i < 1000; i++) {
        Node *node = kept_list();
        node->next = list;
        list = node;
    }
    inside_large = kept_inside_large() + (2 << 20);
}

__attribute__((noinline)) void plant() {
    pthread_t thread;
    pthread_key_create(&key, nullptr);
    pthread_create(&thread, nullptr, ends, nullptr);
    pthread_join(thread, nullptr);
    // On the stack of the one that ended: until it has its own there, it still has that one's object.
    pthread_create(&thread, nullptr, waits, nullptr);
    pthread_create(&thread, nullptr, spins, nullptr);
    while (!waiting || !spinning) usleep(1000);
    lose();
    keep();
}

}  // namespace

PLACE void *kept_in_hole() { return made(64); }

namespace {

const size_t GIB = size_t(1) << 30;

char *mapped(size_t bytes, int flags, int fd) {
    void *at = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, flags, fd, 0);
    if (at == MAP_FAILED) abort();
    return static_cast<char *>(at);
}

void map_holes() {
    int own = MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE;
    *reinterpret_cast<void **>(mapped(1024 * GIB, own, -1) + 512 * GIB) = kept_in_hole();
    int fd = memfd_create("holes", 0);
    if (fd < 0 || ftruncate(fd, GIB)) abort();
    for (int n = 0; n < 1000; n++) {
        char *at = mapped(GIB, MAP_SHARED, fd);
        if (n == 500) *reinterpret_cast<void **>(at + GIB / 2) = kept_in_hole();
    }
}

}  // namespace

PLACE void *kept_unforked() { return made(100); }

namespace {

// Replaces the objects one after the other, forever.
void *churns(void *memory) {
    void *volatile *slots = static_cast<void *volatile *>(memory);
    for (size_t i = 0;; i = (i + 1) % 1000) {
        void *old = slots[i];
        slots[i] = kept_unforked();
        free(old);
    }
}

void churn(int sharing) {
    size_t bytes = 1 << 20;
    char *memory = mapped(bytes, sharing | MAP_ANONYMOUS, -1);
    if (sharing == MAP_PRIVATE && madvise(memory, bytes, MADV_DONTFORK)) abort();
    pthread_t thread;
    if (pthread_create(&thread, nullptr, churns, memory)) abort();
    while (!reinterpret_cast<void *volatile *>(memory)[999]) usleep(1000);
}

}  // namespace

namespace {

// The child has the parent's memory, and the parent waits where no signal reaches it.
void wait_in_kernel() {
    puts("waiting");
    pid_t child = vfork();
    if (child == 0) {
        char c;
        while (read(0, &c, 1) == 1 && c != '\n') {}
        _exit(0);
    }
    waitpid(child, nullptr, 0);
    puts("back");
}

}  // namespace

PLACE void *site_many() { return made(100); }

// So much that a copy searches its own memory: a tree in random order, and objects that only its
// nodes lead to.
static std::map<unsigned long, std::string> *filled;
__attribute__((noinline)) static void fill() {
    filled = new std::map<unsigned long, std::string>;
    unsigned long key = 1;
    for (long i = 0; i < 200000; i++) {
        key = key * 6364136223846793005u + 1442695040888963407u;
        (*filled)[key] = std::string(i % 60, 'x');
    }
}

int main() {
    setvbuf(stdout, nullptr, _IOLBF, 0);
    puts("ready");
    char line[256];
    while (fgets(line, sizeof line, stdin)) {
        long n;
        if (strcmp(line, "plant\n") == 0) {
            plant();
            wipe();
            puts("planted");
        } else if (strcmp(line, "registers\n") == 0) {
            pthread_t thread;
            pthread_create(&thread, nullptr, leaves, nullptr);
            while (!leaving) usleep(1000);
            await_waiting(leaving);
            wipe();
            puts("left");
        } else if (strcmp(line, "fill\n") == 0) {
            fill();
            wipe();
            puts("filled");
        } else if (strcmp(line, "holes\n") == 0) {
            map_holes();
            wipe();
            puts("mapped");
        } else if (strcmp(line, "churn\n") == 0) {
            churn(MAP_PRIVATE);
            puts("churning");
        } else if (strcmp(line, "share\n") == 0) {
            churn(MAP_SHARED);
            puts("churning");
        } else if (strcmp(line, "share much\n") == 0) {
            *mapped(64 << 20, MAP_SHARED | MAP_ANONYMOUS, -1) = 1;
            puts("mapped");
        } else if (strcmp(line, "vfork\n") == 0) {
            wait_in_kernel();
        } else if (strcmp(line, "filter\n") == 0) {
            sock_filter allow[] = {{BPF_RET | BPF_K, 0, 0, SECCOMP_RET_ALLOW}};
            sock_fprog filter = {1, allow};
            if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) ||
                prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &filter))
                abort();
            puts("filtered");
        } else if (sscanf(line, "go %ld", &n) == 1) {
            if (!pool) pool = new std::vector<void *>;
            for (long i = 0; i < n; i++) {
                void *p = site_many();
                if (i % 10) pool->push_back(p);
            }
            wipe();
            puts("gone");
        }
    }
}
