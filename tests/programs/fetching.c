// Fetches the signals that it blocks, all of them, while it uses CPU time: by sigwait, sigwaitinfo,
// sigtimedwait and signalfd. It sends itself one each time, and ends with 1 if it gets another. A thread
// that waits so is cancelled. Then it wants one real-time signal after the other through a descriptor.
#define _GNU_SOURCE
#include <errno.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/signalfd.h>
#include <time.h>
#include <unistd.h>

static volatile unsigned sink;
static sigset_t all;

// Some 20 ms of CPU time.
static void burn(void) {
    struct timespec now;
    long begin = 0, ns = 0;
    while (ns - begin < 20000000) {
        for (int i = 0; i < 10000; i++) sink = sink * 3 + 1;
        clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
        ns = now.tv_sec * 1000000000L + now.tv_nsec;
        if (!begin) begin = ns;
    }
}

static int from(int fd) {
    struct signalfd_siginfo info;
    struct pollfd readable = {fd, POLLIN, 0};
    if (poll(&readable, 1, 10000) != 1 || read(fd, &info, sizeof info) != sizeof info) return -1;
    return info.ssi_signo;
}

static int fetch(int way, int fd) {
    struct timespec moment = {10, 0};
    siginfo_t info;
    int number = -1;
    switch (way) {
    case 0: return sigwait(&all, &number) ? -1 : number;
    case 1: return sigwaitinfo(&all, &info) == info.si_signo ? info.si_signo : -1;
    case 2: return sigtimedwait(&all, NULL, &moment);
    default: return from(fd);
    }
}

static void *wait_for_ever(void *none) {
    int number;
    sigwait(&all, &number);
    return none;
}

int main(void) {
    // What is sampled, before the timers' signal is blocked.
    for (int turn = 0; turn < 10; turn++) burn();
    sigfillset(&all);
    if (pthread_sigmask(SIG_BLOCK, &all, NULL)) return 2;
    int fd = signalfd(-1, &all, SFD_CLOEXEC);
    if (fd < 0) return 2;
    for (int turn = 0; turn < 60; turn++) {
        burn();
        // The lowest number comes first, so that another would come later.
        raise(turn % 2 ? SIGUSR1 : SIGRTMAX);
        int number = fetch(turn / 2 % 4, fd);
        if (number != (turn % 2 ? SIGUSR1 : SIGRTMAX)) {
            fprintf(stderr, "turn %d: signal %d\n", turn, number);
            return 1;
        }
    }
    struct timespec none = {0, 0}, little = {0, 1000000};
    burn();
    if (sigtimedwait(&all, NULL, &none) != -1 || errno != EAGAIN) return 3;
    burn();
    if (sigtimedwait(&all, NULL, &little) != -1 || errno != EAGAIN) return 3;
    pthread_t thread;
    void *result;
    if (pthread_create(&thread, NULL, wait_for_ever, NULL) || pthread_cancel(thread)) return 4;
    if (pthread_join(thread, &result) || result != PTHREAD_CANCELED) return 4;
    for (int wanted = SIGRTMIN; wanted <= SIGRTMAX; wanted++) {
        sigset_t one;
        sigemptyset(&one);
        sigaddset(&one, wanted);
        int own = signalfd(-1, &one, SFD_CLOEXEC);
        if (own < 0) return 5;
        burn();
        raise(wanted);
        if (from(own) != wanted) return 5;
        close(own);
    }
    puts("fetched");
    return 0;
}
